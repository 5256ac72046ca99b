"""Read the documents of a dataset by their numbers, from an MMIDIDX pair or a `.pbin`, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.dtypes import starts_of
from dsindex.errors import FormatError, InputError, MissingObjectError
from dsindex.formats.mmididx import check_index, open_token_array, read_index
from dsindex.formats.pbin import open_tokens, read_document_lengths
from dsindex.index.cache import count_tokens
from dsindex.store.reading import digest_file, open_readable, open_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.formats.mmididx import SequenceIndex
    from dsindex.formats.pbin import PbinHeader


# Check an `.idx` against its `.bin`: every entry of the index, and EOD at the end of documents.

DOCUMENTS_PER_PIECE = 1 << 20
_SHOWN = 3
STRUCTURE = "structure of the .idx, and every entry against the .bin"


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
        return None, [f"{error}; restore the dataset or build it again"]
    counts = IndexCounts(
        num_sequences=index.header.num_sequences,
        num_documents=index.header.num_documents,
        num_tokens=count_tokens(index.sequence_lengths),
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
        got = digest_file(path)
    except InputError as error:
        return [str(error)]
    if got == expected:
        return []
    return [f"{path}: expected the digest {expected}, got {got}; its content changed, restore it or build it again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRun:
    """Consecutive documents of a dataset."""

    first_document: int
    first_token: int
    num_tokens: int
    lengths: NDArray[np.int64]
    """Tokens of each document, shape [documents]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Consecutive documents."""

    sequences_per_document: NDArray[Any]
    """Number of sequences of each document, shape [documents]."""
    sequence_lengths: NDArray[Any]
    """Tokens of each sequence, shape [sequences]."""
    tokens: NDArray[Any]
    """Token ids of all sequences, shape [tokens]."""


StoredDocuments: TypeAlias = "IndexedDocuments | PbinDocuments"
"""Documents of a dataset that can be read by number; `end` is one past the number of the last."""


class IndexedDocuments:
    """All documents of an MMIDIDX dataset, whose index must be intact."""

    def __init__(self, prefix: str) -> None:
        self._index = read_index(f"{prefix}.idx")
        self._tokens, _ = open_token_array(f"{prefix}.bin", self._index.dtype)
        self.end = self._index.header.num_documents

    def read(self, first: int, count: int) -> Documents:
        """Return the documents [first, first + count)."""
        index = self._index
        boundaries = index.document_indices[first : first + count + 1]
        begin, end = int(boundaries[0]), int(boundaries[-1])
        lengths = index.sequence_lengths[begin:end]
        at_byte = index.sequence_pointers[begin] if begin < index.header.num_sequences else 0
        token = int(at_byte) // index.dtype.itemsize
        return Documents(
            sequences_per_document=np.diff(boundaries),
            sequence_lengths=lengths,
            tokens=self._tokens[token : token + int(lengths.sum(dtype=np.int64))],
        )


class PbinDocuments:
    """A run of documents of a `.pbin`."""

    def __init__(self, path: str, header: PbinHeader, run: DocumentRun) -> None:
        self._run = run
        self._tokens = open_tokens(path, header)
        self._ends = run.first_token + starts_of(run.lengths)
        self.end = run.first_document + len(run.lengths)

    def read(self, first: int, count: int) -> Documents:
        """Return the documents [first, first + count)."""
        begin = first - self._run.first_document
        return Documents(
            sequences_per_document=np.ones(count, np.int64),
            sequence_lengths=self._run.lengths[begin : begin + count],
            tokens=self._tokens[self._ends[begin] : self._ends[begin + count]],
        )


def read_runs(path: str, header: PbinHeader, bounds: Iterable[tuple[int, int]]) -> Iterator[DocumentRun]:
    """Read runs of documents in one pass over the index of a `.pbin`, which can only be read from its beginning.

    Args:
        path: The file.
        header: Its header.
        bounds: First document of each run and one past its last, ascending, without overlap; runs are shorter if the
            file has fewer documents.

    Raises:
        FormatError: If the index is damaged.
    """
    chunks = iter([read_document_lengths(path, header)])
    held = np.empty(0, np.int64)
    document = token = 0
    for begin, end in bounds:
        while True:
            passed = held[: begin - document]
            document, token = document + len(passed), token + int(passed.sum())
            held = held[len(passed) :]
            chunk = next(chunks, None) if document + len(held) < end else None
            if chunk is None:
                break
            held = np.concatenate((held, chunk))
        lengths = held[: end - begin]
        yield DocumentRun(first_document=begin, first_token=token, num_tokens=int(lengths.sum()), lengths=lengths)


# What the files of a dataset without a manifest say about the program that wrote them.

DOCUMENTS_LOOKED_AT = 1 << 20
"""Documents from which the rule for empty texts is told."""


def describe_empty_texts(prefix: str) -> str | None:
    """Return a sentence about what texts without tokens became; None if there are none, or it cannot be told.

    Args:
        prefix: A dataset with an intact index.
    """
    index = read_index(f"{prefix}.idx")
    number = min(index.header.num_documents, DOCUMENTS_LOOKED_AT)
    boundaries = index.document_indices[: number + 1]
    num_kept = int(np.count_nonzero(boundaries[1:] == boundaries[:-1]))
    if num_kept:
        return f"{num_kept} texts without tokens are empty documents, as by preprocess_data.py (--empty-documents keep)"
    lengths = index.sequence_lengths[: boundaries[-1]]
    num_zero = int(np.count_nonzero(lengths == 0))
    if num_zero:
        return f"{num_zero} sequences have length 0, as texts without tokens by preprocess_data_fast.py"
    num_eod = _count_eod_alone(prefix, index, boundaries.astype(np.int64))
    if num_eod:
        return f"{num_eod} texts without tokens are EOD alone, as by preprocess_data_fast.py (--empty-documents eod)"
    return None


def _count_eod_alone(prefix: str, index: SequenceIndex, boundaries: NDArray[np.int64]) -> int:
    """Count the documents of one token that are the last token of every document; 0 if documents end differently."""
    tokens, size_bytes = open_token_array(f"{prefix}.bin", index.dtype)
    if len(boundaries) < 2 or not size_bytes:
        return 0
    last = boundaries[1:] - 1
    ends = index.sequence_pointers[last] // index.dtype.itemsize + index.sequence_lengths[last] - 1
    values = tokens[ends]
    alone = (np.diff(boundaries) == 1) & (index.sequence_lengths[last] == 1)
    return int(np.count_nonzero(alone)) if (values == values[0]).all() and not alone.all() else 0
