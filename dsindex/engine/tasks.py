"""What the driver and its workers exchange: tasks and receipts. No behaviour is here.

A shard task is a part of one file, or a list of small ones; a range task is a part of an output. How a file is cut
depends on that file alone, so a changed input redoes itself. Receipts are what the ledger records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import xxhash

from dsindex.json_text import name_bytes
from dsindex.store.storage import StoredFile  # noqa: TC001 - receipts are decoded by their types
from dsindex.text.forms import JSON_LINES, InputForm, SmallFile, TextPart

if TYPE_CHECKING:
    from dsindex.formats.mmididx import IndexHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """A part of an input: the lines that begin in the byte range [begin, end), or row groups of a table."""

    shard: int
    """Number in plan order, over all inputs."""
    input: int
    """Number of the input in plan order."""
    path: str
    begin: int
    end: int
    input_size_bytes: int
    input_version: str
    """Modification time in ns when the job was planned."""
    form: InputForm = JSON_LINES
    stored_bytes: int = 0
    """Size of its part of the file, for progress."""
    files: tuple[SmallFile, ...] = ()
    """Consecutive inputs that are read as a whole, of which `input` and `path` are the first; empty for a part of one.

    Sizes are those of all, and the version is a digest of theirs.
    """

    @property
    def key(self) -> str:
        """What it reads: it stays the same when inputs are added."""
        return f"{self.path}\0{self.input_size_bytes}\0{self.input_version}\0{self.begin}\0{self.end}"

    @property
    def inputs(self) -> range:
        """Numbers of its inputs in plan order."""
        return range(self.input, self.input + max(1, len(self.files)))

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of its inputs."""
        return tuple(file.path for file in self.files) or (self.path,)

    @property
    def place(self) -> str:
        """What it reads, for messages."""
        if self.files:
            return f"{len(self.files):,} files from {self.path} to {self.files[-1].path}"
        return f"{self.path}, {'row groups' if self.form.is_table else 'bytes'} {self.begin} to {self.end}"

    @property
    def part(self) -> TextPart:
        """The part of a file to read."""
        return TextPart(
            path=self.path,
            begin=self.begin,
            end=self.end,
            form=self.form,
            expected_size=self.input_size_bytes,
            is_file_start=self.begin == 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """One key's part of a shard."""

    key: str
    num_sequences: int
    num_documents: int
    num_tokens: int
    num_empty_documents: int
    """Documents whose texts have no tokens; they keep a boundary and have no sequence, or one of EOD alone."""
    eod_in_text: int
    """Tokens equal to EOD that came from the text itself."""
    bin: StoredFile
    idx: StoredFile
    provenance: StoredFile | None = None
    """Provenance of this key's documents if they differ from those of the other keys."""
    num_reference_texts: int = 0
    """Texts that `tokenizers` encoded because gigatoken, the engine in use, may differ on them."""
    tokenized_bytes: int = 0
    """Size of the texts that were tokenized, in UTF-8."""
    is_aligned: bool = False
    """Whether the part holds a value for each token of another key, such as a loss mask, instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """The receipt of one attempt at a shard: small, and all that the driver needs."""

    shard: int
    num_lines: int
    num_blank: int
    num_records: int
    """Records kept."""
    num_quarantined: int
    text_bytes: int = 0
    """Size of its lines in the unpacked text."""
    keys: tuple[KeyResult, ...]
    provenance: StoredFile | None
    quarantine: StoredFile | None
    input_fingerprint: str | None
    """Fingerprint of the whole input when this shard was read, or of all its files."""
    files: StoredFile | None = None
    """The counts and the fingerprint of each file, as JSON, if the shard reads several."""
    num_filtered: int = 0
    """Records that `--where` or a sample leaves out."""
    counts: tuple[tuple[str, int], ...] = ()
    """Further named counts of a kind of shard, to be added up over shards."""

    def find_part(self, key: str) -> KeyResult:
        """Return the part of a key."""
        return next(part for part in self.keys if part.key == key)

    @property
    def stored_files(self) -> list[StoredFile]:
        """All files but those of tokens, which are removed once they are merged."""
        files = [self.provenance, self.quarantine, self.files]
        for key in self.keys:
            files += [key.idx, key.provenance]
        return [file for file in files if file is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The counts of one of several files of a shard, named as those of a shard."""

    num_lines: int
    num_blank: int
    num_records: int
    num_quarantined: int
    num_filtered: int
    kept_of_groups: tuple[int, ...]
    """Records kept in each sample; () if there is one."""
    text_bytes: int
    tokenized_bytes: tuple[int, ...]
    """Of each key."""
    input_fingerprint: str


Counts = TypeVar("Counts", ShardResult, FileResult)


def keep_only(counts: Counts, num_kept: int) -> Counts:
    """Return the counts with all but `num_kept` of their records filtered."""
    return replace(counts, num_records=num_kept, num_filtered=counts.num_filtered + counts.num_records - num_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of bytes in a file that becomes part of the output."""

    path: str
    identity: str
    """Identifies the file's bytes, whatever its path; files of different attempts have different identities."""
    offset: int
    size_bytes: int
    swapped_bytes: int = 1
    """Size of the items whose byte order is reversed; 1 to copy the bytes unchanged."""
    whole: StoredFile | None = None
    """The file of a shard; the piece with its last byte compares its digest. None for a file of somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One MMIDIDX dataset to merge."""

    bin_path: str
    idx_path: str
    identity: str
    """Identifies the bytes of both files, as for a piece."""
    bin_bytes: int
    header: IndexHeader
    bin: StoredFile | None = None
    """The tokens of a shard, with their digest; so too its index."""
    idx: StoredFile | None = None

    @property
    def piece(self) -> Piece:
        """The whole `.bin`."""
        path, size_bytes = self.bin_path, self.bin_bytes
        return Piece(path=path, identity=self.identity, offset=0, size_bytes=size_bytes, whole=self.bin)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRange:
    """Bytes [begin, end) of the output, and the pieces from which they are copied."""

    number: int
    begin: int
    end: int
    output: str
    pieces: tuple[Piece, ...]

    @property
    def identity(self) -> str:
        """Identifies the position of the range and its exact bytes."""
        made_of = [f"{self.begin} {self.end}"]
        made_of += [
            f"{piece.offset} {piece.size_bytes} {piece.swapped_bytes} {piece.identity}" for piece in self.pieces
        ]
        return xxhash.xxh3_128_hexdigest(name_bytes("\n".join(made_of)))
