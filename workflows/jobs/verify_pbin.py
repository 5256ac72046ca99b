"""The driver of `dsindex verify FILE.pbin`: checks a `.pbin` against its manifest and its source."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dsindex.checks.pbin import (
    DOCUMENTS_PER_ENDS,
    PbinEndsPiece,
    verify_pbin_ends,
    verify_pbin_header,
    verify_pbin_index,
)
from dsindex.checks.stored import read_runs
from dsindex.errors import FormatError
from dsindex.readable import is_stored
from workflows.execution.calls import Call
from workflows.options.pack import PBIN_SUFFIX
from workflows.stages.shared_files import require_shared
from workflows.stages.start import start_with_nodes
from workflows.state.manifest import manifest_path
from workflows.verification.checks import Check, Step, Verdict
from workflows.verification.comparison import open_for_comparison, run_and_compare
from workflows.verification.manifest_checks import (
    Recorded,
    check_counts,
    check_files,
    check_quarantine,
    check_record_counts,
    read_recorded,
)
from workflows.verification.pbin_options import read_pbin_options
from workflows.verification.provenance import check_provenance
from workflows.verification.report import VerifyReport, make_report, report_absence
from workflows.verification.tokens import check_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.checks.structure import IndexCounts
    from dsindex.formats.pbin import PbinHeader
    from workflows.jobs.verify import VerifyConfig
    from workflows.progress.reporter import Reporter
    from workflows.state.manifest import Content

_SUFFIX = PBIN_SUFFIX.removeprefix(".")


def run_pbin_verify(path: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one `.pbin`: always its structure; the rest as far as a manifest and options allow.

    Raises:
        InputError: If `--against-source` asks for a check that is impossible.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the file was made with.
    """
    absence = report_absence(path, [path, manifest_path(path.removesuffix(PBIN_SUFFIX))])
    if absence is not None:
        return absence
    recorded, version_name = _read_recorded(path)
    header, findings = verify_pbin_header(path, version_name=version_name)
    name = "the header against the file, and its version" if header is not None else None
    checks = [recorded.check, Check(name=name, findings=tuple(findings))]
    source = None
    if config.against_source and header is not None:
        source, opened = open_for_comparison(recorded, config, pbin=header)
        checks.append(opened)
    elif config.against_source:
        checks.append(Check(notes=("the header is damaged, so the file could not be compared with its source",)))
    counts, index = _check_index(path, header)
    provenance = _check_provenance(recorded, counts)
    checks += [index, *_check_content(path, recorded, header, counts), provenance]
    pattern = source.settings.pattern if source is not None else None
    executor = start_with_nodes(config, reporter, holds_gil=pattern is not None and pattern.key is None)
    try:
        require_shared(executor, files=[path])
        ran = run_and_compare(
            checks,
            source,
            provenance=provenance,
            counts=counts,
            share=config.sample,
            executor=executor,
            reporter=reporter,
        )
    finally:
        executor.close()
    version = header.version.name if header is not None else None
    return make_report(path, ran, counts=counts, version=version, has_manifest=recorded.is_there)


def _read_recorded(path: str) -> tuple[Recorded, str | None]:
    """Read the manifest; return it with the version of the `.pbin` that it records."""
    prefix = path.removesuffix(PBIN_SUFFIX)
    recorded = read_recorded(prefix, token_suffix=_SUFFIX)
    if recorded.content is None:
        return recorded, None
    try:
        return recorded, read_pbin_options(prefix, recorded.content).pbin_era
    except FormatError as error:
        return Recorded(prefix=prefix, is_there=True, check=Check(findings=(str(error),))), None


def _check_index(path: str, header: PbinHeader | None) -> tuple[IndexCounts | None, Check]:
    if header is None:
        return None, Check()
    counts, findings = verify_pbin_index(path, header)
    name = "every entry of the index against the tokens" if counts is not None else None
    return counts, Check(name=name, findings=tuple(findings))


def _check_content(
    path: str, recorded: Recorded, header: PbinHeader | None, counts: IndexCounts | None
) -> Iterator[Check]:
    """Yield the checks against the manifest, and of the tokens."""
    content = recorded.content
    if content is not None and counts is not None:
        yield check_counts(path, content, counts)
        yield check_record_counts(path, content, counts, keeps_empty=False)
        yield check_quarantine(recorded)
    if is_stored(path):
        yield check_tokens(
            recorded,
            suffix=_SUFFIX,
            dtype=header.dtype.str if header is not None else "u1",
            tokens=(header.version.header_bytes, header.index_offset) if header is not None else (0, 0),
            judge_num_eod=partial(_judge_eod, path, header),
        )
    yield from check_files(recorded, token_suffix=_SUFFIX, structural=(_SUFFIX,))
    if content is not None and content.eod_id is not None and header is not None and counts is not None:
        yield _check_ends(path, content.eod_id, header, counts.num_documents)


def _check_provenance(recorded: Recorded, counts: IndexCounts | None) -> Check:
    if counts is None:
        return Check()
    account = recorded.content.account if recorded.content is not None else None
    return check_provenance(
        recorded,
        num_documents=counts.num_documents,
        num_without_row=account.empty_documents if account is not None else 0,
    )


def _judge_eod(path: str, header: PbinHeader | None, content: Content, num_eod: int) -> Verdict:
    """Check the number of EOD tokens: one per document and those from text, which may coincide."""
    if header is None or content.eod_id is None or content.eod_in_text is None:
        return Verdict()
    low, high = max(content.documents, content.eod_in_text), content.documents + content.eod_in_text
    wanted = f"{low}" if low == high else f"{low} to {high}"
    finding = (
        f"{path}: expected {wanted} EOD tokens (one at the end of each document, {content.eod_in_text} "
        f"from text, which may be the same), got {num_eod}; its content changed, restore it or pack it again"
    )
    return Verdict(checked=("the number of EOD tokens",), findings=() if low <= num_eod <= high else (finding,))


def _check_ends(path: str, eod_id: int, header: PbinHeader, num_documents: int) -> Check:
    bounds = (
        (begin, min(begin + DOCUMENTS_PER_ENDS, num_documents)) for begin in range(0, num_documents, DOCUMENTS_PER_ENDS)
    )
    pieces = (
        PbinEndsPiece(path=path, header=header, run=run, eod_id=eod_id) for run in read_runs(path, header, bounds)
    )
    call = partial(Call, place=path, function=verify_pbin_ends)
    return Check(
        name="every document with tokens ends with EOD",
        steps=(Step(call=call(name=f"ends[{piece.run.first_document}]", arguments=(piece,))) for piece in pieces),
    )
