"""Repair from the shards of a work folder: merge the intact ones in plan order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.merging.index import write_merged_index
from dsindex.merging.parts import merged_header
from dsindex.rescue.outputs import RepairOutputs, RepairReport, copy_bytes, write_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.merging.parts import Part
    from dsindex.storage import DigestingWriter


def repair_by_shards(parts: Sequence[Part], target: RepairOutputs, *, lost: Sequence[str]) -> RepairReport:
    """Merge the intact shards.

    Args:
        parts: At least one intact shard, in plan order.
        target: The new files.
        lost: Sentences about the missing shards.

    Raises:
        FormatError: If a shard is damaged, or the result does not have the digests of the target.
        OutputError: If the output cannot be written.
    """
    header = merged_header(parts)

    def tokens(file: DigestingWriter) -> None:
        for part in parts:
            copy_bytes(part.bin_path, part.bin_bytes, file)

    write_dataset(target, tokens=tokens, index=lambda file: write_merged_index(file, parts))
    return RepairReport(
        way="the shards of the work folder",
        is_certain=True,
        outputs=target.paths,
        num_documents=header.num_documents,
        num_sequences=header.num_sequences,
        num_tokens=sum(part.bin_bytes for part in parts) // header.dtype.itemsize,
        lost=tuple(lost),
        notes=(),
    )
