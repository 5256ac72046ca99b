"""The lowest versions that CI tries are those that the package asks for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_lowest_versions_are_those_of_the_ranges() -> None:
    ranges = (ROOT / "pyproject.toml").read_text()
    for line in (ROOT / "tests" / "lowest.txt").read_text().splitlines()[1:]:
        name, _, version = line.partition("==")
        lowest = re.sub(r"(\.0)+$", "", version)
        assert f'"{name}>={lowest}' in ranges, line
