"""Check a provenance file: its layout, one row per document, and rows that are possible for the manifest's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError
from dsindex.shards.provenance import read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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
