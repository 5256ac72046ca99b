"""Compare a dataset with its source text: tokenize again, and report the first document that differs.

A piece is either a run of documents, found in the inputs through the provenance, or, without provenance, a range of an
input whose first document is known from counting the records before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash

from dsindex.checks.stored import IndexedDocuments, PbinDocuments, ShuffledDocuments
from dsindex.errors import BadRecordError
from dsindex.shards.layout import LaidOutDocuments, lay_out_documents, lay_out_pbin_documents
from dsindex.shards.provenance import count_rows, read_rows
from dsindex.text.forms import JSON_LINES, InputForm, TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.checks.stored import Documents, PbinRun, StoredDocuments
    from dsindex.formats.pbin import PbinHeader
    from dsindex.text.engines import Engine
    from dsindex.text.patterns import TextPattern
    from dsindex.text.record_blocks import RecordBlock
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer

DOCUMENTS_PER_SLICE = 1 << 16
DOCUMENTS_PER_RUN = 16
"""Consecutive documents that a sample takes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInput:
    """One input in its current state."""

    path: str
    size_bytes: int
    form: InputForm = JSON_LINES
    share: float | None = None
    """Share of its records that was kept; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings that all pieces share; sent to every worker once."""

    dataset: str
    """A prefix, or the path of a `.pbin`."""
    pbin: PbinHeader | None
    """Header of the `.pbin`; None for an MMIDIDX pair."""
    inputs: tuple[SourceInput, ...]
    key: str
    pattern: TextPattern | None
    """Selects the one text of a record; `key` is then its column."""
    selection: Selection | None = None
    """The records to keep and the values to read; `key` is its output."""
    tokenizer: Tokenizer
    engine: Engine
    dtype: str
    eod_id: int | None
    """Appended to documents; None to append nothing."""
    empty_documents: Literal["keep", "eod"] = "keep"
    """What a document without tokens becomes, as `lay_out_documents` says."""
    max_record_bytes: int | None
    quarantine: bool
    """Whether bad records were quarantined; otherwise there must be none."""
    provenance: str | None
    """Path of the provenance file, if there is one."""
    sample: float | None = None
    """Share of the records of every input that was kept; None: all."""
    shuffle_seed: int | None = None
    """Seed of the documents' order; None: that of the inputs."""

    @property
    def has_offsets(self) -> bool:
        """Whether records can be read where the provenance says, as only plain lines allow."""
        return all(file.form.can_seek for file in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSlice:
    """Documents [begin, end), or a sample of them."""

    begin: int
    end: int
    share: float
    """Share of the documents to compare, in (0, 1]."""
    run: PbinRun | None = None
    """The same documents in a `.pbin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """A part of an input: the lines that begin in the byte range [begin, end), or row groups of a table."""

    input: int
    begin: int
    end: int
    first_document: int
    num_documents: int | None
    """Documents of its records; None if they have not been counted."""
    first_line: int
    """Number of the first line, from 1."""
    run: PbinRun | None = None
    """Documents of a `.pbin` with which the range is compared."""
    positions: NDArray[np.int64] | None = None
    """Place of each document in a shuffled dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """The numbers of lines and documents of a range."""

    lines: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A document that differs from its source."""

    document: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceResult:
    """The result of one piece."""

    documents: int
    """Number of documents compared, up to the first that differs."""
    difference: Difference | None


def plan_slices(num_documents: int, share: float) -> list[DocumentSlice]:
    """Cut the documents into slices; a share of each slice is compared."""
    return [
        DocumentSlice(begin=begin, end=min(begin + DOCUMENTS_PER_SLICE, num_documents), share=share)
        for begin in range(0, num_documents, DOCUMENTS_PER_SLICE)
    ]


def choose_runs(piece: DocumentSlice) -> list[tuple[int, int]]:
    """Choose the documents to compare by a hash of their numbers, which is the same every time and everywhere.

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
    """Choose a share of ranges by a hash, as `choose_runs` does."""
    if share >= 1:
        return list(ranges)
    order = sorted(ranges, key=lambda piece: xxhash.xxh3_64_intdigest(f"{piece.input} {piece.begin}".encode()))
    chosen = order[: max(1, -(-int(len(order) * share * 1e6) // 10**6))]
    return sorted(chosen, key=lambda piece: (piece.input, piece.begin))


def count_records(piece: SourceRange, settings: SourceSettings) -> RecordCounts:
    """Count lines and documents of a range; only a packed layout must be encoded for this."""
    lines = documents = 0
    for block in _read(piece, settings):
        lines += block.num_lines
        if settings.pbin is None:
            documents += len(block.offsets)
        else:
            documents += len(_lay_out(block, settings).sequences_per_document)
    return RecordCounts(lines=lines, documents=documents)


def compare_slice(piece: DocumentSlice, settings: SourceSettings) -> SourceResult:
    """Tokenize the chosen documents of a slice again, reading them where the provenance points."""
    comparison = _Comparison(settings, piece.run)
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
                # A full comparison also reads the text between documents, where none may be missing.
                begin=0 if piece.share >= 1 and (low == 0 or inputs[low - 1] != number) else int(offsets[low]),
                end=_end_of_run(settings, number, inputs, offsets, high)
                if piece.share >= 1
                else min(int(offsets[high - 1]) + 1, settings.inputs[number].size_bytes),
                first_document=begin + first,
                num_documents=last - first,
                first_line=1,
            )
            comparison.compare(source, offsets[low:high], lines[low:high])
            if comparison.difference is not None:
                return comparison.result()
    return comparison.result()


def compare_range(piece: SourceRange, settings: SourceSettings) -> SourceResult:
    """Tokenize a range again and compare it with its documents."""
    stored = None
    if piece.positions is not None:
        stored = ShuffledDocuments(settings.dataset, piece.first_document, piece.positions)
    comparison = _Comparison(settings, piece.run, stored)
    comparison.compare(piece, None, None)
    return comparison.result()


def lay_out_range(piece: SourceRange, settings: SourceSettings) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Tokenize a range and return only the lengths for an index.

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
    """Return the offset at which the document after a run begins, or the end of the input."""
    if after < len(inputs) and inputs[after] == number:
        return int(offsets[after])
    return settings.inputs[number].size_bytes


def _read(piece: SourceRange, settings: SourceSettings) -> Iterator[RecordBlock]:
    """Read a range's records; a bad one is an error unless the build quarantined bad records."""
    from dsindex.text.parts import read_part  # loads pyarrow, only when needed
    from dsindex.text.sampling import sample_records

    source = settings.inputs[piece.input]
    shares = tuple(share for share in (settings.sample, source.share) if share is not None)
    part = TextPart(
        path=source.path, begin=piece.begin, end=piece.end, form=source.form, expected_size=source.size_bytes
    )
    for block in read_part(
        part,
        keys=(settings.key,),
        pattern=settings.pattern,
        selection=settings.selection,
        max_record_bytes=settings.max_record_bytes,
    ):
        if block.bad and not settings.quarantine:
            raise BadRecordError(source.path, block.bad[0].offset, block.bad[0].reason)
        yield sample_records(block, shares) if shares else block


def _lay_out(block: RecordBlock, settings: SourceSettings) -> LaidOutDocuments:
    from dsindex.text.encoders import encode_column

    batch, per_record = encode_column(block.columns[settings.key], settings.tokenizer, settings.engine)
    dtype = np.dtype(settings.dtype)
    if settings.pbin is not None:
        return lay_out_pbin_documents(batch, dtype=dtype, eod_id=settings.eod_id)
    empty = settings.empty_documents
    return lay_out_documents(batch, per_record, dtype=dtype, eod_id=settings.eod_id, empty_documents=empty)


def _open_documents(settings: SourceSettings, run: PbinRun | None) -> StoredDocuments:
    if settings.pbin is None:
        return IndexedDocuments(settings.dataset)
    if run is None:
        msg = "expected the documents of a .pbin with the piece, got none"
        raise ValueError(msg)
    return PbinDocuments(settings.dataset, settings.pbin, run)


class _Comparison:
    """Compares ranges until the first document that differs."""

    def __init__(self, settings: SourceSettings, run: PbinRun | None, stored: StoredDocuments | None = None) -> None:
        self._settings = settings
        self._stored = stored or _open_documents(settings, run)
        self._documents = 0
        self.difference: Difference | None = None

    def result(self) -> SourceResult:
        return SourceResult(documents=self._documents, difference=self.difference)

    def compare(self, piece: SourceRange, offsets: NDArray[np.int64] | None, lines: NDArray[np.int64] | None) -> None:
        """Compare a range's documents; `offsets` and `lines` are their provenance."""
        path = self._settings.inputs[piece.input].path
        document = piece.first_document
        for block in _read(piece, self._settings):
            got = _lay_out(block, self._settings)
            # A record without tokens is no document of a `.pbin`.
            own = slice(None) if got.is_document is None else got.is_document
            block_offsets, block_lines = block.offsets[own], block.lines[own] + piece.first_line
            done = document - piece.first_document
            if offsets is not None and lines is not None:
                wrong = _first_unlike(block_offsets, offsets[done : done + len(block_offsets)])
                if wrong is not None:
                    self._differs(document + wrong, f"the provenance does not lead to its record in {path}")
                    return
                block_lines = lines[done : done + len(block_offsets)]
            room = max(0, self._stored.end - document)
            if len(block_offsets) > room:
                place = f"{path}, line {block_lines[room]}"
                self._differs(document + room, f"{place}, has a record, but the dataset ends before it")
                return
            found = self._first_difference(document, got)
            if found is not None:
                at, what = found
                self._documents += at
                self._differs(document + at, f"{path}, line {block_lines[at]}, gives {what}")
                return
            document += len(block_offsets)
            self._documents += len(block_offsets)
        if offsets is not None and document - piece.first_document != len(offsets):
            self._differs(document, f"{path} ends before its record")

    def _differs(self, document: int, what: str) -> None:
        again = "build" if self._settings.pbin is None else "pack"
        document = self._stored.position(document)
        self.difference = Difference(
            document=document,
            sentence=f"{self._settings.dataset}: document {document} differs from its source: {what}; "
            f"restore the dataset's files, or {again} it again with --fresh",
        )

    def _first_difference(self, document: int, got: LaidOutDocuments) -> tuple[int, str] | None:
        """Compare documents with the dataset's from `document` on; return the first difference, if any."""
        stored = self._stored.read(document, len(got.sequences_per_document))
        if (
            np.array_equal(stored.sequences_per_document, got.sequences_per_document)
            and np.array_equal(stored.sequence_lengths, got.sequence_lengths)
            and np.array_equal(stored.tokens, got.tokens)
        ):
            return None
        for number, (there, here) in enumerate(zip(_split(stored), _split(got), strict=True)):
            if not all(map(np.array_equal, there, here)):
                return number, _describe_difference(there, here)
        return None


Document = tuple["NDArray[Any]", "NDArray[Any]"]


def _split(documents: Documents | LaidOutDocuments) -> Iterator[Document]:
    """Yield each document's sequence lengths and tokens."""
    sequence = token = 0
    for count in documents.sequences_per_document.tolist():
        own = documents.sequence_lengths[sequence : sequence + count]
        size = int(own.sum(dtype=np.int64))
        yield own, documents.tokens[token : token + size]
        sequence, token = sequence + count, token + size


def _describe_difference(there: Document, here: Document) -> str:
    if len(there[1]) != len(here[1]):
        return f"{len(here[1])} tokens where the dataset has {len(there[1])}"
    token = _first_unlike(here[1], there[1])
    if token is None:
        return f"sequences of {here[0].tolist()[:8]} tokens where the dataset has {there[0].tolist()[:8]}"
    return f"token {token} as {here[1][token]} where the dataset has {there[1][token]}"


def _first_unlike(left: NDArray[Any], right: NDArray[Any]) -> int | None:
    """Return the first index at which two arrays differ; a shorter one differs at its end."""
    size = min(len(left), len(right))
    wrong = np.flatnonzero(left[:size] != right[:size])
    if len(wrong):
        return int(wrong[0])
    return size if len(left) != len(right) and size < len(left) else None
