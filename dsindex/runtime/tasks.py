"""What the driver and its workers exchange: tasks and receipts. No behaviour is here.

A shard task is a part of one file, or a list of small ones; a range task is a part of an output. How a file is cut
depends on that file alone, so a changed input redoes itself. Receipts are what the ledger records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash
from msgspec import Struct

from dsindex.store.local import StoredFile  # noqa: TC001 - receipts are decoded by their types
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from dsindex.formats.mmididx import IndexHeader
    from dsindex.text.input_format import TextPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """A part of an input, or several small inputs as a whole."""

    shard: int
    """Number in plan order, over all inputs."""
    input: int
    """Number of the first part's input in plan order; each further part is of the next input."""
    parts: tuple[TextPart, ...]

    @property
    def key(self) -> str:
        """What it reads: it stays the same when inputs are added."""
        first, *others = (
            f"{part.path}\0{part.size_bytes}\0{part.version}\0{part.begin}\0{part.end}" for part in self.parts
        )
        return f"{first}\0{xxhash.xxh3_128_hexdigest(repr(others).encode())}" if others else first

    @property
    def inputs(self) -> range:
        """Numbers of its inputs in plan order."""
        return range(self.input, self.input + len(self.parts))

    @property
    def stored_bytes(self) -> int:
        """Size of its parts, for progress."""
        return sum(part.stored_bytes for part in self.parts)

    @property
    def place(self) -> str:
        """What it reads, for messages."""
        first, *others = self.parts
        if others:
            return f"{len(self.parts):,} files from {first.path} to {others[-1].path}"
        return f"{first.path}, {'row groups' if first.form.is_table else 'bytes'} {first.begin} to {first.end}"


class FileCounts(Struct, frozen=True, array_like=True, gc=False):
    """What a shard read of one of its files. A shard may have a hundred thousand, so it is stored without names."""

    lines: int
    blank: int
    quarantined: int
    text_bytes: int
    """Size of the lines in the unpacked text."""
    fingerprint: str
    """Fingerprint of the whole file when this shard was read."""
    kept: tuple[int, ...]
    """Records kept in each sample or split."""
    tokenized_bytes: tuple[int, ...] = ()
    """Size of the texts that became tokens, in UTF-8, for each key of the receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """One key's part of a shard."""

    num_sequences: int
    num_documents: int
    num_tokens: int
    num_empty_documents: int = 0
    """Documents whose texts have no tokens; they keep a boundary and have no sequence, or one of EOD alone."""
    eod_in_text: int = 0
    """Tokens equal to EOD that came from the text itself."""
    bin: StoredFile
    idx: StoredFile
    provenance: StoredFile | None = None
    """Where its documents are from; keys with the same records share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """The receipt of one attempt at a shard: small, and all that the driver needs."""

    files: tuple[FileCounts, ...]
    """The counts of each file of the task."""
    keys: tuple[KeyResult, ...]
    """The parts, in the order of the job's outputs: all keys of a sample or split, then those of the next one."""
    quarantine: StoredFile | None = None
    counts: tuple[tuple[str, int], ...] = ()
    """Further named counts of a kind of shard, to be added up over shards."""

    @property
    def num_records(self) -> int:
        """Records kept."""
        return sum(sum(file.kept) for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A file of which a dataset is made: one of a shard, or of another dataset."""

    path: str
    """Empty for bytes that are not known yet, such as the header of a `.pbin`."""
    size_bytes: int
    digest: str | None = None
    """What the worker recorded when it wrote the file of a shard, to be compared with what is read."""

    @classmethod
    def of(cls, file: StoredFile, work_dir: str) -> PartFile:
        """Return a shard's file."""
        return cls(path=joined(work_dir, file.name), size_bytes=file.size_bytes, digest=file.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One MMIDIDX dataset to merge."""

    bin: PartFile
    idx: PartFile
    header: IndexHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """A shard's rows of provenance or its bad records, which count from its beginning, and where that is."""

    file: PartFile
    input: int
    """Number of the shard's first input."""
    line: int
    """1-based number of the shard's first line in its input."""
    names: tuple[str, ...] = ()
    """Its inputs as the user gave them, for bad records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRange:
    """A block of an output, and the pieces from which it is copied: files, and where each begins and ends there."""

    output: str
    number: int
    begin: int
    """Byte at which it begins."""
    pieces: tuple[tuple[PartFile, int, int], ...]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return sum(end - begin for _, begin, end in self.pieces)
