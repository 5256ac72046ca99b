"""Check the provenance of a dataset of any kind against the inputs in its manifest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dsindex.checks.provenance import InputFacts, RowPiece, RowPieceResult, compare_row_counts, verify_rows
from dsindex.checks.structure import DOCUMENTS_PER_PIECE
from dsindex.errors import FormatError
from dsindex.readable import is_stored
from dsindex.shards.document_order import shuffled_order
from dsindex.shards.provenance import count_rows
from dsindex.text.forms import TABLES
from workflows.execution.calls import Call
from workflows.state.publishing import PROVENANCE_SUFFIX
from workflows.verification.checks import Check, Step, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workflows.state.manifest import Content
    from workflows.verification.manifest_checks import Recorded


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
