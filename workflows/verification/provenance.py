"""The provenance of a dataset of any kind against the inputs in its manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dsindex.errors import FormatError
from dsindex.shards.provenance import count_rows
from dsindex.verify.provenance import InputFacts, RowPiece, RowPieceResult, compare_row_counts, verify_rows
from dsindex.verify.structure import DOCUMENTS_PER_PIECE
from workflows.execution.calls import Call
from workflows.state.publishing import PROVENANCE_SUFFIX
from workflows.verification.checks import Check

if TYPE_CHECKING:
    from workflows.state.manifest import Content
    from workflows.verification.checks import Checks
    from workflows.verification.manifest_checks import Recorded
    from workflows.verification.report import VerifyReport


@dataclass(slots=True)
class ProvenanceVerdict:
    """Whether a provenance file can be gone by."""

    is_sound: bool = False


def plan_provenance(
    checks: Checks, report: VerifyReport, recorded: Recorded, *, num_documents: int, num_without_row: int
) -> ProvenanceVerdict:
    """Plan to check the provenance, if there is one.

    Args:
        checks: What is to be run.
        report: Is told what was found.
        recorded: The manifest.
        num_documents: Of the dataset.
        num_without_row: Records that were kept and are no documents.

    Returns:
        What will have been found once the checks ran.
    """
    verdict = ProvenanceVerdict()
    path = f"{recorded.prefix}.{PROVENANCE_SUFFIX}"
    if recorded.is_foreign or not os.path.isfile(path):
        return verdict
    try:
        num_rows = count_rows(path)
    except FormatError as error:
        report.findings.append(f"{error}; restore it or build again")
        return verdict
    if num_rows != num_documents:
        report.findings.append(
            f"{path}: expected a row for each of {num_documents} documents, got {num_rows}; "
            f"it belongs to another dataset"
        )
        return verdict
    facts = _input_facts(recorded.content)
    if facts is None:
        report.notes.append("the manifest does not describe the inputs, so provenance could not be checked")
        return verdict
    pieces = [
        RowPiece(path=path, begin=begin, end=min(begin + DOCUMENTS_PER_PIECE, num_rows))
        for begin in range(0, num_rows, DOCUMENTS_PER_PIECE)
    ]
    results: list[RowPieceResult] = []

    def take(result: RowPieceResult) -> None:
        results.append(result)
        report.findings.extend(result.findings)
        if len(results) == len(pieces) and not any(result.findings for result in results):
            wrong = compare_row_counts(path, results, facts, num_without_row=num_without_row)
            report.findings.extend(wrong)
            verdict.is_sound = not wrong

    inputs = checks.executor.share(facts)
    call = partial(Call, place=path, function=verify_rows)
    checks.plan(
        [Check(call=call(name=f"provenance[{piece.begin}]", arguments=(piece, inputs)), take=take) for piece in pieces]
    )
    report.checks.append("provenance: a row per document, in order, inside the inputs of the manifest")
    return verdict


def _input_facts(content: Content | None) -> tuple[InputFacts, ...] | None:
    facts = []
    for file in content.inputs if content is not None else ():
        if file.size_bytes is None or file.lines is None or file.kept is None:
            return None
        facts.append(InputFacts(size_bytes=file.size_bytes, lines=file.lines, kept=file.kept))
    return tuple(facts) or None
