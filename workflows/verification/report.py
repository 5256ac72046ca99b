"""What a verification says of one dataset: what was looked at, what was found, what could not be checked."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    is_there: bool = True
    """False: none of the dataset's files exists; the finding says which were looked for."""

    @property
    def is_whole(self) -> bool:
        """True when nothing was found."""
        return not self.findings


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
    return VerifyReport(given, findings=[finding], is_there=False)
