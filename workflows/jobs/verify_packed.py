"""The driver of `dsindex verify FILE.pbin`: packed data against its manifest and its source, on any executor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.errors import FormatError
from dsindex.verify.packed import (
    DOCUMENTS_PER_ENDS,
    PackedEndsPiece,
    verify_packed_ends,
    verify_packed_header,
    verify_packed_index,
)
from dsindex.verify.stored import read_runs
from workflows.execution.calls import Call
from workflows.execution.choice import make_executor
from workflows.options.pack import PACKED_SUFFIX
from workflows.state.manifest import manifest_path
from workflows.verification.checks import Check, Checks
from workflows.verification.comparison import open_for_comparison, report_comparison
from workflows.verification.manifest_checks import (
    Recorded,
    check_account,
    compare_counts,
    plan_files,
    plan_quarantine,
    read_recorded,
)
from workflows.verification.provenance import plan_provenance
from workflows.verification.rebuilt_options import read_packed_options
from workflows.verification.report import VerifyReport, report_absence
from workflows.verification.tokens import plan_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.formats.pbin import PackedHeader
    from workflows.jobs.verify import VerifyConfig
    from workflows.progress.reporter import Reporter
    from workflows.state.manifest import Content

_SUFFIX = PACKED_SUFFIX.removeprefix(".")


def run_packed_verify(path: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one `.pbin`: structure always; the rest where a manifest says what to compare with.

    Raises:
        InputError: If `--against-source` asks for what cannot be done.
        TokenizerError: If `--against-source` is given another tokenizer than the file was made with.
    """
    absence = report_absence(path, [path, manifest_path(path.removesuffix(PACKED_SUFFIX))])
    if absence is not None:
        return absence
    report = VerifyReport(path)
    recorded, era_name = _read_recorded(report)
    header, findings = verify_packed_header(path, era_name=era_name)
    report.findings += findings
    if os.path.isfile(path):
        report.checks.append("the header against the file, and its era")
    source = None
    if header is not None:
        report.era = header.era.name
        source = open_for_comparison(report, recorded, config, packed=header) if config.against_source else None
    elif config.against_source:
        report.notes.append("the header is damaged, so the file could not be compared with its source")
    pattern = source.settings.pattern if source is not None else None
    executor = make_executor(config, holds_gil=pattern is not None and pattern.key is None)
    try:
        is_sound = _verify(report, recorded, header, checks=Checks(executor, reporter))
        if source is not None:
            source = source if is_sound else source.without_provenance()
            report_comparison(report, source, share=config.sample, executor=executor, reporter=reporter)
    finally:
        executor.close()
    return report


def _read_recorded(report: VerifyReport) -> tuple[Recorded, str | None]:
    """Read the manifest; give also the era that it says."""
    prefix = report.prefix.removesuffix(PACKED_SUFFIX)
    recorded = read_recorded(report, prefix, token_suffix=_SUFFIX)
    if recorded.content is None:
        return recorded, None
    try:
        return recorded, read_packed_options(prefix, recorded.content).pbin_era
    except FormatError as error:
        report.findings.append(str(error))
        return Recorded(prefix=prefix), None


def _verify(report: VerifyReport, recorded: Recorded, header: PackedHeader | None, *, checks: Checks) -> bool:
    """Look at everything but the source; tell whether the provenance can be gone by."""
    content = recorded.content
    counts = None
    if header is not None:
        counts, findings = verify_packed_index(report.prefix, header)
        report.findings += findings
        report.checks.append("every entry of the index against the tokens")
    report.counts = counts
    if content is not None and counts is not None:
        compare_counts(report, content, counts)
        check_account(report, content, counts, keeps_empty=False)
        plan_quarantine(checks, report, recorded)
    _plan_tokens(checks, report, recorded, header)
    plan_files(checks, report, recorded, token_suffix=_SUFFIX, structural=(_SUFFIX,))
    verdict = None
    if header is not None and counts is not None:
        _plan_ends(checks, report, content, header)
        account = content.account if content is not None else None
        verdict = plan_provenance(
            checks,
            report,
            recorded,
            num_documents=counts.num_documents,
            num_without_row=account.empty_documents if account is not None else 0,
        )
    checks.run()
    return verdict is not None and verdict.is_sound


def _plan_tokens(checks: Checks, report: VerifyReport, recorded: Recorded, header: PackedHeader | None) -> None:
    """Digest the file, and look at its tokens where the header says which they are."""
    if not os.path.isfile(report.prefix):
        return

    def take_num_eod(num_eod: int) -> None:
        if header is not None and recorded.content is not None:
            _compare_num_eod(report, recorded.content, num_eod)

    plan_tokens(
        checks,
        report,
        recorded,
        suffix=_SUFFIX,
        dtype=header.dtype.str if header is not None else "u1",
        tokens=(header.era.header_bytes, header.index_offset) if header is not None else (0, 0),
        take_num_eod=take_num_eod,
    )


def _compare_num_eod(report: VerifyReport, content: Content, num_eod: int) -> None:
    """See that there is an EOD per document, and those from text, which may be the same."""
    if content.eod_id is None or content.eod_in_text is None:
        return
    low, high = max(content.documents, content.eod_in_text), content.documents + content.eod_in_text
    if not low <= num_eod <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        report.findings.append(
            f"{report.prefix}: expected {wanted} EOD tokens (one at the end of each document, {content.eod_in_text} "
            f"from text, which may be the same), got {num_eod}; its content changed, restore it or pack it again"
        )
    report.checks.append("the number of EOD tokens")


def _plan_ends(checks: Checks, report: VerifyReport, content: Content | None, header: PackedHeader) -> None:
    eod_id = content.eod_id if content is not None else None
    if eod_id is None or report.counts is None:
        return
    path, num_documents = report.prefix, report.counts.num_documents
    bounds = (
        (begin, min(begin + DOCUMENTS_PER_ENDS, num_documents)) for begin in range(0, num_documents, DOCUMENTS_PER_ENDS)
    )

    def ends() -> Iterator[Check]:
        for run in read_runs(path, header, bounds):
            piece = PackedEndsPiece(path=path, header=header, run=run, eod_id=eod_id)
            call = Call(name=f"ends[{run.first_document}]", place=path, function=verify_packed_ends, arguments=(piece,))
            yield Check(call=call, take=report.findings.extend)

    checks.plan(ends())
    report.checks.append("every document with tokens ends with EOD")
