"""What a verification says of one dataset: what was looked at, what was found, what could not be checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.checks.structure import IndexCounts
    from workflows.verification.checks import Check, RanCheck, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was looked at and what was found."""

    prefix: str
    """The dataset as it was given; of packed data the path of the `.pbin`."""
    checks: tuple[str, ...] = ()
    """What was checked to its end, whether or not something was found."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be checked, and why."""
    counts: IndexCounts | None = None
    version: str | None = None
    """Of a `.pbin`."""
    has_manifest: bool = False
    is_there: bool = True
    """False: none of the dataset's files exists; the finding says which were looked for."""

    @property
    def is_whole(self) -> bool:
        """True when nothing was found."""
        return not self.findings


def make_report(
    prefix: str,
    ran: Sequence[RanCheck],
    *,
    counts: IndexCounts | None = None,
    version: str | None = None,
    has_manifest: bool = False,
) -> VerifyReport:
    """Fold checks that ran into a report: first what was known without a call, then what the calls say.

    Args:
        prefix: The dataset as it was given.
        ran: In the order of the plan.
        counts: What its index says, if that is whole.
        version: Of a `.pbin`.
        has_manifest: Whether a manifest of its own lies beside it.
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
    """Return the report on a dataset none of whose files exists; None where there is one.

    Args:
        given: The dataset as it was given.
        paths: Where its files would be.
    """
    if any(map(os.path.lexists, paths)):
        return None
    sought = " and ".join((", ".join(paths[:-1]), paths[-1]) if len(paths) > 1 else paths)
    finding = f"there is no dataset: looked for {sought}; check the path"
    if os.path.isdir(given):
        finding += ", which is that of a folder: add the name of a dataset in it, without .bin and .idx"
    return VerifyReport(prefix=given, findings=(finding,), is_there=False)
