"""Check an `.idx` against its `.bin`: every entry of the index, and EOD at the end of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.formats.token_array import open_token_array
from dsindex.objects.requests import MissingObjectError
from dsindex.objects.urls import is_url
from dsindex.readable import open_readable, open_stored
from dsindex.storage import BlockDigester, digest_file

if TYPE_CHECKING:
    from dsindex.formats.mmididx import SequenceIndex

DOCUMENTS_PER_PIECE = 1 << 20
_SHOWN = 3
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPiece:
    """Documents [begin, end) of a dataset, whose last tokens must be EOD."""

    prefix: str
    begin: int
    end: int
    eod_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCounts:
    """The counts of an intact index, for comparison with a manifest."""

    num_sequences: int
    num_documents: int
    num_tokens: int
    num_empty_documents: int
    token_dtype: str


def verify_index(prefix: str) -> tuple[IndexCounts | None, list[str]]:
    """Check every entry of an `.idx` against the `.bin` beside it.

    Returns:
        The counts (None for a damaged index), and findings.
    """
    try:
        with open_readable(f"{prefix}.bin") as file:
            bin_bytes = file.size_bytes
    except MissingObjectError as error:
        return None, [str(error)]
    except OSError as error:
        return None, [f"{prefix}.bin: cannot be read ({error.strerror}); restore it, or build the dataset again"]
    try:
        index = read_index(f"{prefix}.idx")
        check_index(f"{prefix}.idx", index, bin_size_bytes=bin_bytes)
    except MissingObjectError as error:
        return None, [str(error)]
    except FormatError as error:
        return None, [f"{error}; try: dsindex repair {prefix} --output NEW_PREFIX"]
    counts = IndexCounts(
        num_sequences=index.header.num_sequences,
        num_documents=index.header.num_documents,
        num_tokens=bin_bytes // index.dtype.itemsize,
        num_empty_documents=_count_empty(index),
        token_dtype=str(index.dtype),
    )
    return counts, []


def _count_empty(index: SequenceIndex) -> int:
    empty = 0
    for begin in range(0, index.header.num_documents, DOCUMENTS_PER_PIECE):
        boundaries = index.document_indices[begin : begin + DOCUMENTS_PER_PIECE + 1]
        empty += int(np.count_nonzero(boundaries[1:] == boundaries[:-1]))
    return empty


def verify_ends(piece: DocumentPiece) -> list[str]:
    """Find documents that have tokens and do not end with EOD. The index must be intact."""
    index = read_index(f"{piece.prefix}.idx")
    if index.header.num_sequences == 0:
        return []
    boundaries = index.document_indices[piece.begin : piece.end + 1]
    has_tokens = np.flatnonzero(boundaries[1:] > boundaries[:-1])
    last = boundaries[1:][has_tokens] - 1
    ends = index.sequence_pointers[last] // index.dtype.itemsize + index.sequence_lengths[last] - 1
    # A document whose last sequence is empty cannot end with EOD: the token before its end is another document's.
    hollow = index.sequence_lengths[last] == 0
    tokens, _ = open_token_array(f"{piece.prefix}.bin", index.dtype)
    values = tokens[np.maximum(ends, 0)] if len(tokens) else np.full(len(ends), -1, np.int64)
    wrong = np.flatnonzero(hollow | (values != piece.eod_id))
    return [
        f"{piece.prefix}: expected document {piece.begin + has_tokens[at]} to end with EOD ({piece.eod_id}), "
        f"got {'no token' if hollow[at] else values[at]}; its tokens or boundaries were changed, restore the files"
        for at in wrong[:_SHOWN]
    ]


def verify_quarantine(path: str, expected: int) -> list[str]:
    """Compare the number of lines of a quarantine file with the manifest."""
    import pyarrow as pa

    lines = 0
    try:
        with open_stored(path) as file, pa.input_stream(file, compression="zstd") as stream:
            while chunk := stream.read(1 << 20):
                lines += chunk.count(b"\n")
    except (OSError, pa.ArrowException) as error:
        return [f"{path}: cannot be read as a quarantine file ({error}); restore it or build again"]
    if lines == expected:
        return []
    return [
        f"{path}: expected {expected} quarantined records as in the manifest, got {lines}; restore it or build again"
    ]


def verify_digest(path: str, expected: str) -> list[str]:
    """Compare a file with its digest."""
    try:
        got = _digest_object(path) if is_url(path) else digest_file(path)
    except InputError as error:
        return [str(error)]
    if got == expected:
        return []
    return [f"{path}: expected the digest {expected}, got {got}; its content changed, restore or repair it"]


def _digest_object(url: str) -> str:
    digester = BlockDigester()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open_readable(url) as file:
        file.expect_forwards(0, file.size_bytes)
        for begin in range(0, file.size_bytes, _CHUNK_BYTES):
            digester.update(buffer[: file.read_into(buffer, begin)])
    return digester.hexdigest()
