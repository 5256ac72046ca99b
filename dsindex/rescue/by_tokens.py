"""Repair from the tokens themselves, in which a document ends at every EOD.

This is certain only if the manifest says that every document ends with EOD and no text contains one; otherwise it is a
guess. With lengths from tokenizing the source again, the result is certain if they add up to an intact `.bin`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError, LimitError
from dsindex.formats.index_builder import IndexBuilder
from dsindex.regular_files import open_unbuffered
from dsindex.rescue.outputs import RepairOutputs, RepairReport, copy_bytes, write_dataset
from dsindex.storage import read_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

CHUNK_BYTES = 4 << 20
GUESS = (
    "empty documents, and EOD ids that came from a text, cannot be recognised in the .bin: "
    "the original documents may have been different"
)


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
        msg = f"{path}: cannot be read ({error})"
        raise FormatError(msg) from error


def repair_by_eod(
    bin_path: str,
    target: RepairOutputs,
    *,
    dtype: np.dtype[Any],
    eod_id: int,
    num_documents: int | None,
) -> RepairReport:
    """Cut a `.bin` into documents of one sequence at every EOD.

    Args:
        bin_path: The tokens.
        target: The new files.
        dtype: Type of the tokens.
        eod_id: The id that ends documents.
        num_documents: The required number of documents, if it is certain; None for a guess.

    Raises:
        FormatError: If there is no EOD, or not the required number.
        LimitError: If a document would be longer than an index can store.
        OutputError: If the output cannot be written.
    """
    builder = IndexBuilder(dtype, folder=target.folder)
    try:
        for lengths in document_lengths(bin_path, dtype=dtype, eod_id=eod_id):
            builder.add_documents(lengths, np.ones(len(lengths), np.int64))
        end = builder.num_tokens * dtype.itemsize
        size_bytes = os.path.getsize(bin_path)
        if num_documents is not None and (builder.num_documents != num_documents or end != size_bytes):
            msg = (
                f"{bin_path}: expected {num_documents} documents that end with EOD ({eod_id}), got "
                f"{builder.num_documents} and {size_bytes - end} bytes after them; it does not match the manifest"
            )
            raise FormatError(msg)
        if builder.num_documents == 0 and num_documents is None:
            msg = f"{bin_path}: expected documents that end with EOD ({eod_id}), got none; check --eod-id and --dtype"
            raise FormatError(msg)
        if target.index_only and end != size_bytes:
            msg = (
                f"{bin_path}: expected the last token to be EOD ({eod_id}), got {size_bytes - end} bytes after it; "
                f"leave out --index-only, so that a .bin without them is written as well"
            )
            raise FormatError(msg)
        write_dataset(target, tokens=lambda file: copy_bytes(bin_path, end, file), index=builder.write)
    except OverflowError as error:
        msg = f"{bin_path}: {error}; check --eod-id and --dtype"
        raise LimitError(msg) from error
    finally:
        builder.close()
    behind = f"{size_bytes - end} bytes at the end of {bin_path}, after the last EOD: an incomplete document"
    return RepairReport(
        way="EOD in the .bin",
        is_certain=num_documents is not None,
        outputs=target.paths,
        num_documents=builder.num_documents,
        num_sequences=builder.num_sequences,
        num_tokens=builder.num_tokens,
        lost=(behind,) if size_bytes > end else (),
        notes=() if num_documents is not None else (GUESS,),
    )


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
    builder = IndexBuilder(dtype, folder=target.folder)
    try:
        for lengths, sequences_per_document in batches:
            builder.add_documents(lengths, sequences_per_document)
        end, size_bytes = builder.num_tokens * dtype.itemsize, os.path.getsize(bin_path)
        if end != size_bytes:
            msg = f"{bin_path}: expected {end} bytes from the source, got {size_bytes}; build the dataset again"
            raise FormatError(msg)
        write_dataset(target, tokens=lambda file: copy_bytes(bin_path, end, file), index=builder.write)
    finally:
        builder.close()
    return RepairReport(
        way="the source, tokenized again",
        is_certain=True,
        outputs=target.paths,
        num_documents=builder.num_documents,
        num_sequences=builder.num_sequences,
        num_tokens=builder.num_tokens,
        lost=(),
        notes=(),
    )
