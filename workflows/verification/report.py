"""The report on one verified dataset: completed checks, findings, and notes on what could not be checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.objects.urls import is_url
from dsindex.readable import is_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.checks.structure import IndexCounts
    from workflows.verification.checks import Check, RanCheck, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a verification."""

    prefix: str
    """The dataset as given: a prefix, or the path of a `.pbin`."""
    checks: tuple[str, ...] = ()
    """Names of the completed checks, with or without findings."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about what could not be checked, and why."""
    counts: IndexCounts | None = None
    version: str | None = None
    """Version of a `.pbin`."""
    has_manifest: bool = False
    is_there: bool = True
    """False if none of the dataset's files exists; the finding then names the missing files."""

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def make_report(
    prefix: str,
    ran: Sequence[RanCheck],
    *,
    counts: IndexCounts | None = None,
    version: str | None = None,
    has_manifest: bool = False,
) -> VerifyReport:
    """Return the report of completed checks: first what was known without a call, then the verdicts.

    Args:
        prefix: The dataset as given.
        ran: The checks, in the order of the report.
        counts: Counts of the index; None if it is damaged.
        version: Version of a `.pbin`.
        has_manifest: Whether the dataset has a manifest.
    """
    checks, verdicts = [each.check for each in ran], [each.verdict for each in ran]
    said: list[Check | Verdict] = [*checks, *verdicts]
    return VerifyReport(
        prefix=prefix,
        checks=(
            *(check.name for check in checks if check.name is not None),
            *(name for verdict in verdicts for name in verdict.checked),
        ),
        findings=tuple(finding for each in said for finding in each.findings),
        notes=tuple(note for each in said for note in each.notes),
        counts=counts,
        version=version,
        has_manifest=has_manifest,
    )


def report_absence(given: str, paths: Sequence[str]) -> VerifyReport | None:
    """Return the report on a dataset of which no file exists; None if there is one.

    Args:
        given: The dataset as given.
        paths: Paths of its files.
    """
    if any(is_stored(path) if is_url(path) else os.path.lexists(path) for path in paths):
        return None
    sought = " and ".join((", ".join(paths[:-1]), paths[-1]) if len(paths) > 1 else paths)
    finding = f"there is no dataset: looked for {sought}; check the path"
    if os.path.isdir(given):
        finding += ", which is a folder; add the name of a dataset in it, without .bin and .idx"
    return VerifyReport(prefix=given, findings=(finding,), is_there=False)
