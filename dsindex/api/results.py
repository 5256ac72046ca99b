"""Results that only the API has; the others are the reports of the jobs.

Results of functions that made or checked datasets have `prefixes`, and
can be passed wherever a dataset is expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.execution.report import Report
from dsindex.jobs.rescue_files import RepairReport, describe_repair
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult(RepairReport, Report):
    """A repaired dataset, and what was saved and lost."""

    source: str
    """The damaged dataset."""
    target: str
    """The new dataset."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The new dataset; the old one if it was intact, so that nothing was written."""
        return (self.target if self.outputs else self.source,)

    def lines(self) -> list[str]:
        """Return the findings and what was done, as the command line prints them."""
        return describe_repair(self.source, self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefixes[0]}: {self.way}, {len(self.lost)} losses)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRepairResult(Report):
    """A repaired `.pbin` that Modalities had joined."""

    source: str
    target: str
    num_joints: int
    """Number of joints whose offsets were repaired; if 0, the file was intact and nothing was written."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The new file; the old one if it was intact."""
        return (self.target if self.num_joints else self.source,)

    def lines(self) -> list[str]:
        """Return the findings and what was done, as the command line prints them."""
        from dsindex.jobs.repair import describe_packed_repair  # loads the jobs

        return describe_packed_repair(self.source, self.target, self.num_joints)
