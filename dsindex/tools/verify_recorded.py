"""Compare a dataset of any kind with its source, which is tokenized again in pieces on any executor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dsindex.engine.shards.shuffle import shuffled_order
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import run_in_order
from dsindex.tools.verify_files import read_runs
from dsindex.tools.verify_report import Check, RanCheck, Step, Verdict, run_checks
from dsindex.tools.verify_source import (
    DocumentSlice,
    SourceRange,
    SourceResult,
    SourceSettings,
    choose_ranges,
    compare_range,
    compare_slice,
    count_records,
    open_recorded_source,
    plan_ranges,
    plan_slices,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.execution.calls import Executor
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.formats.pbin import PbinHeader
    from dsindex.tools.verify_files import IndexCounts
    from dsindex.tools.verify_report import Recorded
    from dsindex.tools.verify_source import RecordedSource, SourceConfig


def open_for_comparison(
    recorded: Recorded, config: SourceConfig, *, pbin: PbinHeader | None = None
) -> tuple[RecordedSource | None, Check]:
    """Find the source of a dataset, before any long work begins.

    Args:
        recorded: The dataset's manifest.
        config: Options of tokenizer and engine.
        pbin: Header of the `.pbin`; None for an MMIDIDX pair.

    Returns:
        The source, or None if the dataset cannot be compared; and a check with the reasons, such as changed inputs.

    Raises:
        InputError: If there is no manifest, or the dataset was not made from text.
        TokenizerError: If the tokenizer is missing or differs from the recorded one.
    """
    if recorded.content is None and recorded.is_there:
        note = "the manifest is damaged, so the dataset could not be compared with its source"
        return None, Check(notes=(note,))
    source = open_recorded_source(recorded.prefix, recorded.manifest, config, pbin=pbin)
    return (None if source.findings else source), Check(findings=source.findings)


def run_and_compare(
    checks: Sequence[Check],
    source: RecordedSource | None,
    *,
    provenance: Check,
    counts: IndexCounts | None,
    share: float,
    executor: Executor,
    reporter: Reporter,
) -> list[RanCheck]:
    """Run all checks of a dataset, then compare it with its source, if there is one.

    Args:
        checks: The checks, in the order of the report.
        source: The result of `open_for_comparison`.
        provenance: The one of `checks` that must succeed before documents are found through the provenance.
        counts: Counts of the index; None if it is damaged.
        share: Share of the documents to compare, in (0, 1].
        executor: Runs the calls.
        reporter: Shows progress.
    """
    ran = run_checks(checks, executor=executor, reporter=reporter)
    if source is None:
        return ran
    if not any(each.check is provenance and each.is_sound for each in ran):
        source = source.without_provenance()
    return [*ran, compare_with_source(source, counts, share=share, executor=executor, reporter=reporter)]


def compare_with_source(
    source: RecordedSource, counts: IndexCounts | None, *, share: float, executor: Executor, reporter: Reporter
) -> RanCheck:
    """Tokenize again and find the first document that differs, if the dataset's index is intact.

    Args:
        source: The result of `open_for_comparison`.
        counts: Counts of the index; None if it is damaged.
        share: Share of the documents to compare, in (0, 1], chosen by a hash of their numbers.
        executor: Runs the calls.
        reporter: Shows progress.
    """
    if counts is None:
        note = "the index is damaged, so the dataset could not be compared with its source"
        return RanCheck(check=Check(notes=(note,)), verdict=Verdict())
    seed = source.settings.shuffle_seed
    if seed is None and source.settings.provenance is not None and source.settings.has_offsets:
        check = _compare_slices(source.settings, counts.num_documents, share)
    else:
        ranges, wanted = number_ranges(source.settings, executor=executor, reporter=reporter)
        if seed is not None:
            ranges = find_positions(ranges, seed) if wanted == counts.num_documents else []
        check = _compare_ranges(source.settings, counts.num_documents, ranges, wanted=wanted, share=share)
    [ran] = run_checks([check], executor=executor, reporter=reporter, stage="compare", unit="pieces")
    return ran


def _compare_slices(settings: SourceSettings, num_documents: int, share: float) -> Check:
    """Return the comparison of documents that are found in the inputs through the provenance."""
    slices = plan_slices(num_documents, share)
    return Check(
        steps=_steps(compare_slice, _with_slices_of_index(settings, slices)),
        size=len(slices),
        shared=settings,
        judge=partial(_judge_comparison, settings, num_documents, ()),
    )


def _compare_ranges(
    settings: SourceSettings, num_documents: int, ranges: Sequence[SourceRange], *, wanted: int, share: float
) -> Check:
    """Return the comparison of ranges of the inputs, which contain `wanted` documents in all."""
    missing = (
        f"{settings.dataset}: expected the {wanted} documents of the inputs, got {num_documents}; "
        f"run the job again with --fresh"
    )
    chosen = choose_ranges(ranges, share)
    return Check(
        steps=_steps(compare_range, _with_ranges_of_index(settings, chosen)),
        size=len(chosen),
        shared=settings,
        judge=partial(_judge_comparison, settings, num_documents, () if wanted == num_documents else (missing,)),
    )


def find_positions(ranges: Sequence[SourceRange], seed: int) -> list[SourceRange]:
    """Return ranges with the places of their documents in the dataset shuffled with a seed."""
    order = shuffled_order(seed, sum(piece.num_documents or 0 for piece in ranges))
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return [replace(piece, positions=positions[piece.first_document :][: piece.num_documents or 0]) for piece in ranges]


def _steps(function: Callable[..., SourceResult], pieces: Iterable[DocumentSlice | SourceRange]) -> Iterator[Step]:
    for number, piece in enumerate(pieces):
        call = Call(name=f"compare[{number}]", place=f"piece {number}", function=function, arguments=(piece,))
        yield Step(call=call, size=1)


def _judge_comparison(
    settings: SourceSettings, num_documents: int, others: tuple[str, ...], results: Iterable[SourceResult]
) -> Verdict:
    """Report the first document that differs and the number of other pieces that differ, followed by `others`."""
    compared = 0
    differences = []
    for result in results:
        compared += result.documents
        if result.difference is not None:
            differences.append(result.difference)
    findings = list(others)
    if differences:
        first = min(differences, key=lambda difference: difference.document)
        more = f" (and {len(differences) - 1} other pieces differ as well)" if len(differences) > 1 else ""
        findings.insert(0, first.sentence + more)
    checked = (
        f"against the source: {compared:,} of {num_documents:,} documents tokenized again"
        f" with {settings.engine.describe()}"
    )
    return Verdict(checked=(checked,), findings=tuple(findings))


def _with_slices_of_index(settings: SourceSettings, slices: Sequence[DocumentSlice]) -> Iterable[DocumentSlice]:
    """Add the index entries of slices of a `.pbin`; workers read those of an MMIDIDX pair themselves."""
    if settings.pbin is None:
        return slices
    runs = read_runs(settings.dataset, settings.pbin, ((piece.begin, piece.end) for piece in slices))
    return (replace(piece, run=run) for piece, run in zip(slices, runs, strict=True))


def _with_ranges_of_index(settings: SourceSettings, ranges: Sequence[SourceRange]) -> Iterable[SourceRange]:
    """Add the index entries of ranges of a `.pbin`, as `_with_slices_of_index` does."""
    if settings.pbin is None:
        return ranges
    bounds = ((piece.first_document, piece.first_document + (piece.num_documents or 0)) for piece in ranges)
    runs = read_runs(settings.dataset, settings.pbin, bounds)
    return (replace(piece, run=run) for piece, run in zip(ranges, runs, strict=True))


def number_ranges(settings: SourceSettings, *, executor: Executor, reporter: Reporter) -> tuple[list[SourceRange], int]:
    """Count the documents of all ranges; return the ranges with their first documents and lines, and the total."""
    ranges = plan_ranges(settings)
    shared = executor.share(settings)
    reporter.stage("count", total=len(ranges), unit="pieces")
    calls = (
        Call(name=f"count[{number}]", place=f"piece {number}", function=count_records, arguments=(piece, shared))
        for number, piece in enumerate(ranges)
    )
    numbered = []
    document, line, before = 0, 1, 0
    for piece, count in zip(ranges, run_in_order(executor, calls, on_idle=reporter.tick), strict=True):
        reporter.advance(1)
        line = line if piece.input == before else 1
        numbered.append(replace(piece, first_document=document, num_documents=count.documents, first_line=line))
        document, line, before = document + count.documents, line + count.lines, piece.input
    return numbered, document
