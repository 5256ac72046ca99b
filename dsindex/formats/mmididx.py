r"""The MMIDIDX format: `<prefix>.bin` holds tokens, `<prefix>.idx` the positions of sequences and documents.

    bytes 0-8    magic "MMIDIDX\0\0"
    9-16         version, 1                         <u8
    17           token type code                    u1   (dsindex.formats.dtypes)
    18-25        number of sequences S              <u8
    26-33        number of document boundaries D    <u8  (documents + 1)
    34-          sequence lengths, tokens           <i4[S]
                 sequence pointers, bytes in .bin   <i8[S]
                 document indices                   <i8[D]  first sequence of each document, then S
                 sequence modes, multimodal only    <i1[S]

Written and read by Megatron-LM, NeMo, Curator and datatrove. Source: megatron.core.datasets.indexed_dataset.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError, LimitError
from dsindex.formats.dtypes import TOKEN_DTYPES, dtype_code, starts_of
from dsindex.store.errors import reading
from dsindex.store.read import map_file, open_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.store.local import DigestingWriter


MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER_BYTES = 34
_TWO_FILES = "a dataset is a .bin and an .idx, named without these endings"
_HEADER = struct.Struct("<9sQBQQ")

LENGTH = np.dtype("<i4")
POINTER = np.dtype("<i8")
BOUNDARY = np.dtype("<i8")
MODE = np.dtype("<i1")
SECTIONS: dict[str, np.dtype[Any]] = {"lengths": LENGTH, "pointers": POINTER, "boundaries": BOUNDARY, "modes": MODE}
"""Name of each section → type of its items, in file order."""

CHUNK_ITEMS = 1 << 18
"""Items of a section held in memory at once while an index is written or checked."""
HELD_BYTES = 1 << 20
"""A larger spool of a section moves from memory to a temporary file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHeader:
    """The first 34 bytes of an `.idx`, checked against the file's size."""

    dtype: np.dtype[Any]
    num_sequences: int
    num_boundaries: int
    """Documents + 1."""
    has_modes: bool

    @property
    def num_documents(self) -> int:
        """Number of documents, including those without tokens."""
        return self.num_boundaries - 1

    @property
    def sections(self) -> dict[str, tuple[np.dtype[Any], int, int]]:
        """Name of each section → type of its items, byte offset in the file, and number of items."""
        offset, sections = HEADER_BYTES, {}
        for name, dtype in SECTIONS.items():
            count = self.num_boundaries if name == "boundaries" else self.num_sequences
            count = 0 if name == "modes" and not self.has_modes else count
            sections[name] = dtype, offset, count
            offset += count * dtype.itemsize
        return sections

    @property
    def size_bytes(self) -> int:
        """Exact size of the `.idx`."""
        return HEADER_BYTES + sum(dtype.itemsize * count for dtype, _, count in self.sections.values())

    def to_bytes(self) -> bytes:
        """Return the first 34 bytes of the file."""
        return _HEADER.pack(MAGIC, VERSION, dtype_code(self.dtype), self.num_sequences, self.num_boundaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceIndex:
    """An `.idx` as arrays over the mapped file."""

    header: IndexHeader
    sequence_lengths: NDArray[np.int32]
    """Tokens of each sequence, shape [S]."""
    sequence_pointers: NDArray[np.int64]
    """Byte position in `.bin` of each sequence's first token, shape [S]."""
    document_indices: NDArray[np.int64]
    """First sequence of each document, then S; shape [documents + 1]."""
    sequence_modes: NDArray[np.int8] | None
    """Modality of each sequence (0 is text), or None in a file without modes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The token type of the `.bin`."""
        return self.header.dtype

    def join_sequences(self) -> SequenceIndex:
        """Return an index of the same `.bin` in which each document is one sequence.

        Raises:
            LimitError: If a document has more than 2**31 - 1 tokens.
        """
        bounds = self.document_indices
        is_filled, lengths = np.diff(bounds) > 0, np.zeros(len(bounds) - 1, np.int64)
        if len(lengths) == len(self.sequence_lengths) and is_filled.all():
            return self
        if is_filled.any():
            lengths[is_filled] = np.add.reduceat(self.sequence_lengths, bounds[:-1][is_filled], dtype=np.int64)
        if lengths.max(initial=0) > np.iinfo(np.int32).max:
            raise LimitError(f"document {lengths.argmax()} has {lengths.max()} tokens, more than 2**31 - 1")
        pointers = starts_of(lengths)[:-1] * self.dtype.itemsize
        numbers = np.arange(len(bounds))
        return replace(
            self, sequence_lengths=lengths.astype(np.int32), sequence_pointers=pointers, document_indices=numbers
        )


def read_header(idx_path: str) -> IndexHeader:
    """Read the header of an `.idx`, and check it against the file's size.

    Raises:
        FormatError: If the file is missing, too short, not MMIDIDX, of another version, or its size does not match its
            counts.
    """
    with reading(idx_path, FormatError, hint=_TWO_FILES), open_readable(idx_path) as file:
        head, size_bytes = file.read_at(HEADER_BYTES, 0), file.size_bytes
    return _parse_header(idx_path, head, size_bytes)


def _parse_header(idx_path: str, head: bytes, size_bytes: int) -> IndexHeader:
    refuse_foreign_index(idx_path, head)
    if not head.startswith(MAGIC):
        raise FormatError(f"{idx_path}: not an MMIDIDX index: it begins with {head[:9]!r}, not {MAGIC!r}")
    if len(head) < HEADER_BYTES:
        raise FormatError(f"{idx_path}: cut off: it has {len(head)} bytes, and its header alone has {HEADER_BYTES}")
    _, version, code, num_sequences, num_boundaries = _HEADER.unpack(head)
    if version != VERSION:
        raise FormatError(f"{idx_path}: MMIDIDX version {version} is not supported, only version {VERSION}")
    if code not in TOKEN_DTYPES:
        raise FormatError(f"{idx_path}: unknown token type code {code}; the codes are 1 to 8")
    header = IndexHeader(
        dtype=TOKEN_DTYPES[code], num_sequences=num_sequences, num_boundaries=num_boundaries, has_modes=False
    )
    with_modes = replace(header, has_modes=True)
    fitting = next((candidate for candidate in (header, with_modes) if candidate.size_bytes == size_bytes), None)
    if fitting is None:
        raise FormatError(
            f"{idx_path}: damaged or cut off: it has {size_bytes} bytes; {num_sequences} sequences and "
            f"{num_boundaries} document boundaries take {header.size_bytes}, or with modes {with_modes.size_bytes}"
        )
    return fitting


def refuse_foreign_index(idx_path: str, head: bytes) -> None:
    """Refuse an index of fairseq, which GPT-NeoX and old Megatron-LM wrote with --dataset-impl lazy or cached.

    Raises:
        FormatError: If the file begins like such an index.
    """
    if head.startswith(b"TNTIDX"):
        problem = "this is a TNTIDX index of fairseq, which --dataset-impl lazy or cached wrote, not an MMIDIDX index"
        raise FormatError(f"{idx_path}: {problem}", hint="tokenize the text again: dsindex build")


def read_index(idx_path: str) -> SequenceIndex:
    """Map an `.idx` in constant time, whatever its size. The arrays are not checked; see `check_index`.

    Raises:
        FormatError: As `read_header`.
    """
    with reading(idx_path, FormatError, hint=_TWO_FILES):
        buffer = map_file(idx_path)
    header = _parse_header(idx_path, buffer[:HEADER_BYTES], len(buffer))

    def items(name: str) -> NDArray[Any]:
        dtype, offset, count = header.sections[name]
        return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset)

    return SequenceIndex(
        header=header,
        sequence_lengths=items("lengths"),
        sequence_pointers=items("pointers"),
        document_indices=items("boundaries"),
        sequence_modes=items("modes") if header.has_modes else None,
    )


def check_index(idx_path: str, index: SequenceIndex, *, bin_size_bytes: int | None, every_entry: bool = True) -> None:
    """Check an index: boundaries run from 0 to S and do not decrease, pointers are the running sum of the lengths.

    Args:
        idx_path: The file's name in errors.
        index: The result of `read_index`.
        bin_size_bytes: Size of the `.bin`; None if it is missing, and is not checked.
        every_entry: Check all entries; if false, only the first and the last ones, in constant time.

    Raises:
        FormatError: At the first wrong entry, or if the last sequence does not end where the `.bin` does.
    """
    _check_boundaries(idx_path, index, every_entry=every_entry)
    num_sequences, end = index.header.num_sequences, 0
    chunks = range(0, num_sequences, CHUNK_ITEMS)
    if not every_entry and num_sequences:
        if index.sequence_pointers[0] != 0:
            begin = index.sequence_pointers[0]
            raise FormatError(f"{idx_path}: sequence 0 begins at byte {begin} of the .bin instead of byte 0")
        end, chunks = int(index.sequence_pointers[-1]), range(num_sequences - 1, num_sequences)
    for begin in chunks:
        end = _check_pointers(idx_path, index, begin, end)
    if bin_size_bytes not in {None, end}:
        problem = f"its sequences take {end} bytes, and the .bin has {bin_size_bytes}"
        raise FormatError(f"{idx_path}: {problem}; they do not belong together")


def _check_boundaries(idx_path: str, index: SequenceIndex, *, every_entry: bool) -> None:
    boundaries, num_sequences = index.document_indices, index.header.num_sequences
    if len(boundaries) == 0 or boundaries[0] != 0:
        first = "missing" if len(boundaries) == 0 else f"{boundaries[0]} instead of 0"
        raise FormatError(f"{idx_path}: the first document boundary is {first}")
    if boundaries[-1] < num_sequences:
        orphans = f"sequences from {boundaries[-1]} to {num_sequences - 1} belong to no document"
        cause = "which happens if merge_file_ of old Megatron-LM joined the files"
        raise FormatError(f"{idx_path}: {orphans}, {cause}", hint="merge the parts again: dsindex merge")
    if boundaries[-1] != num_sequences:
        problem = f"the last document boundary is {boundaries[-1]} instead of {num_sequences}"
        raise FormatError(f"{idx_path}: {problem}")
    for begin in range(0, len(boundaries) - 1, CHUNK_ITEMS) if every_entry else ():
        chunk = boundaries[begin : begin + CHUNK_ITEMS + 1]
        falls = np.flatnonzero(chunk[1:] < chunk[:-1])
        if len(falls):
            disorder = f"document {begin + falls[0]} ends at sequence {chunk[falls[0] + 1]}, before it begins"
            raise FormatError(f"{idx_path}: {disorder}")


def _check_pointers(idx_path: str, index: SequenceIndex, begin: int, start: int) -> int:
    """Check a chunk of sequences that begins at byte `start` of the `.bin`; return the byte at which it ends."""
    lengths = index.sequence_lengths[begin : begin + CHUNK_ITEMS].astype(np.int64)
    if lengths.min() < 0:
        position = int(np.flatnonzero(lengths < 0)[0])
        raise FormatError(f"{idx_path}: sequence {begin + position} has the negative length {lengths[position]}")
    ends = start + np.cumsum(lengths * index.dtype.itemsize)
    pointers, expected = index.sequence_pointers[begin : begin + CHUNK_ITEMS], np.concatenate(([start], ends[:-1]))
    wrong_positions = np.flatnonzero(pointers != expected)
    if len(wrong_positions):
        problem = f"sequence {begin + wrong_positions[0]} begins at byte {pointers[wrong_positions[0]]} of the .bin"
        raise FormatError(f"{idx_path}: {problem} instead of byte {expected[wrong_positions[0]]}")
    return int(ends[-1])


def write_index(file: DigestingWriter, header: IndexHeader, read: Callable[[str], Iterable[NDArray[Any]]]) -> None:
    """Write an `.idx` as a stream, holding one chunk in memory, whatever the number of documents.

    Args:
        file: The file to append to.
        header: Its counts must match the sections.
        read: Yields the chunks of a section, given its name; "boundaries" include the leading 0 and the closing S.
            "lengths" is read twice, since the pointers are computed from it.

    Raises:
        ValueError: If the sections do not match the counts in the header.
    """
    start = file.size_bytes
    file.write(header.to_bytes())
    for name, (dtype, _, count) in header.sections.items():
        if count:
            for chunk in _pointers(read("lengths"), header.dtype.itemsize) if name == "pointers" else read(name):
                file.write(np.ascontiguousarray(chunk, dtype=dtype).data)
    if file.size_bytes - start != header.size_bytes:
        sections = f"sections of {file.size_bytes - start} bytes"
        raise ValueError(f"{sections} do not match the header, which says {header.size_bytes}")


def _pointers(lengths: Iterable[NDArray[np.int32]], token_bytes: int) -> Iterator[NDArray[np.int64]]:
    end = 0
    for chunk in lengths:
        starts = end + starts_of(chunk.astype(np.int64) * token_bytes)
        yield starts[:-1]
        end = int(starts[-1])


class IndexBuilder:
    """Collect the lengths and boundaries of a dataset that is being written, then write its index, in bounded memory.

    Sections are spooled, since their positions depend on counts known only at the end.
    """

    def __init__(self, dtype: np.dtype[Any], *, folder: str) -> None:
        self._dtype = dtype
        self._spools = {
            name: tempfile.SpooledTemporaryFile[bytes](HELD_BYTES, dir=folder)
            for name in ("lengths", "boundaries", "modes")
        }
        self.num_sequences = 0
        self.num_documents = 0
        self.num_tokens = 0
        self._has_modes = False
        self._spools["boundaries"].write(bytes(BOUNDARY.itemsize))

    def append(self, section: str, items: NDArray[Any]) -> None:
        """Append items to a section as the file stores them; for "boundaries", the leading 0 is already there."""
        self._spools[section].write(np.ascontiguousarray(items, SECTIONS[section]).data)
        if section == "lengths":
            self.num_sequences += len(items)
            self.num_tokens += int(items.sum(dtype=np.int64))
        elif section == "boundaries":
            self.num_documents += len(items)
        else:
            self._has_modes = True

    def add_documents(
        self, sequence_lengths: NDArray[np.integer[Any]], sequences_per_document: NDArray[np.integer[Any]]
    ) -> None:
        """Append documents.

        Args:
            sequence_lengths: Tokens of each sequence, shape [sequences], each in [0, 2**31).
            sequences_per_document: Shape [documents], summing to `sequences`; 0 for a document without tokens.

        Raises:
            OverflowError: If a sequence is longer than the format can store.
        """
        if len(sequence_lengths) and int(sequence_lengths.max()) > np.iinfo(LENGTH).max:
            longest = int(sequence_lengths.max())
            raise OverflowError(f"a sequence of {longest:,} tokens is too long for MMIDIDX (at most 2**31 - 1)")
        self.append("boundaries", self.num_sequences + np.cumsum(sequences_per_document))
        self.append("lengths", sequence_lengths)

    def write(self, file: DigestingWriter) -> None:
        """Write the index of all documents that were added."""
        header = IndexHeader(
            dtype=self._dtype,
            num_sequences=self.num_sequences,
            num_boundaries=self.num_documents + 1,
            has_modes=self._has_modes,
        )
        write_index(file, header, self._read)

    def close(self) -> None:
        """Release the temporary files."""
        for spool in self._spools.values():
            with contextlib.suppress(OSError):  # the buffer may not fit on a full disk, and is not needed
                spool.close()

    def _read(self, name: str) -> Iterator[NDArray[Any]]:
        self._spools[name].seek(0)
        while data := self._spools[name].read(CHUNK_ITEMS * SECTIONS[name].itemsize):
            yield np.frombuffer(data, SECTIONS[name])
