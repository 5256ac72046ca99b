"""Repair from the remains of an `.idx`: the lengths and boundaries that exist and fit the `.bin`.

The pointers are not needed, since they are the running sum of the lengths. So the pointers may be wrong, the index may
be cut off anywhere after its lengths, and the `.bin` may be shorter (a crash, a full disk) or longer than the index
says. Pointers that are not wrong, but lead to the sequences in another order, are refused.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.amounts import count
from dsindex.dtypes import TOKEN_DTYPES
from dsindex.engine.merge import merged_header, write_merged_index
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import (
    BOUNDARY,
    CHUNK_ITEMS,
    HEADER_BYTES,
    LENGTH,
    MAGIC,
    MODE,
    POINTER,
    IndexBuilder,
    IndexHeader,
    write_index,
)
from dsindex.formats.new_files import NewFiles, new_file_error
from dsindex.store.reading import digest_file
from dsindex.store.storage import DigestingWriter, open_unbuffered, read_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.merge import Part


# The new files of a repair, which must not exist and appear complete or not at all.

COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result of a repair."""

    way: str
    """The source of the new files."""
    outputs: tuple[str, ...]
    num_documents: int
    num_sequences: int
    num_tokens: int
    lost: tuple[str, ...] = ()
    """Sentences about what is lost."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutputs:
    """The new files of a repair."""

    prefix: str
    index_only: bool
    """Write no `.bin`, since the existing one is intact and kept."""
    digests: Mapping[str, str]
    """The required digests of the new files by suffix, as far as they are known."""

    @property
    def idx_path(self) -> str:
        """Path of the new index."""
        return f"{self.prefix}.idx"

    @property
    def bin_path(self) -> str:
        """Path of the new tokens."""
        return f"{self.prefix}.bin"

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all new files."""
        return (self.idx_path,) if self.index_only else (self.bin_path, self.idx_path)

    @property
    def folder(self) -> str:
        """Folder for temporary files."""
        return os.path.dirname(self.prefix) or "."


def write_dataset(
    target: RepairOutputs, *, tokens: Callable[[DigestingWriter], None], index: Callable[[DigestingWriter], None]
) -> None:
    """Write the `.bin`, unless only an index is wanted, and the `.idx`; they appear together.

    Raises:
        FormatError: If a file does not have the required digest; nothing is then kept.
        OutputError: If a file exists or cannot be written.
    """
    parts = (("bin", tokens), ("idx", index))
    with NewFiles(target.paths) as files:
        for new, (suffix, write) in zip(files, parts[-len(files) :], strict=True):
            try:
                writer = DigestingWriter(new.file)
                write(writer)
            except OSError as error:
                raise new_file_error(new.path, error) from error
            _check_digest(target, suffix, writer)


def _check_digest(target: RepairOutputs, suffix: str, file: DigestingWriter) -> None:
    expected = target.digests.get(suffix)
    if expected is not None and file.hexdigest() != expected:
        raise FormatError(
            f"{target.prefix}.{suffix}: expected the digest {expected} of the manifest, got {file.hexdigest()} for the "
            f"restored file; it was not written"
        )


def require_digest(path: str, expected: str) -> None:
    """Check that a file on which a repair is based is intact.

    Raises:
        FormatError: If it is not.
    """
    try:
        got = digest_file(path)
    except InputError as error:
        raise FormatError(str(error)) from error
    if got != expected:
        msg = f"{path}: expected the digest {expected} of the manifest, got {got}; the tokens themselves are damaged"
        raise FormatError(msg)


def copy_bytes(path: str, size_bytes: int, file: DigestingWriter) -> None:
    """Copy the first bytes of a file.

    Raises:
        InputError: If the file cannot be read or is shorter.
        OSError: If the bytes cannot be written.
    """
    for chunk in _read_chunks(path, size_bytes):
        file.write(chunk)


def _read_chunks(path: str, size_bytes: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(max(1, min(COPY_BYTES, size_bytes))))
    with contextlib.ExitStack() as opened:
        for begin in range(0, size_bytes, COPY_BYTES):
            chunk = buffer[: min(COPY_BYTES, size_bytes - begin)]
            try:
                if begin == 0:
                    source = opened.enter_context(open_unbuffered(path))
                read_into(source.fileno(), chunk, begin)
            except EOFError as error:
                msg = f"{path}: expected {size_bytes} bytes, but it {error}; it changed during the repair"
                raise InputError(msg) from error
            except OSError as error:
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
            yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingIndex:
    """The usable part of an index."""

    prefix: str
    header: IndexHeader
    """The header as stored; with modes only if the file has exactly the size of an index with modes."""
    bin_bytes: int
    """Actual size of the `.bin`."""
    num_lengths: int
    """Leading sequences with a length in the index and all tokens in the `.bin`."""
    lengths_end: int
    """Byte of the `.bin` at which the last of these sequences ends."""
    num_boundaries: int
    """Leading boundaries that exist, never decrease and are within these sequences; 0 if there are none."""
    num_sequences: int
    """Sequences of complete documents, which is the last of these boundaries."""
    tokens_end: int
    """Byte of the `.bin` at which the last complete document ends."""

    @property
    def is_complete(self) -> bool:
        """Whether every document of the index is complete, and the `.bin` contains nothing else."""
        return (
            self.num_boundaries == self.header.num_boundaries
            and self.num_sequences == self.header.num_sequences
            and self.tokens_end == self.bin_bytes
        )


def examine_index(prefix: str, *, dtype: np.dtype[Any] | None = None) -> SurvivingIndex:
    """Find the usable part of an index, reading it once.

    Args:
        prefix: Path without suffix.
        dtype: Token type; None to use that of the file.

    Raises:
        FormatError: If no part is usable, or its pointers lead to the sequences in another order.
    """
    path = f"{prefix}.idx"
    try:
        bin_bytes = os.path.getsize(f"{prefix}.bin")
        with open_unbuffered(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header = _read_claims(path, file.read(HEADER_BYTES), size_bytes, dtype)
            num_lengths, lengths_end = _count_lengths(file.fileno(), header, size_bytes, bin_bytes)
            if num_lengths == header.num_sequences and size_bytes >= header.boundaries_offset:
                _refuse_another_order(path, file.fileno(), header)
            num_boundaries, num_sequences = _count_boundaries(file.fileno(), header, size_bytes, num_lengths)
            tokens = sum(
                int(chunk.sum(dtype=np.int64))
                for chunk in _items(file.fileno(), LENGTH, header.lengths_offset, num_sequences)
            )
    except OSError as error:
        raise FormatError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return SurvivingIndex(
        prefix=prefix,
        header=header,
        bin_bytes=bin_bytes,
        num_lengths=num_lengths,
        lengths_end=lengths_end,
        num_boundaries=num_boundaries,
        num_sequences=num_sequences,
        tokens_end=tokens * header.dtype.itemsize,
    )


def _read_claims(path: str, head: bytes, size_bytes: int, dtype: np.dtype[Any] | None) -> IndexHeader:
    """Read the header of an index, the rest of which may be missing."""
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        msg = f"{path}: expected the remains of an MMIDIDX index, got a file without its first {HEADER_BYTES} bytes"
        raise FormatError(msg)
    if dtype is None and head[17] not in TOKEN_DTYPES:
        raise FormatError(f"{path}: expected a token type code from 1 to 8, got {head[17]}; name the type with --dtype")
    num_sequences, num_boundaries = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    with_modes = IndexHeader(
        dtype=TOKEN_DTYPES[head[17]] if dtype is None else dtype,
        num_sequences=num_sequences,
        num_boundaries=num_boundaries,
        has_modes=True,
    )
    if num_sequences and size_bytes == with_modes.size_bytes:
        return with_modes
    return IndexHeader(
        dtype=with_modes.dtype, num_sequences=num_sequences, num_boundaries=num_boundaries, has_modes=False
    )


def _count_lengths(descriptor: int, header: IndexHeader, size_bytes: int, bin_bytes: int) -> tuple[int, int]:
    """Return the number of leading lengths that fit the `.bin`, and the byte at which the last of them ends in it."""
    there = min(header.num_sequences, max(0, size_bytes - header.lengths_offset) // LENGTH.itemsize)
    count = end = 0
    for chunk in _items(descriptor, LENGTH, header.lengths_offset, there):
        ends = end + np.cumsum(chunk.astype(np.int64) * header.dtype.itemsize)
        wrong = np.flatnonzero((chunk < 0) | (ends > bin_bytes))
        good = int(wrong[0]) if len(wrong) else len(chunk)
        count += good
        end = int(ends[good - 1]) if good else end
        if good < len(chunk):
            break
    return count, end


def _refuse_another_order(path: str, descriptor: int, header: IndexHeader) -> None:
    """Refuse pointers that cover the `.bin` without a gap, but in another order than that of the sequences."""
    count = header.num_sequences
    pointers = _items(descriptor, POINTER, header.pointers_offset, count)
    if not any(np.any(chunk[1:] < chunk[:-1]) for chunk in pointers):
        return
    every = np.concatenate(list(_items(descriptor, POINTER, header.pointers_offset, count)))
    lengths = np.concatenate(list(_items(descriptor, LENGTH, header.lengths_offset, count)))
    order = np.lexsort((lengths, every))
    ends = np.cumsum(lengths[order].astype(np.int64) * header.dtype.itemsize)
    if np.array_equal(every[order], np.concatenate(([0], ends[:-1]))):
        msg = f"{path}: its pointers are sound, but not in the order of the tokens; write the dataset again"
        raise FormatError(msg)


def _count_boundaries(descriptor: int, header: IndexHeader, size_bytes: int, num_lengths: int) -> tuple[int, int]:
    """Return the number of leading boundaries that can be valid, and the last of them."""
    there = min(header.num_boundaries, max(0, size_bytes - header.boundaries_offset) // BOUNDARY.itemsize)
    count = last = 0
    for chunk in _items(descriptor, BOUNDARY, header.boundaries_offset, there):
        if count == 0 and chunk[0] != 0:
            break
        wrong = np.flatnonzero((np.diff(chunk, prepend=last) < 0) | (chunk > num_lengths))
        good = int(wrong[0]) if len(wrong) else len(chunk)
        count += good
        last = int(chunk[good - 1]) if good else last
        if good < len(chunk):
            break
    return count, last


def _items(descriptor: int, dtype: np.dtype[Any], offset: int, count: int) -> Iterator[NDArray[Any]]:
    for begin in range(0, count, CHUNK_ITEMS):
        chunk = np.empty(min(CHUNK_ITEMS, count - begin), dtype)
        try:
            read_into(descriptor, chunk.data.cast("B"), offset + begin * dtype.itemsize)
        except EOFError as error:
            raise FormatError(f"the index {error}; it changed during the repair") from error
        yield chunk


def repair_by_index(found: SurvivingIndex, target: RepairOutputs, *, one_sequence_per_document: bool) -> RepairReport:
    """Write the documents that an index still describes.

    Args:
        found: The result of `examine_index`.
        target: The new files.
        one_sequence_per_document: Treat every sequence as a document, as the manifest says they are.

    Raises:
        FormatError: If no document is left, or the result does not have the digests of the target.
        OutputError: If the output cannot be written.
    """
    header = found.header
    if one_sequence_per_document:
        num_sequences, num_documents, end = found.num_lengths, found.num_lengths, found.lengths_end
    else:
        num_sequences, num_documents, end = found.num_sequences, max(0, found.num_boundaries - 1), found.tokens_end
    if num_documents == 0:
        raise FormatError(f"{found.prefix}.idx: expected at least one complete document in the remains, got none")
    if target.index_only and end != found.bin_bytes:
        raise FormatError(
            f"{found.prefix}.bin: expected {end} bytes for the documents that are left, got {found.bin_bytes}; "
            f"leave out --index-only, so that a .bin of that size is written as well"
        )
    restored = IndexHeader(
        dtype=header.dtype, num_sequences=num_sequences, num_boundaries=num_documents + 1, has_modes=header.has_modes
    )
    with open_unbuffered(f"{found.prefix}.idx") as source:
        descriptor = source.fileno()

        def boundaries() -> Iterator[NDArray[np.int64]]:
            if not one_sequence_per_document:
                yield from _items(descriptor, BOUNDARY, header.boundaries_offset, num_documents + 1)
                return
            for begin in range(0, num_documents + 1, CHUNK_ITEMS):
                yield np.arange(begin, min(begin + CHUNK_ITEMS, num_documents + 1), dtype=BOUNDARY)

        write_dataset(
            target,
            tokens=lambda file: copy_bytes(f"{found.prefix}.bin", end, file),
            index=lambda file: write_index(
                file,
                restored,
                lengths=lambda: _items(descriptor, LENGTH, header.lengths_offset, num_sequences),
                boundaries=boundaries,
                modes=(lambda: _items(descriptor, MODE, header.modes_offset, num_sequences))
                if header.has_modes
                else None,
            ),
        )
    return RepairReport(
        way="what is left of the .idx",
        outputs=target.paths,
        num_documents=num_documents,
        num_sequences=num_sequences,
        num_tokens=end // header.dtype.itemsize,
        lost=tuple(_describe_losses(found, num_documents, num_sequences, end)),
        notes=("every sequence was treated as a document",) if one_sequence_per_document else (),
    )


def _describe_losses(found: SurvivingIndex, num_documents: int, num_sequences: int, end: int) -> Iterator[str]:
    header = found.header
    if header.num_documents > num_documents:
        yield (
            f"{header.num_documents - num_documents} of {header.num_documents} documents, from document "
            f"{num_documents} on: their lengths, boundaries or tokens are missing"
        )
    if header.num_sequences > num_sequences:
        yield f"{header.num_sequences - num_sequences} of {header.num_sequences} sequences"
    if found.bin_bytes > end:
        yield (
            f"{found.bin_bytes - end} bytes at the end of {found.prefix}.bin, which belong to no document in the rest "
            f"of the index"
        )


# Repair from the shards of a work folder: merge the intact ones in plan order.


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
        outputs=target.paths,
        num_documents=header.num_documents,
        num_sequences=header.num_sequences,
        num_tokens=sum(part.bin_bytes for part in parts) // header.dtype.itemsize,
        lost=tuple(lost),
    )


# Repair from the tokens themselves, in which a document ends at every EOD.
#
# This is certain only if the manifest says that every document ends with EOD and no text contains one. With lengths
# from tokenizing the source again, the result is certain if they add up to an intact `.bin`.

CHUNK_BYTES = 4 << 20


def document_lengths(path: str, *, dtype: np.dtype[Any], eod_id: int) -> Iterator[NDArray[np.int64]]:
    """Yield the length of each document that ends with EOD, including EOD; tokens after the last EOD are left out.

    Raises:
        FormatError: If the file cannot be read.
    """
    before = 0  # tokens since the last EOD
    try:
        size_bytes = os.path.getsize(path) // dtype.itemsize * dtype.itemsize
        buffer = bytearray(min(CHUNK_BYTES, size_bytes))
        with open_unbuffered(path) as file:
            for begin in range(0, size_bytes, CHUNK_BYTES):
                chunk = memoryview(buffer)[: min(CHUNK_BYTES, size_bytes - begin)]
                read_into(file.fileno(), chunk, begin)
                tokens = np.frombuffer(chunk, dtype)
                ends = np.flatnonzero(tokens == eod_id) + 1
                if len(ends):
                    yield np.diff(ends, prepend=-before)
                    before = len(tokens) - int(ends[-1])
                else:
                    before += len(tokens)
    except (OSError, EOFError) as error:
        raise FormatError(f"{path}: cannot be read ({error})") from error


def repair_by_eod(
    bin_path: str,
    target: RepairOutputs,
    *,
    dtype: np.dtype[Any],
    eod_id: int,
    num_documents: int,
) -> RepairReport:
    """Cut a `.bin` into documents of one sequence at every EOD.

    Args:
        bin_path: The tokens.
        target: The new files.
        dtype: Type of the tokens.
        eod_id: The id that ends documents.
        num_documents: The required number of documents.

    Raises:
        FormatError: If there are not as many, or tokens after the last EOD.
        OutputError: If the output cannot be written.
    """

    def require_documents(builder: IndexBuilder, size_bytes: int) -> None:
        end = builder.num_tokens * dtype.itemsize
        if builder.num_documents != num_documents or end != size_bytes:
            raise FormatError(
                f"{bin_path}: expected {num_documents} documents that end with EOD ({eod_id}), got "
                f"{builder.num_documents} and {size_bytes - end} bytes after them; it does not match the manifest"
            )

    every = document_lengths(bin_path, dtype=dtype, eod_id=eod_id)
    batches = ((lengths, np.ones(len(lengths), np.int64)) for lengths in every)
    try:
        return _write_lengths(bin_path, target, dtype, batches, require_documents, way="EOD in the .bin")
    except OverflowError as error:  # no EOD for longer than an index can store
        raise FormatError(f"{bin_path}: {error}; it does not match the manifest") from error


def repair_by_lengths(
    bin_path: str,
    target: RepairOutputs,
    *,
    dtype: np.dtype[Any],
    batches: Iterable[tuple[NDArray[np.int32], NDArray[np.int32]]],
) -> RepairReport:
    """Write the index with the lengths from the source, for an intact `.bin`.

    Args:
        bin_path: The tokens, whose digest has been checked.
        target: The new files.
        dtype: Type of the tokens.
        batches: Tokens of each sequence, and sequences of each document, in order.

    Raises:
        FormatError: If the lengths do not add up to the `.bin`.
        OutputError: If the output cannot be written.
    """

    def require_size(builder: IndexBuilder, size_bytes: int) -> None:
        end = builder.num_tokens * dtype.itemsize
        if end != size_bytes:
            raise FormatError(
                f"{bin_path}: expected {end} bytes from the source, got {size_bytes}; build the dataset again"
            )

    return _write_lengths(bin_path, target, dtype, batches, require_size, way="the source, tokenized again")


def _write_lengths(
    bin_path: str,
    target: RepairOutputs,
    dtype: np.dtype[Any],
    batches: Iterable[tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]],
    check: Callable[[IndexBuilder, int], None],
    *,
    way: str,
) -> RepairReport:
    """Write a dataset by the tokens of each sequence and the sequences of each document."""
    builder = IndexBuilder(dtype, folder=target.folder)
    try:
        for lengths, sequences_per_document in batches:
            builder.add_documents(lengths, sequences_per_document)
        size_bytes = os.path.getsize(bin_path)
        check(builder, size_bytes)
        write_dataset(target, tokens=lambda file: copy_bytes(bin_path, size_bytes, file), index=builder.write)
    finally:
        builder.close()
    return RepairReport(
        way=way,
        outputs=target.paths,
        num_documents=builder.num_documents,
        num_sequences=builder.num_sequences,
        num_tokens=builder.num_tokens,
    )


def describe_repair(prefix: str, report: RepairReport) -> list[str]:
    """Return the result as text."""
    if not report.outputs:
        return [f"{prefix}: intact, nothing to repair and nothing written"]
    how = "restored IN PART" if report.lost else "restored"
    documents = count(report.num_documents, "document")
    lines = [
        f"{prefix}: {how} from {report.way}",
        f"  {documents}, {count(report.num_sequences, 'sequence')}, {count(report.num_tokens, 'token')}",
    ]
    lines += [f"  wrote: {path}" for path in report.outputs]
    lines += [f"  LOST: {loss}" for loss in report.lost]
    lines += [f"  note: {note}" for note in report.notes]
    return lines
