"""A dataset against the text that it was made of: tokenize again, and name the first document that differs.

A piece is either a run of documents, found in the inputs through the provenance, or, where there is none, a range of
an input whose first document is known from counting the records before it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.documents import LaidOutDocuments, lay_out_documents
from dsindex.errors import BadRecordError
from dsindex.formats.mmididx import read_index
from dsindex.provenance import count_rows, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.formats.mmididx import SequenceIndex
    from dsindex.text.engines import Engine
    from dsindex.text.records import RecordBlock
    from dsindex.text.tokenizer import Tokenizer

DOCUMENTS_PER_SLICE = 1 << 16
DOCUMENTS_PER_RUN = 16
"""Neighbours that a sample takes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInput:
    """One input as it lies here now."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What all pieces have in common; sent to every worker once."""

    prefix: str
    inputs: tuple[SourceInput, ...]
    key: str
    tokenizer: Tokenizer
    engine: Engine
    dtype: str
    eod_id: int | None
    """Appended where given."""
    max_record_bytes: int | None
    quarantine: bool
    """Bad records were set aside; otherwise there must be none."""
    provenance: str | None
    """Path of the provenance file, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSlice:
    """Documents [begin, end), or a sample of them."""

    begin: int
    end: int
    share: float
    """Of the documents, in (0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """The lines that begin in bytes [begin, end) of an input."""

    input: int
    begin: int
    end: int
    first_document: int
    first_line: int
    """1-based."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """How many lines and kept records a range has."""

    lines: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A document that is not what its source gives."""

    document: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceResult:
    """What one piece gave."""

    documents: int
    """Compared, up to the first that differs."""
    difference: Difference | None


def plan_slices(num_documents: int, share: float) -> list[DocumentSlice]:
    """Cut the documents into slices, of each of which a share is compared."""
    return [
        DocumentSlice(begin=begin, end=min(begin + DOCUMENTS_PER_SLICE, num_documents), share=share)
        for begin in range(0, num_documents, DOCUMENTS_PER_SLICE)
    ]


def choose_runs(piece: DocumentSlice) -> list[tuple[int, int]]:
    """Choose the documents to compare, by a hash of their numbers: the same every time and everywhere.

    >>> choose_runs(DocumentSlice(begin=0, end=40, share=1.0))
    [(0, 40)]
    >>> choose_runs(DocumentSlice(begin=0, end=40, share=0.1))
    [(32, 40)]
    """
    if piece.share >= 1:
        return [(piece.begin, piece.end)]
    runs = range(piece.begin, piece.end, DOCUMENTS_PER_RUN)
    wanted = max(1, -(-int(len(runs) * piece.share * 1e6) // 10**6))
    chosen = sorted(sorted(runs, key=lambda run: xxhash.xxh3_64_intdigest(run.to_bytes(8, "big")))[:wanted])
    return [(begin, min(begin + DOCUMENTS_PER_RUN, piece.end)) for begin in chosen]


def choose_ranges(ranges: Sequence[SourceRange], share: float) -> list[SourceRange]:
    """Choose a share of ranges in the same way."""
    if share >= 1:
        return list(ranges)
    order = sorted(ranges, key=lambda piece: xxhash.xxh3_64_intdigest(f"{piece.input} {piece.begin}".encode()))
    chosen = order[: max(1, -(-int(len(order) * share * 1e6) // 10**6))]
    return sorted(chosen, key=lambda piece: (piece.input, piece.begin))


def count_records(piece: SourceRange, settings: SourceSettings) -> RecordCounts:
    """Count lines and kept records of a range without encoding them."""
    lines = kept = 0
    for block in _read(piece, settings):
        lines += block.num_lines
        kept += len(block.offsets)
    return RecordCounts(lines=lines, kept=kept)


def compare_slice(piece: DocumentSlice, settings: SourceSettings) -> SourceResult:
    """Tokenize the chosen documents of a slice again, where the provenance says that they came from."""
    comparison = _Comparison(settings)
    path = settings.provenance or ""
    num_rows = count_rows(path)
    for begin, end in choose_runs(piece):
        before, after = max(0, begin - 1), min(end + 1, num_rows)
        inputs, offsets, lines = read_rows(path, before, after)
        own = slice(begin - before, end - before)
        cuts = np.flatnonzero(np.diff(inputs[own])) + 1
        for first, last in pairwise([0, *cuts.tolist(), end - begin]):
            low, high = own.start + first, own.start + last
            number = int(inputs[low])
            source = SourceRange(
                input=number,
                # In a whole comparison what lies between documents is read as well: nothing may be missing there.
                begin=0 if piece.share >= 1 and (low == 0 or inputs[low - 1] != number) else int(offsets[low]),
                end=_end_of_run(settings, number, inputs, offsets, high)
                if piece.share >= 1
                else int(offsets[high - 1]) + 1,
                first_document=begin + first,
                first_line=1,
            )
            comparison.compare(source, offsets[low:high], lines[low:high])
            if comparison.difference is not None:
                return comparison.result()
    return comparison.result()


def compare_range(piece: SourceRange, settings: SourceSettings) -> SourceResult:
    """Tokenize a range again and compare it with the documents that it must have given."""
    comparison = _Comparison(settings)
    comparison.compare(piece, None, None)
    return comparison.result()


def lay_out_range(piece: SourceRange, settings: SourceSettings) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Tokenize a range and give only what an index is made of.

    Returns:
        Tokens of each sequence, shape [sequences], and sequences of each document, shape [documents].
    """
    lengths, counts = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for block in _read(piece, settings):
        documents = _lay_out(block, settings)
        lengths.append(documents.sequence_lengths.astype(np.int32))
        counts.append(documents.sequences_per_document.astype(np.int32))
    return np.concatenate(lengths), np.concatenate(counts)


def _end_of_run(
    settings: SourceSettings, number: int, inputs: NDArray[np.int32], offsets: NDArray[np.int64], after: int
) -> int:
    """Give where the document after a run begins, or the end of the input."""
    if after < len(inputs) and inputs[after] == number:
        return int(offsets[after])
    return settings.inputs[number].size_bytes


def _read(piece: SourceRange, settings: SourceSettings) -> Iterator[RecordBlock]:
    """Read a range's records; a bad one is an error unless the build set bad records aside."""
    from dsindex.text.records import read_records  # pyarrow loads when it is used

    source = settings.inputs[piece.input]
    for block in read_records(
        source.path,
        piece.begin,
        min(piece.end, source.size_bytes),
        keys=(settings.key,),
        expected_size=source.size_bytes,
        max_record_bytes=settings.max_record_bytes,
    ):
        if block.bad and not settings.quarantine:
            raise BadRecordError(source.path, block.bad[0].offset, block.bad[0].reason)
        yield block


def _lay_out(block: RecordBlock, settings: SourceSettings) -> LaidOutDocuments:
    from dsindex.text.encoders import encoder_for_thread

    column = block.columns[settings.key]
    batch = encoder_for_thread(settings.tokenizer, settings.engine).encode(column.texts)
    return lay_out_documents(batch, column.texts_per_record, dtype=np.dtype(settings.dtype), eod_id=settings.eod_id)


class _Comparison:
    """Compares ranges until the first document that differs."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._index: SequenceIndex = read_index(f"{settings.prefix}.idx")
        self._tokens: NDArray[Any] = np.empty(0, self._index.dtype)
        if os.path.getsize(f"{settings.prefix}.bin"):
            self._tokens = np.memmap(f"{settings.prefix}.bin", dtype=self._index.dtype, mode="r")
        self._documents = 0
        self.difference: Difference | None = None

    def result(self) -> SourceResult:
        return SourceResult(documents=self._documents, difference=self.difference)

    def compare(self, piece: SourceRange, offsets: NDArray[np.int64] | None, lines: NDArray[np.int64] | None) -> None:
        """Compare a range's documents; `offsets` and `lines` are what the provenance says of them."""
        path = self._settings.inputs[piece.input].path
        document = piece.first_document
        for block in _read(piece, self._settings):
            done = document - piece.first_document
            if offsets is not None and lines is not None:
                wrong = _first_unlike(block.offsets, offsets[done : done + len(block.offsets)])
                if wrong is not None:
                    self._differs(document + wrong, f"the provenance does not lead to its record in {path}")
                    return
                block_lines = lines[done : done + len(block.offsets)]
            else:
                block_lines = block.lines + piece.first_line
            room = self._index.header.num_documents - document
            if len(block.offsets) > room:
                place = f"{path}, line {block_lines[room]}"
                self._differs(document + room, f"{place}, has a record, and the dataset ends before it")
                return
            found = self._first_difference(document, _lay_out(block, self._settings))
            if found is not None:
                at, what = found
                self._documents += at
                self._differs(document + at, f"{path}, line {block_lines[at]}, gives {what}")
                return
            document += len(block.offsets)
            self._documents += len(block.offsets)
        if offsets is not None and document - piece.first_document != len(offsets):
            self._differs(document, f"{path} ends before its record")

    def _differs(self, document: int, what: str) -> None:
        self.difference = Difference(
            document=document,
            sentence=f"{self._settings.prefix}: document {document} is not what its source gives: {what}; "
            f"restore the dataset's files, or build it again with --fresh",
        )

    def _first_difference(self, document: int, got: LaidOutDocuments) -> tuple[int, str] | None:
        """Compare documents with the dataset's from `document` on; give which is the first that differs, and how."""
        index, num_documents = self._index, len(got.sequences_per_document)
        boundaries = index.document_indices[document : document + num_documents + 1]
        begin, end = int(boundaries[0]), int(boundaries[-1])
        lengths = index.sequence_lengths[begin:end]
        at_byte = index.sequence_pointers[begin] if begin < index.header.num_sequences else 0
        first = int(at_byte) // index.dtype.itemsize
        tokens = self._tokens[first : first + int(lengths.sum(dtype=np.int64))]
        if (
            np.array_equal(np.diff(boundaries), got.sequences_per_document)
            and np.array_equal(lengths, got.sequence_lengths)
            and np.array_equal(tokens, got.tokens)
        ):
            return None
        theirs = _document_arrays(np.diff(boundaries), lengths, tokens)
        ours = _document_arrays(got.sequences_per_document, got.sequence_lengths, got.tokens)
        for number, (there, here) in enumerate(zip(theirs, ours, strict=True)):
            if not all(map(np.array_equal, there, here)):
                return number, _describe_difference(there, here)
        return None


Document = tuple["NDArray[Any]", "NDArray[Any]"]


def _document_arrays(counts: NDArray[Any], lengths: NDArray[Any], tokens: NDArray[Any]) -> Iterator[Document]:
    """Give each document's sequence lengths and tokens."""
    sequence = token = 0
    for count in counts.tolist():
        own = lengths[sequence : sequence + count]
        size = int(own.sum(dtype=np.int64))
        yield own, tokens[token : token + size]
        sequence, token = sequence + count, token + size


def _describe_difference(there: Document, here: Document) -> str:
    if len(there[1]) != len(here[1]):
        return f"{len(here[1])} tokens where the dataset has {len(there[1])}"
    token = _first_unlike(here[1], there[1])
    if token is None:
        return f"sequences of {here[0].tolist()[:8]} tokens where the dataset has {there[0].tolist()[:8]}"
    return f"token {token} as {here[1][token]} where the dataset has {there[1][token]}"


def _first_unlike(left: NDArray[Any], right: NDArray[Any]) -> int | None:
    """Find the first place where two arrays differ; a shorter one differs at its end."""
    size = min(len(left), len(right))
    wrong = np.flatnonzero(left[:size] != right[:size])
    if len(wrong):
        return int(wrong[0])
    return size if len(left) != len(right) and size < len(left) else None
