"""A dataset of any kind compared with its source: tokenized again in pieces, on any executor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsindex.verify.source import (
    Difference,
    DocumentSlice,
    RecordCounts,
    SourceRange,
    SourceResult,
    SourceSettings,
    choose_ranges,
    compare_range,
    compare_slice,
    count_records,
    plan_slices,
)
from dsindex.verify.stored import read_runs
from workflows.execution.calls import Call
from workflows.execution.dispatch import run_calls
from workflows.verification.source import open_recorded_source, plan_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.formats.pbin import PackedHeader
    from workflows.execution.calls import Executor
    from workflows.progress.reporter import Reporter
    from workflows.verification.manifest_checks import Recorded
    from workflows.verification.report import VerifyReport
    from workflows.verification.source import RecordedSource, SourceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceComparison:
    """How a comparison ended."""

    documents: int
    """Compared."""
    findings: tuple[str, ...]


def open_for_comparison(
    report: VerifyReport, recorded: Recorded, config: SourceConfig, *, packed: PackedHeader | None = None
) -> RecordedSource | None:
    """Find what a dataset was made of, before anything long begins; None where it cannot be compared.

    Args:
        report: Is told why it cannot be compared, and what changed.
        recorded: The manifest.
        config: Where things are.
        packed: Header of the `.pbin`; None: the dataset is an MMIDIDX pair.

    Raises:
        InputError: If there is no manifest, or the dataset was not made from text.
        TokenizerError: If the tokenizer is not there, or is another one.
    """
    if recorded.content is None and report.has_manifest:
        report.notes.append("the manifest is damaged, so the dataset could not be compared with its source")
        return None
    source = open_recorded_source(recorded.prefix, recorded.manifest, config, packed=packed)
    report.findings += source.findings
    return None if source.findings else source


def report_comparison(
    report: VerifyReport,
    source: RecordedSource,
    *,
    share: float,
    executor: Executor,
    reporter: Reporter,
) -> None:
    """Compare a dataset with its source, if its index is whole.

    Args:
        report: Is told what was found.
        source: What `open_for_comparison` found.
        share: Of the documents to compare, in (0, 1].
        executor: Where to run.
        reporter: Is told how it goes.
    """
    if report.counts is None:
        report.notes.append("the index is damaged, so the dataset could not be compared with its source")
        return
    num_documents = report.counts.num_documents
    comparison = compare_with_source(
        source, num_documents=num_documents, share=share, executor=executor, reporter=reporter
    )
    report.findings += comparison.findings
    report.checks.append(
        f"against the source: {comparison.documents:,} of {num_documents:,} documents tokenized again"
        f" with {source.settings.engine.describe()}"
    )


def compare_with_source(
    source: RecordedSource,
    *,
    num_documents: int,
    share: float,
    executor: Executor,
    reporter: Reporter,
) -> SourceComparison:
    """Tokenize again and find the first document that differs.

    Args:
        source: What `open_recorded_source` found, without findings.
        num_documents: Of the dataset.
        share: Of the documents to compare, in (0, 1], chosen by a hash of their numbers.
        executor: Where to run.
        reporter: Is told how it goes.
    """
    settings = source.settings
    shared = executor.share(settings)
    missing: list[str] = []
    if settings.provenance is not None:
        slices = plan_slices(num_documents, share)
        pieces = _with_slices_of_index(settings, slices)
        results = _run(executor, reporter, "compare", compare_slice, pieces, len(slices), shared)
    else:
        ranges, wanted = number_ranges(settings, executor=executor, reporter=reporter)
        chosen = choose_ranges(ranges, share)
        results = _run(
            executor, reporter, "compare", compare_range, _with_ranges_of_index(settings, chosen), len(chosen), shared
        )
        if wanted != num_documents:
            missing.append(
                f"{settings.dataset}: expected the {wanted} documents that the inputs give, got {num_documents}; "
                f"make it again with --fresh"
            )
    return SourceComparison(
        documents=sum(result.documents for result in results), findings=(*_first_difference(results), *missing)
    )


def _with_slices_of_index(settings: SourceSettings, slices: Sequence[DocumentSlice]) -> Iterable[DocumentSlice]:
    """Return slices of a `.pbin` what its index says of them; workers read that of an MMIDIDX pair themselves."""
    if settings.packed is None:
        return slices
    runs = read_runs(settings.dataset, settings.packed, ((piece.begin, piece.end) for piece in slices))
    return (replace(piece, run=run) for piece, run in zip(slices, runs, strict=True))


def _with_ranges_of_index(settings: SourceSettings, ranges: Sequence[SourceRange]) -> Iterable[SourceRange]:
    """Do the same for ranges, in the order of their documents."""
    if settings.packed is None:
        return ranges
    bounds = ((piece.first_document, piece.first_document + (piece.num_documents or 0)) for piece in ranges)
    runs = read_runs(settings.dataset, settings.packed, bounds)
    return (replace(piece, run=run) for piece, run in zip(ranges, runs, strict=True))


def _first_difference(results: Sequence[SourceResult]) -> list[str]:
    """Name the first document that differs, and say in how many pieces others do."""
    differences: list[Difference] = [result.difference for result in results if result.difference is not None]
    if not differences:
        return []
    first = min(differences, key=lambda difference: difference.document)
    others = len(differences) - 1
    return [first.sentence + (f" (and {others} other pieces differ as well)" if others else "")]


def number_ranges(settings: SourceSettings, *, executor: Executor, reporter: Reporter) -> tuple[list[SourceRange], int]:
    """Count the documents of all ranges; give the ranges with where they begin in the dataset, and all documents."""
    ranges = plan_ranges(settings)
    shared = executor.share(settings)
    counts: list[RecordCounts] = _run(executor, reporter, "count", count_records, ranges, len(ranges), shared)
    numbered = []
    document, line, before = 0, 1, 0
    for piece, count in zip(ranges, counts, strict=True):
        line = line if piece.input == before else 1
        numbered.append(replace(piece, first_document=document, num_documents=count.documents, first_line=line))
        document, line, before = document + count.documents, line + count.lines, piece.input
    return numbered, document


def _run(
    executor: Executor,
    reporter: Reporter,
    name: str,
    function: Callable[..., Any],
    pieces: Iterable[Any],
    num_pieces: int,
    shared: object,
) -> list[Any]:
    """Run a function on every piece and give the results in order."""
    reporter.stage(name, total=num_pieces, unit="pieces")
    results: dict[int, Any] = {}

    def on_result(number: int, value: Any) -> None:  # noqa: ANN401 - what the function gives
        results[number] = value
        reporter.advance(1)

    def calls() -> Iterator[tuple[int, Call]]:
        for number, piece in enumerate(pieces):
            place = f"piece {number}"
            yield number, Call(name=f"{name}[{number}]", place=place, function=function, arguments=(piece, shared))

    run_calls(executor, calls(), on_result=on_result, on_idle=reporter.tick)
    return [results[number] for number in range(num_pieces)]
