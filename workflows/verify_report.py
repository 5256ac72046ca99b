"""What a verification says of one dataset: what was looked at, what was found, what could not be checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsindex.verify.structure import IndexCounts


@dataclass(slots=True)
class VerifyReport:
    """What was looked at and what was found."""

    prefix: str
    """The dataset as it was given; of packed data the path of the `.pbin`."""
    checks: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""
    counts: IndexCounts | None = None
    era: str | None = None
    """Of a `.pbin`."""
    has_manifest: bool = False

    @property
    def is_whole(self) -> bool:
        """True when nothing was found."""
        return not self.findings
