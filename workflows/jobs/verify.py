"""The driver of `dsindex verify`: an MMIDIDX pair against its manifest, its caches and its source, on any executor."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from dsindex.verify.caches import find_caches, verify_cache
from dsindex.verify.structure import DOCUMENTS_PER_PIECE, DocumentPiece, IndexCounts, verify_ends, verify_index
from workflows.execution.calls import Call
from workflows.execution.choice import make_executor
from workflows.state.manifest import manifest_path
from workflows.verification.checks import Check, Checks
from workflows.verification.comparison import open_for_comparison, report_comparison
from workflows.verification.manifest_checks import (
    check_account,
    compare_counts,
    plan_files,
    plan_quarantine,
    read_recorded,
)
from workflows.verification.provenance import plan_provenance
from workflows.verification.report import VerifyReport, report_absence
from workflows.verification.source import SourceConfig
from workflows.verification.tokens import plan_tokens

if TYPE_CHECKING:
    from workflows.execution.calls import Executor
    from workflows.progress.reporter import Reporter
    from workflows.state.manifest import Content
    from workflows.verification.manifest_checks import Recorded


def parse_share(value: object) -> object:
    """Read a share as people write it.

    >>> parse_share("1%"), parse_share("0.5"), parse_share(1)
    (0.01, 0.5, 1)
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        msg = f"expected a share such as 1% or 0.01, got {value!r}"
        raise ValueError(msg) from None


class VerifyConfig(SourceConfig):
    """`dsindex verify`."""

    cache: str | None = None
    """A folder with index caches to check against the data."""
    against_source: bool = False
    sample: Annotated[float, BeforeValidator(parse_share), Field(gt=0, le=1)] = 1.0
    """Share of the documents that are tokenized again."""


def run_verify(prefix: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: structure always; the rest where a manifest or the options say what to compare with.

    Raises:
        InputError: If `--against-source` or `--cache` asks for what cannot be done.
        TokenizerError: If `--against-source` is given another tokenizer than the dataset was made with.
    """
    absence = report_absence(prefix, [f"{prefix}.bin", f"{prefix}.idx", manifest_path(prefix)])
    if absence is not None:
        return absence
    executor = make_executor(config)
    try:
        return _verify(prefix, config, executor=executor, reporter=reporter)
    finally:
        executor.close()


def _verify(prefix: str, config: VerifyConfig, *, executor: Executor, reporter: Reporter) -> VerifyReport:
    report, checks = VerifyReport(prefix), Checks(executor, reporter)
    recorded = read_recorded(report, prefix, token_suffix="bin")
    content = recorded.content
    source = open_for_comparison(report, recorded, config) if config.against_source else None
    report.counts, findings = verify_index(prefix)
    report.findings += findings
    if os.path.isfile(f"{prefix}.bin"):
        report.checks.append("structure of the .idx, and every entry against the .bin")
    counts = report.counts
    if content is not None and counts is not None:
        compare_counts(report, content, counts)
        check_account(report, content, counts, keeps_empty=True)
        plan_quarantine(checks, report, recorded)
    _plan_tokens(checks, report, recorded)
    if content is not None and counts is not None:
        _plan_ends(checks, report, content, counts)
    plan_files(checks, report, recorded, token_suffix="bin", structural=("bin", "idx"))
    verdict = None
    if counts is not None:
        verdict = plan_provenance(checks, report, recorded, num_documents=counts.num_documents, num_without_row=0)
        _plan_caches(checks, report, config.cache)
    checks.run()
    if source is not None:
        is_sound = verdict is not None and verdict.is_sound
        source = source if is_sound else source.without_provenance()
        report_comparison(report, source, share=config.sample, executor=executor, reporter=reporter)
    return report


def _plan_tokens(checks: Checks, report: VerifyReport, recorded: Recorded) -> None:
    """Look at every token of the `.bin`, which may be whole where the `.idx` is not."""
    path = f"{report.prefix}.bin"
    content = recorded.content
    dtype = report.counts.token_dtype if report.counts is not None else content.token_dtype if content else None
    if dtype is None or not os.path.isfile(path):
        return

    def take_num_eod(num_eod: int) -> None:
        if content is None or content.eod_id is None or content.account is None or content.eod_in_text is None:
            return
        expected = content.account.documents_with_tokens + content.eod_in_text
        if num_eod != expected:
            report.findings.append(
                f"{path}: expected {expected} EOD tokens (one per document with tokens, and "
                f"{content.eod_in_text} from text), got {num_eod}; its content changed, restore it or build it again"
            )
        report.checks.append("the number of EOD tokens")

    plan_tokens(
        checks,
        report,
        recorded,
        suffix="bin",
        dtype=dtype,
        tokens=(0, os.path.getsize(path)),
        take_num_eod=take_num_eod,
    )


def _plan_ends(checks: Checks, report: VerifyReport, content: Content, counts: IndexCounts) -> None:
    if content.eod_id is None:
        return
    pieces = [
        DocumentPiece(
            prefix=report.prefix,
            begin=begin,
            end=min(begin + DOCUMENTS_PER_PIECE, counts.num_documents),
            eod_id=content.eod_id,
        )
        for begin in range(0, counts.num_documents, DOCUMENTS_PER_PIECE)
    ]
    checks.plan(
        [
            Check(
                call=Call(name=f"ends[{piece.begin}]", place=report.prefix, function=verify_ends, arguments=(piece,)),
                take=report.findings.extend,
            )
            for piece in pieces
        ]
    )
    report.checks.append("every document with tokens ends with EOD")


def _plan_caches(checks: Checks, report: VerifyReport, folder: str | None) -> None:
    if folder is None:
        return
    tasks = find_caches(folder, report.prefix)
    if not tasks:
        name = os.path.basename(report.prefix)
        report.findings.append(
            f"{folder}: expected an index cache of {name}, found none; check --cache, or build one: dsindex index"
        )
    checks.plan(
        [
            Check(
                call=Call(name="cache", place=task.description, function=verify_cache, arguments=(task,)),
                take=report.findings.extend,
            )
            for task in tasks
        ]
    )
    kinds = Counter("blend" if "-BlendedDataset-" in task.description else "dataset" for task in tasks)
    said = " and ".join(f"{count} of a {kind}" for kind, count in sorted(kinds.items(), reverse=True))
    report.checks.append(f"index caches against the data: {said or 'none'}")
