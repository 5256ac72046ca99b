"""Tasks and receipts, which the driver and its workers exchange as plain data.

A shard task is a part of one input, or a list of small inputs; a range task is a block of an output. The journal
records receipts. A receipt has the digest of every block of a shard's files, so a task that copies bytes of such a file
checks exactly the blocks that hold them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash
from msgspec import Struct

from dsindex.store.read import SPOOLED

if TYPE_CHECKING:
    from dsindex.formats.mmididx import IndexHeader
    from dsindex.text.input_format import TextPart


class ShardTask(Struct, frozen=True, kw_only=True):
    """A part of an input, or several small inputs as a whole."""

    shard: int
    """Number in plan order, over all inputs."""
    input: int
    """Number of the first part's input in plan order; each further part is of the next input."""
    parts: tuple[TextPart, ...]
    dataset: int = 0
    """Number of the dataset that its records belong to, if a build makes several datasets of consecutive inputs."""
    occurrence: int = 0
    """Number of earlier tasks in the plan that read the same bytes: an input given twice has two shards per part."""

    @property
    def key(self) -> str:
        """Identifies what it reads and which occurrence it is: unique in a plan, and unaffected by added inputs."""
        first_key, *other_keys = (
            f"{name_in_plan(part.path)}\0{part.size_bytes}\0{part.version}\0{part.begin}\0{part.end}"
            for part in self.parts
        )
        key = f"{first_key}\0{xxhash.xxh3_128_hexdigest(repr(other_keys).encode())}" if other_keys else first_key
        return f"{key}\0#{self.occurrence}" if self.occurrence else key

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
        """The part or the files that it reads, for messages."""
        first, *other_parts = self.parts
        if other_parts:
            return f"{len(self.parts):,} files from {first.path} to {other_parts[-1].path}"
        return f"{first.path}, {'row groups' if first.form.is_table else 'bytes'} {first.begin} to {first.end}"


def name_in_plan(path: str) -> str:
    """Return an input's name in plans: `-` for standard input, whose file moves with the work folder."""
    return "-" if path.endswith(SPOOLED) else path


class FileCounts(Struct, frozen=True, array_like=True, gc=False):
    """Counts of one file of a shard. A shard may have a hundred thousand files, so field names are not stored."""

    lines: int
    blank: int
    quarantined: int
    text_bytes: int
    """Size of the lines in the unpacked text."""
    fingerprint: str
    """Fingerprint of the whole file when this shard was read."""
    num_kept: tuple[int, ...]
    """Records kept in each sample or split."""
    tokenized_bytes: tuple[int, ...] = ()
    """UTF-8 size of the tokenized texts, for each key of the receipt."""


class ShardFile(Struct, frozen=True, array_like=True, gc=False):
    """A file that a worker wrote for a shard."""

    name: str
    """Name relative to the work folder."""
    size_bytes: int
    blocks: tuple[str, ...]
    """XXH3-64 of each block of BLOCK_BYTES, in hexadecimal."""


class KeyResult(Struct, frozen=True, kw_only=True, gc=False):
    """What a shard adds to one of the job's outputs."""

    num_sequences: int
    num_documents: int
    num_tokens: int
    num_empty_documents: int = 0
    """Documents whose texts have no tokens; they keep a boundary and have no sequence, or one of EOD alone."""
    eod_in_text: int = 0
    """Tokens equal to EOD that came from the text itself."""
    bin: ShardFile
    idx: ShardFile
    provenance: ShardFile | None = None
    """Origins of its documents; keys with the same records share the file."""


class ShardResult(Struct, frozen=True, kw_only=True, gc=False):
    """The receipt of one attempt at a shard: small, and all that the driver needs to know."""

    files: tuple[FileCounts, ...]
    """The counts of each file of the task."""
    keys: tuple[KeyResult, ...]
    """In the order of the job's outputs: all keys of a sample or split, then all keys of the next one."""
    quarantine: ShardFile | None = None
    counts: tuple[tuple[str, int], ...] = ()
    """Named counts of a kind of shard, to be summed over shards."""

    @property
    def num_records(self) -> int:
        """Number of records kept."""
        return sum(sum(file.num_kept) for file in self.files)

    @property
    def stored_files(self) -> list[ShardFile]:
        """All files of the attempt."""
        files = [self.quarantine, *(file for key in self.keys for file in (key.bin, key.idx, key.provenance))]
        return [file for file in files if file is not None]


class SourceFile(Struct, frozen=True, gc=False):
    """A file from which an output is assembled: a shard's, or one of a dataset that is merged."""

    path: str
    size_bytes: int
    blocks: tuple[str, ...] | None = None
    """Block digests of a shard's file; None for a file of a dataset to merge, which is copied without checks."""


class Segment(Struct, frozen=True, kw_only=True):
    """What a shard, or a dataset to merge, adds to one output."""

    bin: SourceFile
    idx: SourceFile
    header: IndexHeader
    provenance: SourceFile | None = None
    """A shard's provenance; input numbers and lines count from the start of the shard."""
    quarantine: SourceFile | None = None
    """A shard's bad records; input numbers and lines count from the start of the shard."""
    input: int = 0
    """Number of the shard's first input, counted within its dataset."""
    line: int = 1
    """1-based number of the shard's first line in that input."""
    names: tuple[str, ...] = ()
    """Its inputs as the user gave them, if it has bad records."""


class MergeRange(Struct, frozen=True, kw_only=True):
    """A block of an output, and the pieces from which it is copied."""

    output: str
    begin: int
    """Offset of the block in the output."""
    pieces: tuple[tuple[SourceFile, int, int], ...]
    """Files, each with the first byte to copy, and the byte after the last."""

    @property
    def size_bytes(self) -> int:
        """Size of the block."""
        return sum(end - begin for _, begin, end in self.pieces)


class Damaged(Struct, frozen=True):
    """The result of a worker that found a shard's file missing or changed."""

    path: str
