"""The packs of instruction data: an index over the published tokens and masks, which stay once on disk.

`<prefix>_packing_<L>` is an MMIDIDX of int32 whose sequences are packs and whose entries are sequence numbers; with
--pad-to-multiple N its name ends in `_pad<N>`. It depends on the lengths of the published sequences, L and N alone, so
packs of another length take seconds.
"""

from __future__ import annotations

import io
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.engine.dispatch import DispatchStatistics
from dsindex.engine.job import hold_output
from dsindex.engine.manifest import (
    MANIFEST_SUFFIX,
    Content,
    Manifest,
    RecordedPacking,
    describe_run,
    files_have_recorded_sizes,
    manifest_path,
    read_manifest,
)
from dsindex.engine.plan import Plan
from dsindex.errors import FormatError, InputError, OutputError
from dsindex.formats.mmididx import IndexHeader, write_index
from dsindex.instruction.blocks import BlockLayout, lay_out_blocks
from dsindex.store.listing import find_stored
from dsindex.store.reading import digest_file, is_stored
from dsindex.store.storage import DigestingWriter, StoredFile, remove_if_present
from dsindex.store.store import replace_file, store_of
from dsindex.store.urls import with_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.engine.progress import Reporter
    from dsindex.options.instruct import InstructConfig

FORMAT = 2
"""Raised whenever the same lengths give other packs, so that packs of earlier releases are made again."""
LAYOUT_DTYPE = np.dtype("<i4")
_SUFFIXES = ("bin", "idx")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePacking:
    """The published packs of a split."""

    prefix: str
    facts: RecordedPacking
    files: dict[str, StoredFile]
    already_complete: bool


def read_published(prefix: str) -> Manifest:
    """Return the manifest of a dataset that the job has published.

    Raises:
        FormatError: If it is gone.
    """
    manifest = read_manifest(prefix)
    if manifest is None:
        raise FormatError(f"{prefix}: expected the manifest of a dataset, found none; run the same command again")
    return manifest


class Packings:
    """Makes the packs of a job's splits, and removes those of earlier tokens.

    Args:
        config: The options of the job.
        prefixes: The splits' prefixes, such as `out/chat_train`.
        reporter: Shows progress.
    """

    def __init__(self, config: InstructConfig, prefixes: Sequence[str], reporter: Reporter) -> None:
        self._config = config
        self._prefixes = prefixes
        self._reporter = reporter
        self.made: list[MadePacking] | None = None
        """One for each split, or none without --seq-length; None before they are made."""

    def path(self, prefix: str) -> str:
        """Return the prefix of a split's packs."""
        return with_suffix(prefix, packing_prefix("", self._config.seq_length or 0, self._config.pad_to_multiple))

    def examine(self) -> None:
        """Check that packs can be written.

        Raises:
            OutputError: If files are there of which no manifest says that dsindex wrote them.
        """
        for path in map(self.path, self._prefixes if self._config.seq_length else ()):
            if read_manifest(path) is None:
                _refuse_foreign(path)

    def make(self) -> list[MadePacking]:
        """Make the packs that are missing.

        Raises:
            InputError: If a sequence is longer than a pack, and is not to be dropped.
            OutputError: If the packs cannot be written.
        """
        if self.made is None:
            made = []
            for prefix in self._prefixes:
                tokens = read_published(with_suffix(prefix, "_text_document"))
                files = tokens.content.digests
                sources = {suffix: [files[suffix].size_bytes, files[suffix].digest] for suffix in _SUFFIXES}
                if self._config.seq_length is not None:
                    made.append(self._make(prefix, tokens.content, sources))
                for path in _find(prefix):
                    _remove_if_old(path, sources)
            self.made = made
        return self.made

    def _make(self, prefix: str, tokens: Content, sources: dict[str, list[Any]]) -> MadePacking:
        began, config, path = time.time(), self._config, self.path(prefix)
        length = config.seq_length or 0
        settings = {
            "packing": FORMAT,
            "sources": sources,
            "seq-length": length,
            "pad-to-multiple": config.pad_to_multiple,
            "longer-than-pack": "drop" if config.longer_than_pack == "drop" else "refuse",
        }
        plan = Plan(settings=settings, inputs=())
        with hold_output(path):
            found = read_manifest(path)
            is_same = found is not None and found.run.plan == plan.decoded()
            if found is not None and is_same and files_have_recorded_sizes(path, found):
                facts = found.content.packing or RecordedPacking(sequence_length=length, blocks=0, padding=0, fill=1.0)
                return MadePacking(prefix=path, facts=facts, files=found.content.digests, already_complete=True)
            self._reporter.stage("pack", total=1, unit="datasets")
            layout, facts = self._lay_out(prefix)
            written = {"bin": layout.conversations.astype(LAYOUT_DTYPE).tobytes(), "idx": _encode_index(layout)}
            files = {suffix: _describe(suffix, data) for suffix, data in written.items()}
            _refuse_foreign(path, files, {} if found is None else found.content.digests)
            remove_if_present(with_suffix(path, ".idx"))
            for suffix in _SUFFIXES:
                final = with_suffix(path, f".{suffix}")
                replace_file(final, written[suffix])
            content = Content(
                inputs=tokens.inputs,
                documents=layout.num_blocks,
                sequences=layout.num_blocks,
                tokens=len(layout.conversations),
                token_dtype=LAYOUT_DTYPE.name,
                options=msgspec.structs.replace(tokens.options, seq_length=length),
                packing=facts,
                digests=files,
            )
            run = describe_run(plan, began=began, executor=None, statistics=DispatchStatistics(), shards=1)
            manifest, final = Manifest(content=content, run=run), manifest_path(path)
            replace_file(final, manifest.encode())
            self._reporter.advance(1)
        return MadePacking(prefix=path, facts=facts, files=files, already_complete=False)

    def _lay_out(self, prefix: str) -> tuple[BlockLayout, RecordedPacking]:
        config = self._config
        length, drops = config.seq_length or 0, config.longer_than_pack == "drop"
        tokens = with_suffix(prefix, "_text_document")
        lengths = IndexedDataset(tokens, check=False).sequence_lengths
        longer = lengths[lengths > length] if drops else lengths[:0]
        try:
            layout = lay_out_blocks(
                lengths, sequence_length=length, pad_to_multiple=config.pad_to_multiple, drop_longer=drops
            )
        except ValueError as error:
            remedy = "pack with --longer-than-pack drop, or in longer packs"
            raise InputError(f"{tokens}: {error}; {remedy}") from error
        facts: dict[str, Any] = {
            "sequence_length": length,
            "blocks": layout.num_blocks,
            "padding": layout.num_padding,
            "fill": round(layout.fill, 6),
        }
        if config.pad_to_multiple > 1:
            own = -lengths[layout.conversations] % config.pad_to_multiple
            facts |= {"pad_to_multiple": config.pad_to_multiple, "between": int(own.sum(dtype=np.int64))}
        if drops:
            facts |= {"dropped": len(longer), "dropped_tokens": int(longer.sum(dtype=np.int64))}
        return layout, RecordedPacking(**facts)


def _encode_index(layout: BlockLayout) -> bytes:
    lengths = np.diff(layout.block_starts).astype(np.int32)
    header = IndexHeader(
        dtype=LAYOUT_DTYPE, num_sequences=len(lengths), num_boundaries=len(lengths) + 1, has_modes=False
    )
    encoded = io.BytesIO()
    boundaries = np.arange(len(lengths) + 1, dtype=np.int64)
    write_index(
        DigestingWriter(encoded), header, lengths=lambda: iter([lengths]), boundaries=lambda: iter([boundaries])
    )
    return encoded.getvalue()


def _describe(suffix: str, data: bytes) -> StoredFile:
    writer = DigestingWriter(io.BytesIO())
    writer.write(data)
    return writer.as_stored(suffix)


def _refuse_foreign(path: str, *known: Mapping[str, StoredFile]) -> None:
    """Check that existing files are packs that dsindex wrote, or would write, by their digests."""
    for suffix in _SUFFIXES:
        file = with_suffix(path, f".{suffix}")
        if is_stored(file) and not any(digest_file(file) == own[suffix].digest for own in known if suffix in own):
            raise OutputError(
                f"{file}: expected packs that dsindex wrote, got a file of which no manifest says so; move it away, or "
                "choose another --output-prefix"
            )


def _find(prefix: str) -> list[str]:
    """Return the prefixes of all packs of a split that have a manifest."""
    ending = re.compile(rf"{re.escape(str(prefix))}(_packing_[0-9]+(_pad[0-9]+)?)\.{re.escape(MANIFEST_SUFFIX)}")
    found = map(ending.fullmatch, find_stored(with_suffix(prefix, "_packing_")))
    return [with_suffix(prefix, match[1]) for match in found if match is not None]


def _remove_if_old(path: str, sources: dict[str, list[Any]]) -> None:
    """Remove packs of earlier tokens."""
    manifest = read_manifest(path)
    settings = {} if manifest is None else manifest.run.plan["settings"]
    if "packing" in settings and settings["sources"] != sources:
        store_of(path).delete([manifest_path(path), *(with_suffix(path, f".{suffix}") for suffix in ("idx", "bin"))])
