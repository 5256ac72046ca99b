"""A dataset of any kind against its manifest: counts, the account of lines, the files beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import FormatError
from dsindex.verify.structure import verify_digest, verify_quarantine
from workflows.execution.calls import Call
from workflows.state.manifest import Content, Manifest, manifest_path, read_manifest
from workflows.state.publishing import QUARANTINE_SUFFIX
from workflows.verification.checks import Check

if TYPE_CHECKING:
    from collections.abc import Collection

    from dsindex.verify.structure import IndexCounts
    from workflows.verification.checks import Checks
    from workflows.verification.report import VerifyReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What lies beside a dataset about it."""

    prefix: str
    """Path without suffix."""
    manifest: Manifest | None = None
    """None: there is none that can be read."""
    is_foreign: bool = False
    """What lies beside the dataset is of another one under the same name."""

    @property
    def content(self) -> Content | None:
        """What the manifest says of the dataset."""
        return self.manifest.content if self.manifest is not None else None


def read_recorded(report: VerifyReport, prefix: str, *, token_suffix: str) -> Recorded:
    """Read the manifest of a dataset; one of other files under the same name is none of its own.

    Args:
        report: Is told what is wrong with the manifest.
        prefix: Path without suffix.
        token_suffix: Of the file that the manifest must know.
    """
    try:
        refuse_irregular(manifest_path(prefix))
        manifest = read_manifest(prefix)
    except FormatError as error:
        report.findings.append(str(error))
        report.has_manifest = True
        return Recorded(prefix=prefix)
    unchecked = "digests, vocabulary and EOD could not be checked"
    if manifest is None:
        report.notes.append(f"no manifest lies beside it: {unchecked}")
        return Recorded(prefix=prefix)
    content = manifest.content
    others = content.digests.keys() & {"bin", "idx", "pbin"} - {token_suffix}
    if token_suffix not in content.digests and others:
        known = " and ".join(f".{suffix}" for suffix in sorted(others))
        report.notes.append(f"{manifest_path(prefix)} is of the {known} beside it: {unchecked}")
        return Recorded(prefix=prefix, is_foreign=True)
    report.has_manifest = True
    return Recorded(prefix=prefix, manifest=manifest)


def refuse_irregular(path: str) -> None:
    """Refuse to open what a reader could wait for; that nothing is there is fine.

    Raises:
        FormatError: If it is no regular file.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        msg = f"{path}: expected a regular file, got something else; move it away"
        raise FormatError(msg)


def compare_counts(report: VerifyReport, content: Content, counts: IndexCounts) -> None:
    """Compare what the index says with what the manifest says."""
    pairs = {
        "sequences": (content.sequences, counts.num_sequences),
        "documents": (content.documents, counts.num_documents),
        "tokens": (content.tokens, counts.num_tokens),
        "token_dtype": (content.token_dtype, counts.token_dtype),
    }
    report.findings += [
        f"{report.prefix}: expected {name} {expected} as in the manifest, got {got}; "
        f"the files are not those that the manifest was written for"
        for name, (expected, got) in pairs.items()
        if expected != got
    ]


def check_account(report: VerifyReport, content: Content, counts: IndexCounts, *, keeps_empty: bool) -> None:
    """Add up the account of lines, if there is one.

    Args:
        report: Is told what does not add up.
        content: Of the manifest.
        counts: Of the index.
        keeps_empty: Whether a record without tokens is a document.
    """
    account = content.account
    if account is None:
        return
    with_tokens = counts.num_documents - counts.num_empty_documents
    sums = [
        ("lines = records + blank", account.lines, account.records + account.blank),
        (
            "records = kept + quarantined + elsewhere",
            account.records,
            account.kept + account.quarantined + account.elsewhere,
        ),
        ("kept = documents with tokens + empty", account.kept, account.documents_with_tokens + account.empty_documents),
        ("documents with tokens", account.documents_with_tokens, with_tokens),
        ("empty documents", account.empty_documents if keeps_empty else 0, counts.num_empty_documents),
        ("lines of all inputs", account.lines, sum(file.lines or 0 for file in content.inputs)),
        ("records kept of all inputs", account.kept, sum(file.kept or 0 for file in content.inputs)),
    ]
    report.findings += [
        f"{report.prefix}: the account does not add up: {what}, but {left} and {right}; "
        f"the manifest was changed, or belongs to other files"
        for what, left, right in sums
        if left != right
    ]
    empty = "empty" if keeps_empty else "without tokens"
    report.checks.append(f"the account: every line of the input is a document, {empty}, blank or quarantined")


def plan_quarantine(checks: Checks, report: VerifyReport, recorded: Recorded) -> None:
    """Plan to count what was set aside."""
    account = recorded.content.account if recorded.content is not None else None
    path = f"{recorded.prefix}.{QUARANTINE_SUFFIX}"
    if account is None or not (account.quarantined or os.path.exists(path)):
        return
    call = Call(name="quarantine", place=path, function=verify_quarantine, arguments=(path, account.quarantined))
    checks.plan([Check(call=call, take=report.findings.extend)])
    report.checks.append("the quarantine: as many records as the account says")


def plan_files(
    checks: Checks, report: VerifyReport, recorded: Recorded, *, token_suffix: str, structural: Collection[str]
) -> None:
    """Plan to compare sizes and digests of the files that the manifest has.

    Args:
        checks: What is to be run.
        report: Is told what was found.
        recorded: The manifest.
        token_suffix: The file that is digested with its tokens.
        structural: Suffixes of files whose absence is found elsewhere.
    """
    for suffix, file in recorded.content.digests.items() if recorded.content is not None else ():
        path = f"{recorded.prefix}.{suffix}"
        if not os.path.isfile(path):
            if suffix not in structural:
                what = "expected a regular file, got something else" if os.path.exists(path) else "is missing"
                report.findings.append(f"{path}: {what}, and the manifest has it; restore it")
            continue
        size_bytes = os.path.getsize(path)
        if size_bytes != file.size_bytes:
            report.findings.append(
                f"{path}: expected {file.size_bytes} bytes as in the manifest, got {size_bytes}; restore or repair it"
            )
        elif suffix != token_suffix:
            call = Call(name=f"digest[{suffix}]", place=path, function=verify_digest, arguments=(path, file.digest))
            checks.plan([Check(call=call, take=report.findings.extend, size_bytes=size_bytes)], size_bytes=size_bytes)
            report.checks.append(f"digest of the .{suffix}")
