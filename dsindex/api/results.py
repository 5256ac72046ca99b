"""Results that only the API has; the others are the reports of the jobs.

Results of functions that made or checked datasets have `prefixes`, and
can be passed wherever a dataset is expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.engine.report import Report
from dsindex.tools.verify_report import describe_verifications

if TYPE_CHECKING:
    from dsindex.tools.verify_report import VerifyReport


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult(Report):
    """The findings of a verification; true if there are none."""

    reports: tuple[VerifyReport, ...]
    """One per dataset, in the order given."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets that were verified."""
        return tuple(report.prefix for report in self.reports)

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings about any dataset."""
        return all(report.is_whole for report in self.reports)

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings about all datasets, each a sentence."""
        return tuple(finding for report in self.reports for finding in report.findings)

    def __bool__(self) -> bool:
        return self.is_whole

    def lines(self) -> list[str]:
        """Return the findings and what was done, as the command line prints them."""
        return describe_verifications(self.reports)

    def __repr__(self) -> str:
        verdicts = (f"{report.prefix}: {'whole' if report.is_whole else 'DAMAGED'}" for report in self.reports)
        return f"{type(self).__name__}({', '.join(verdicts)})"
