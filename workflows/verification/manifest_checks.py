"""Check a dataset of any kind against its manifest: counts of the index, record counts, and files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsindex.checks.structure import verify_digest, verify_quarantine
from dsindex.errors import FormatError
from dsindex.readable import is_stored, stored_size
from workflows.execution.calls import Call
from workflows.state.manifest import Content, Manifest, manifest_path, read_manifest
from workflows.state.publishing import QUARANTINE_SUFFIX
from workflows.verification.checks import Check, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from dsindex.checks.structure import IndexCounts


_UNCHECKED = "digests, vocabulary and EOD could not be checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A dataset's manifest, as far as it can be read."""

    prefix: str
    """Path without suffix."""
    manifest: Manifest | None = None
    """The manifest; None if it is missing, damaged or another dataset's."""
    is_foreign: bool = False
    """Whether the manifest belongs to another dataset under the same name."""
    is_there: bool = False
    """Whether this dataset has a manifest, readable or not."""
    check: Check = field(default_factory=Check)
    """Findings and notes about the manifest itself."""

    @property
    def content(self) -> Content | None:
        """The manifest's part about the dataset; None if there is no usable manifest."""
        return self.manifest.content if self.manifest is not None else None


def read_recorded(prefix: str, *, token_suffix: str) -> Recorded:
    """Read the manifest of a dataset, and recognise one of another dataset under the same name.

    Args:
        prefix: Path without suffix.
        token_suffix: Suffix of the token file, which the manifest must list.
    """
    try:
        refuse_irregular(manifest_path(prefix))
        manifest = read_manifest(prefix)
    except FormatError as error:
        return Recorded(prefix=prefix, is_there=True, check=Check(findings=(str(error),)))
    if manifest is None:
        return Recorded(prefix=prefix, check=Check(notes=(f"there is no manifest: {_UNCHECKED}",)))
    content = manifest.content
    others = content.digests.keys() & {"bin", "idx", "pbin"} - {token_suffix}
    if token_suffix not in content.digests and others:
        known = " and ".join(f".{suffix}" for suffix in sorted(others))
        note = f"{manifest_path(prefix)} belongs to the {known}: {_UNCHECKED}"
        return Recorded(prefix=prefix, is_foreign=True, check=Check(notes=(note,)))
    return Recorded(prefix=prefix, manifest=manifest, is_there=True)


def refuse_irregular(path: str) -> None:
    """Refuse a path that is not a regular file, since opening a pipe could block; a missing file is accepted.

    Raises:
        FormatError: If it exists and is not a regular file.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        msg = f"{path}: expected a regular file, got something else; move it away"
        raise FormatError(msg)


def check_counts(given: str, content: Content, counts: IndexCounts) -> Check:
    """Compare the counts of the index with the manifest.

    Args:
        given: The dataset, for messages.
        content: The manifest's content.
        counts: The counts of the index.
    """
    pairs = {
        "sequences": (content.sequences, counts.num_sequences),
        "documents": (content.documents, counts.num_documents),
        "tokens": (content.tokens, counts.num_tokens),
        "token_dtype": (content.token_dtype, counts.token_dtype),
    }
    return Check(
        findings=tuple(
            f"{given}: expected {name} {expected} as in the manifest, got {got}; the manifest belongs to other files"
            for name, (expected, got) in pairs.items()
            if expected != got
        )
    )


def check_record_counts(given: str, content: Content, counts: IndexCounts, *, keeps_empty: bool) -> Check:
    """Check that the record counts add up, if the manifest has them.

    Args:
        given: The dataset, for messages.
        content: The manifest's content.
        counts: The counts of the index.
        keeps_empty: Whether a record without tokens is a document.
    """
    account = content.account
    if account is None:
        return Check()
    if content.options.empty_documents == "eod":  # their tokens are EOD
        with_tokens, keeps_empty = counts.num_documents - account.empty_documents, False
    else:
        with_tokens = counts.num_documents - counts.num_empty_documents
    sums = [
        ("lines = records + blank", account.lines, account.records + account.blank),
        (
            "records = kept + filtered + quarantined + elsewhere",
            account.records,
            account.kept + account.filtered + account.quarantined + account.elsewhere,
        ),
        ("kept = documents with tokens + empty", account.kept, account.documents_with_tokens + account.empty_documents),
        ("documents with tokens = those of the index", account.documents_with_tokens, with_tokens),
        (
            "empty documents = those of the index",
            account.empty_documents if keeps_empty else 0,
            counts.num_empty_documents,
        ),
        ("lines = lines of all inputs", account.lines, sum(file.lines or 0 for file in content.inputs)),
        ("kept = records kept of all inputs", account.kept, sum(file.kept or 0 for file in content.inputs)),
    ]
    empty = "empty" if keeps_empty else "without tokens"
    filtered = " filtered," if account.filtered else ""
    return Check(
        name=f"record counts: every line of the input is a document, {empty},{filtered} blank or quarantined",
        findings=tuple(
            f"{given}: the record counts do not add up: expected {what}, got {left} and {right}; "
            f"the manifest was changed, or belongs to other files"
            for what, left, right in sums
            if left != right
        ),
    )


def check_quarantine(recorded: Recorded) -> Check:
    """Check the number of quarantined records, if there are any."""
    account = recorded.content.account if recorded.content is not None else None
    path = f"{recorded.prefix}.{QUARANTINE_SUFFIX}"
    if account is None or not (account.quarantined or os.path.exists(path) or is_stored(path)):
        return Check()
    call = Call(name="quarantine", place=path, function=verify_quarantine, arguments=(path, account.quarantined))
    return Check(name="quarantine: the number of records in the manifest", steps=[Step(call=call)])


def check_files(recorded: Recorded, *, token_suffix: str, structural: Collection[str]) -> Iterator[Check]:
    """Compare files with the sizes and digests in the manifest.

    Args:
        recorded: The dataset's manifest.
        token_suffix: Suffix of the token file, whose digest is checked together with its tokens.
        structural: Suffixes of files whose absence another check reports.
    """
    for suffix, file in recorded.content.digests.items() if recorded.content is not None else ():
        path = f"{recorded.prefix}.{suffix}"
        if not is_stored(path):
            if suffix not in structural:
                what = "expected a regular file, got something else" if os.path.exists(path) else "is missing"
                yield Check(findings=(f"{path}: {what}, but the manifest lists it; restore it",))
            continue
        size_bytes = stored_size(path)
        if size_bytes != file.size_bytes:
            finding = (
                f"{path}: expected {file.size_bytes} bytes as in the manifest, got {size_bytes}; restore or repair it"
            )
            yield Check(findings=(finding,))
        elif suffix != token_suffix:
            call = Call(name=f"digest[{suffix}]", place=path, function=verify_digest, arguments=(path, file.digest))
            yield Check(name=f"digest of the .{suffix}", steps=[Step(call=call, size=size_bytes)], size=size_bytes)
