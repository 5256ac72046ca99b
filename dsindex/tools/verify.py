"""The driver of `dsindex verify`: checks an MMIDIDX pair against its manifest, its index caches and its source."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from dsindex.datasets.exports import read_export_manifest
from dsindex.engine.executors import Call
from dsindex.engine.manifest import manifest_path
from dsindex.engine.output import PROVENANCE_SUFFIX
from dsindex.engine.start import make_executor
from dsindex.errors import FormatError
from dsindex.store.reading import digest_file, is_stored, stored_size
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_files import (
    DOCUMENTS_PER_PIECE,
    STRUCTURE,
    DocumentPiece,
    IndexCounts,
    describe_empty_texts,
    verify_ends,
    verify_index,
)
from dsindex.tools.verify_report import (
    Check,
    Step,
    Verdict,
    VerifyReport,
    check_counts,
    check_files,
    check_provenance,
    check_quarantine,
    check_record_counts,
    check_tokens,
    make_report,
    read_recorded,
    report_absence,
)
from dsindex.tools.verify_same import check_same
from dsindex.tools.verify_source import open_for_comparison, run_and_compare

if TYPE_CHECKING:
    from dsindex.engine.executors import Executor
    from dsindex.engine.manifest import Content
    from dsindex.engine.progress import Reporter
    from dsindex.options.datasets import VerifyConfig
    from dsindex.tools.verify_report import Recorded


def run_verify(prefix: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: always its structure; the rest as far as a manifest and options allow.

    Raises:
        InputError: If `--against-source` or `--cache` asks for a check that is impossible.
        InputError: If a node of the cluster does not see the dataset.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the dataset was made with.
    """
    absence = report_absence(prefix, [f"{prefix}.bin", f"{prefix}.idx", manifest_path(prefix)])
    if absence is not None:
        return absence
    executor = make_executor(config)
    try:
        executor.require_seen(f"{prefix}.{suffix}" for suffix in ("bin", "idx", PROVENANCE_SUFFIX))
        return _verify(prefix, config, executor=executor, reporter=reporter)
    finally:
        executor.close()


def _verify(prefix: str, config: VerifyConfig, *, executor: Executor, reporter: Reporter) -> VerifyReport:
    recorded = read_recorded(prefix, token_suffix="bin")
    content = recorded.content
    source, opened = open_for_comparison(recorded, config) if config.against_source else (None, Check())
    counts, findings = verify_index(prefix)
    structure = STRUCTURE if counts is not None else None
    checks = [recorded.check, opened, Check(name=structure, findings=tuple(findings))]
    if content is not None and counts is not None:
        checks += [
            check_counts(prefix, content, counts),
            check_record_counts(prefix, content, counts, keeps_empty=True),
            check_quarantine(recorded),
        ]
    if content is None and counts is not None and (said := describe_empty_texts(prefix)) is not None:
        checks.append(Check(notes=(said,)))
    checks.append(_check_tokens(recorded, counts))
    if content is not None and counts is not None:
        checks.append(_check_ends(prefix, content, counts))
    checks += check_files(recorded, token_suffix="bin", structural=("bin", "idx"))
    provenance = Check()
    if counts is not None:
        provenance = check_provenance(recorded, num_documents=counts.num_documents, num_without_row=0)
        checks += [provenance, _check_caches(prefix, config.cache), check_same(prefix, config.same_as)]
    ran = run_and_compare(
        checks,
        source,
        provenance=provenance,
        counts=counts,
        share=config.sample,
        executor=executor,
        reporter=reporter,
    )
    return make_report(prefix, ran, counts=counts)


def _check_tokens(recorded: Recorded, counts: IndexCounts | None) -> Check:
    """Return the check of every token of the `.bin`, which may be intact even if the `.idx` is not."""
    path = f"{recorded.prefix}.bin"
    content = recorded.content
    dtype = counts.token_dtype if counts is not None else content.token_dtype if content else None
    if dtype is None or not is_stored(path):
        return Check()
    return check_tokens(
        recorded, suffix="bin", dtype=dtype, tokens=(0, stored_size(path)), judge_num_eod=partial(_judge_eod, path)
    )


def _judge_eod(path: str, content: Content, num_eod: int) -> Verdict:
    if content.eod_id is None or content.account is None or content.eod_in_text is None:
        return Verdict()
    num_ended = content.account.documents_with_tokens
    if content.options.empty_documents == "eod":
        num_ended += content.account.empty_documents
    expected = num_ended + content.eod_in_text
    finding = (
        f"{path}: expected {expected} EOD tokens (one per document with tokens, and "
        f"{content.eod_in_text} from text), got {num_eod}; its content changed, restore it or build it again"
    )
    return Verdict.of("the number of EOD tokens", finding, is_sound=num_eod == expected)


def _check_ends(prefix: str, content: Content, counts: IndexCounts) -> Check:
    if content.eod_id is None:
        return Check()
    pieces = (
        DocumentPiece(
            prefix=prefix,
            begin=begin,
            end=min(begin + DOCUMENTS_PER_PIECE, counts.num_documents),
            eod_id=content.eod_id,
        )
        for begin in range(0, counts.num_documents, DOCUMENTS_PER_PIECE)
    )
    call = partial(Call, place=prefix, function=verify_ends)
    return Check(
        name="every document with tokens ends with EOD",
        steps=(Step(call=call(name=f"ends[{piece.begin}]", arguments=(piece,))) for piece in pieces),
    )


def _check_caches(prefix: str, folder: str | None) -> Check:
    if folder is None:
        return Check()
    tasks = find_caches(folder, prefix)
    if not tasks:
        name = os.path.basename(prefix)
        finding = f"{folder}: expected an index cache of {name}, found none; check --cache, or build one: dsindex index"
        return Check(findings=(finding,))
    kinds = Counter("blend" if "-BlendedDataset-" in task.description else "dataset" for task in tasks)
    said = " and ".join(f"{count} of a {kind}" for kind, count in sorted(kinds.items(), reverse=True))
    calls = (Call(name="cache", place=task.description, function=verify_cache, arguments=(task,)) for task in tasks)
    return Check(name=f"index caches against the data: {said}", steps=(Step(call=call) for call in calls))


# Verify the folder of an export: every file has the size and the digest that its manifest says.


def verify_export(folder: str, *, reporter: Reporter) -> VerifyReport:
    """Read every file of an export once."""
    try:
        manifest = read_export_manifest(folder)
    except FormatError as error:
        return VerifyReport(prefix=folder, findings=(str(error),))
    findings = []
    files = {} if manifest is None else manifest.content.digests
    reporter.stage("verify", total=len(files), unit="files")
    for name, file in files.items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            findings.append(f"{path}: is missing, but the manifest lists it; export it again")
        elif os.path.getsize(path) != file.size_bytes or digest_file(path) != file.xxh3_128:
            findings.append(f"{path}: expected the content that the manifest describes, got another; export it again")
        reporter.advance(1)
    checked = ("digest of every file of the export",)
    return VerifyReport(
        prefix=folder,
        checks=() if findings else checked,
        failed=checked if findings else (),
        findings=tuple(findings),
    )
