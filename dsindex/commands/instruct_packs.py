"""The packs of instruction data: an index over the published tokens and masks, which are not copied.

`<prefix>_packing_<L>` is an MMIDIDX pair of int32. Each of its sequences is a pack, and lists the numbers of the
sequences in that pack. With --pad-to-multiple N the name ends in `_pad<N>`. The packs depend only on the lengths of the
published sequences, L and N, so packs of another length take seconds to make.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsindex._version import __version__
from dsindex.chat.packing import BlockLayout, lay_out_blocks
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.errors import FormatError, OutputError
from dsindex.formats.manifest import (
    MANIFEST_SUFFIX,
    Content,
    Manifest,
    RecordedPacking,
    Run,
    files_have_recorded_sizes,
    manifest_path,
    read_manifest,
)
from dsindex.formats.mmididx import IndexHeader, write_index
from dsindex.runtime.plan import make_plan
from dsindex.runtime.publish import Artifact, claim_names, hold_artifacts, is_publishing, publish
from dsindex.store.listing import find_with_beginning
from dsindex.store.protocol import open_output, store_of
from dsindex.store.read import is_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.options.instruct import InstructConfig

FORMAT = 2
"""Version of the packing. It is increased when a change of the code gives different packs for the same lengths, so that
packs of earlier releases are made again."""
LAYOUT_DTYPE = np.dtype("<i4")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePacking:
    """The published packs of a split."""

    prefix: str
    content: Content
    already_complete: bool


def read_published(prefix: str) -> Manifest:
    """Read the manifest of a dataset that the job has published.

    Raises:
        FormatError: If the manifest is missing.
    """
    manifest = read_manifest(prefix)
    if manifest is None:
        raise FormatError(f"{prefix}: the manifest of this dataset is missing", hint="run the same command again")
    return manifest


def pack_splits(config: InstructConfig, prefixes: Sequence[str]) -> list[MadePacking]:
    """Make the missing packs of a job's splits, and delete packs of datasets that have been replaced since.

    Args:
        config: The options of the job; without --seq-length no packs are made.
        prefixes: Prefixes of the splits, such as `out/chat_train`.

    Raises:
        FormatError: If the lengths of sequences are damaged.
        OutputError: If the packs cannot be written.
    """
    packings = []
    for prefix in prefixes:
        content = read_published(f"{prefix}_text_document").content
        files = {suffix: content.digests[suffix] for suffix in ("bin", "idx")}
        sources = {suffix: [file.size_bytes, file.digest] for suffix, file in files.items()}
        if config.seq_length is not None:
            packings.append(_pack(config, config.seq_length, prefix, content, sources))
        _remove_old_packs(prefix, sources)
    return packings


def check_packs(config: InstructConfig, prefixes: Sequence[str]) -> None:
    """Check that packs can be written without overwriting files that dsindex did not make.

    Raises:
        OutputError: If there is an index without a manifest that shows dsindex made it.
    """
    for prefix in prefixes if config.seq_length is not None else ():
        path = packs_path(config, prefix)
        with hold_artifacts([path], [_artifact(path, "")]):
            _refuse_foreign_packs(path)


def _refuse_foreign_packs(path: str) -> None:
    if is_stored(f"{path}.idx") and read_manifest(path) is None and not is_publishing([_artifact(path, "")]):
        problem = "no manifest says that dsindex made these packs"
        raise OutputError(f"{path}.idx: {problem}", hint="move the file away, or choose another --output-prefix")


def packs_path(config: InstructConfig, prefix: str) -> str:
    """Return the prefix of a split's packs."""
    return f"{prefix}{packing_prefix('', config.seq_length or 0, config.pad_to_multiple)}"


def _pack(
    config: InstructConfig, length: int, prefix: str, content: Content, sources: dict[str, list[Any]]
) -> MadePacking:
    """Make the packs of a split, unless packs of the same plan exist."""
    path = packs_path(config, prefix)
    settings = {
        "packing": FORMAT,
        "sources": sources,
        "seq-length": length,
        "pad-to-multiple": config.pad_to_multiple,
        "longer-than-pack": "drop" if config.longer_than_pack == "drop" else "refuse",
    }
    plan = make_plan(settings)
    artifact = _artifact(path, plan.plan_id)
    bin_path, idx_path, json_path = artifact.finals
    options = msgspec.structs.replace(content.options, seq_length=length)
    with hold_artifacts([path], [artifact]):
        manifest = read_manifest(path)
        # Different inputs can give the same tokens, so the inputs in the manifest of the packs are compared, too.
        recorded = manifest and (manifest.run.plan, manifest.content.inputs, manifest.content.options)
        if manifest and recorded == (plan, content.inputs, options) and files_have_recorded_sizes(path, manifest):
            return MadePacking(prefix=path, content=manifest.content, already_complete=True)
        _refuse_foreign_packs(path)
        layout, packing = _lay_out(config, length, f"{prefix}_text_document")
        claim_names(artifact, [artifact], artifact.finals)
        with open_output(artifact.partial(bin_path)) as bin_file:
            bin_file.write(layout.conversations.astype(LAYOUT_DTYPE).tobytes())
        lengths = np.diff(layout.block_starts).astype(np.int32)
        boundaries = np.arange(len(lengths) + 1, dtype=np.int64)
        header = IndexHeader(
            dtype=LAYOUT_DTYPE, num_sequences=len(lengths), num_boundaries=len(boundaries), has_modes=False
        )
        with open_output(artifact.partial(idx_path)) as index_file:
            write_index(index_file, header, lambda name: [lengths if name == "lengths" else boundaries])
        pack_content = Content(
            inputs=content.inputs,
            documents=layout.num_blocks,
            sequences=layout.num_blocks,
            tokens=len(layout.conversations),
            token_dtype=LAYOUT_DTYPE.name,
            options=options,
            packing=packing,
            digests={"bin": bin_file.stored_file("bin"), "idx": index_file.stored_file("idx")},
        )
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        run = Run(plan=plan, started=started, executor="driver", workers=1, shards=1, dsindex=__version__)
        with open_output(artifact.partial(json_path)) as manifest_file:
            manifest_file.write(Manifest(content=pack_content, run=run).encode())
        files_by_path = {bin_path: bin_file, idx_path: index_file, json_path: manifest_file}
        publish([artifact], {final: file.stored_file(final) for final, file in files_by_path.items()})
    return MadePacking(prefix=path, content=pack_content, already_complete=False)


def _artifact(path: str, plan_id: str) -> Artifact:
    return Artifact(finals=(f"{path}.bin", f"{path}.idx", manifest_path(path)), plan_id=plan_id)


def _lay_out(config: InstructConfig, length: int, prefix: str) -> tuple[BlockLayout, RecordedPacking]:
    drops, multiple = config.longer_than_pack == "drop", config.pad_to_multiple
    lengths = IndexedDataset(prefix, check=False).sequence_lengths
    longer_lengths = lengths[lengths > length]
    try:
        layout = lay_out_blocks(lengths, sequence_length=length, pad_to_multiple=multiple, drop_longer=drops)
    except ValueError as error:
        raise FormatError(f"{prefix}.idx: damaged: {error}", hint="remove the output, and make it again") from error
    num_between = int((-lengths[layout.conversations] % multiple).sum(dtype=np.int64))
    return layout, RecordedPacking(
        sequence_length=length,
        blocks=layout.num_blocks,
        padding=layout.num_padding,
        fill=round(layout.fill, 6),
        pad_to_multiple=multiple if multiple > 1 else None,
        between=num_between if multiple > 1 else None,
        dropped=len(longer_lengths) if drops else None,
        dropped_tokens=int(longer_lengths.sum(dtype=np.int64)) if drops else None,
    )


def _remove_old_packs(prefix: str, sources: dict[str, list[Any]]) -> None:
    """Delete the packs of a split that were made from datasets other than `sources`."""
    pattern = re.compile(rf"({re.escape(prefix)}_packing_[0-9]+(_pad[0-9]+)?)\.{re.escape(MANIFEST_SUFFIX)}")
    for match in filter(None, map(pattern.fullmatch, find_with_beginning(f"{prefix}_packing_"))):
        manifest = read_manifest(match[1])
        settings = {} if manifest is None else manifest.run.plan.settings
        if "packing" in settings and settings["sources"] != sources:
            store_of(prefix).delete([match[0], f"{match[1]}.idx", f"{match[1]}.bin"])
