"""Check a provenance file: its layout, one row per document, and rows that are possible for the manifest's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dsindex.datasets.provenance import count_rows, read_rows
from dsindex.engine.partial_files import PROVENANCE_SUFFIX
from dsindex.engine.shards.shuffle import shuffled_order
from dsindex.errors import FormatError
from dsindex.execution.calls import Call
from dsindex.store.reading import is_stored
from dsindex.text.forms import TABLES
from dsindex.tools.verify_files import DOCUMENTS_PER_PIECE
from dsindex.tools.verify_report import Check, Step, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.manifest import Content
    from dsindex.tools.verify_report import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """The manifest's facts about one input."""

    size_bytes: int
    """Size of its text, or of the file of a table."""
    lines: int
    kept: int
    is_table: bool = False
    """Whether offsets are numbers of row groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPiece:
    """Documents [begin, end) of a provenance file."""

    path: str
    begin: int
    end: int
    numbers: NDArray[np.int64] | None = None
    """Number of each document before the documents were shuffled, shape [end - begin]; None if they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPieceResult:
    """The result of one piece, to be added up over all."""

    rows_per_input: dict[int, int]
    findings: tuple[str, ...]


def verify_rows(piece: RowPiece, inputs: Sequence[InputFacts]) -> RowPieceResult:
    """Check rows: inputs must be in order, offsets and lines must increase within an input and be inside it.

    Rows of shuffled documents are checked in the documents' former order.
    """
    # One row of the previous piece, so that all neighbours are compared; shuffled documents have no neighbours there.
    begin = max(0, piece.begin - 1) if piece.numbers is None else piece.begin
    try:
        numbers, offsets, lines = read_rows(piece.path, begin, piece.end)
    except FormatError as error:
        return RowPieceResult(rows_per_input={}, findings=(f"{error}; restore it or build again",))
    documents = np.arange(begin, piece.end)
    steps: NDArray[np.int64] | int = 1
    if piece.numbers is not None:
        former = np.argsort(piece.numbers)
        documents, steps = documents[former], np.diff(piece.numbers[former])
        numbers, offsets, lines = numbers[former], offsets[former], lines[former]
    findings: list[str] = []

    def check(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            findings.append(
                f"{piece.path}: expected {what}, got input {numbers[row]}, offset {offsets[row]}, line {lines[row]} "
                f"for document {documents[row]}; restore it or build again"
            )

    check((numbers < 0) | (numbers >= len(inputs)), f"inputs from 0 to {len(inputs) - 1}")
    if findings:
        return RowPieceResult(rows_per_input={}, findings=tuple(findings))
    sizes = np.array([facts.size_bytes for facts in inputs], np.int64)[numbers]
    last_lines = np.array([facts.lines for facts in inputs], np.int64)[numbers]
    check((offsets < 0) | (offsets >= sizes), "offsets inside the input")
    is_table = np.array([facts.is_table for facts in inputs], np.bool_)[numbers]
    # Every preceding line takes at least a newline, and line 1 is at byte 0.
    too_early = ~is_table & (lines - 1 > offsets)
    check((lines < 1) | (lines > last_lines) | too_early, "lines that the input can have at that offset")
    same = numbers[1:] == numbers[:-1]
    falls = numbers[1:] < numbers[:-1]
    # All rows of a row group have its number.
    backwards = offsets[1:] - offsets[:-1] < np.where(is_table[1:], 0, steps)
    stalls = same & (backwards | (lines[1:] - lines[:-1] < steps))
    if piece.numbers is not None:
        ends = np.cumsum([facts.kept for facts in inputs])
        expected = np.searchsorted(ends, piece.numbers[former], side="right")
        check(numbers != expected, "the input that its place in the shuffled order says")
    check(np.concatenate(([False], falls | stalls)), "documents in the order of their inputs and lines")
    own = numbers[piece.begin - begin :]
    found, counts = np.unique(own, return_counts=True)
    return RowPieceResult(
        rows_per_input=dict(zip(found.tolist(), counts.tolist(), strict=True)), findings=tuple(findings)
    )


def compare_row_counts(
    path: str, results: Sequence[RowPieceResult], inputs: Sequence[InputFacts], *, num_without_row: int
) -> list[str]:
    """Compare the rows of each input with the number of records kept according to the manifest.

    Args:
        path: The file, named in findings.
        results: The results of all pieces.
        inputs: The manifest's facts about the inputs.
        num_without_row: Records of all inputs that were kept but are no documents.
    """
    counts = [0] * len(inputs)
    for result in results:
        for number, count in result.rows_per_input.items():
            counts[number] += count
    fewer = f" (or up to {num_without_row} fewer, which have no tokens)" if num_without_row else ""
    return [
        f"{path}: expected {facts.kept} documents{fewer} from input {number} as in the manifest, got {count}; "
        f"restore it or build again"
        for number, (count, facts) in enumerate(zip(counts, inputs, strict=True))
        if not facts.kept - num_without_row <= count <= facts.kept
    ][:3]


# Check the provenance of a dataset of any kind against the inputs in its manifest.


def check_provenance(recorded: Recorded, *, num_documents: int, num_without_row: int) -> Check:
    """Check the provenance, if there is one.

    Args:
        recorded: The dataset's manifest.
        num_documents: Number of documents of the dataset.
        num_without_row: Number of records that were kept but are not documents.
    """
    path = f"{recorded.prefix}.{PROVENANCE_SUFFIX}"
    if recorded.is_foreign or not is_stored(path):
        return Check()
    try:
        num_rows = count_rows(path)
    except FormatError as error:
        return Check(findings=(f"{error}; restore it or build again",))
    if num_rows != num_documents:
        finding = (
            f"{path}: expected a row for each of {num_documents} documents, got {num_rows}; "
            f"it belongs to another dataset"
        )
        return Check(findings=(finding,))
    facts = _input_facts(recorded.content)
    if facts is None:
        return Check(notes=("the manifest does not describe the inputs, so provenance could not be checked",))
    seed = recorded.content.options.shuffle_documents if recorded.content is not None else None
    order = None if seed is None else shuffled_order(seed, num_rows)
    pieces = (
        RowPiece(path=path, begin=begin, end=end, numbers=None if order is None else order[begin:end])
        for begin in range(0, num_rows, DOCUMENTS_PER_PIECE)
        for end in (min(begin + DOCUMENTS_PER_PIECE, num_rows),)
    )

    def judge(results: Iterable[RowPieceResult]) -> Verdict:
        taken = list(results)
        findings = tuple(finding for result in taken for finding in result.findings)
        if not findings:
            findings = tuple(compare_row_counts(path, taken, facts, num_without_row=num_without_row))
        return Verdict(findings=findings)

    call = partial(Call, place=path, function=verify_rows)
    return Check(
        name="provenance: a row per document, in order, inside the inputs of the manifest",
        steps=(Step(call=call(name=f"provenance[{piece.begin}]", arguments=(piece,))) for piece in pieces),
        shared=facts,
        judge=judge,
    )


def _input_facts(content: Content | None) -> tuple[InputFacts, ...] | None:
    facts = []
    for file in content.inputs if content is not None else ():
        size_bytes = file.size_bytes if file.text_bytes is None else file.text_bytes
        if size_bytes is None or file.lines is None or file.kept is None:
            return None
        is_table = file.format in TABLES
        facts.append(InputFacts(size_bytes=size_bytes, lines=file.lines, kept=file.kept, is_table=is_table))
    return tuple(facts) or None
