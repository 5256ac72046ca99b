"""What users get: types for their checker, and a source distribution that holds what it takes to test it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.exhaustive
def test_type_checkers_of_users_know_the_functions(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import dsindex\nreveal_type(dsindex.build)\nreveal_type(dsindex.open)\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", str(tmp_path / "cache"), "job.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    build, opened = ended.stdout.splitlines()[:2]
    assert "tokenizer: str | os.PathLike[str] | tokenizers" in build, ended.stdout
    assert build.endswith('-> dsindex.commands.build.BuildResult"')
    assert "-> dsindex.datasets.indexed.IndexedDataset |" in opened


def test_lowest_versions_are_those_of_the_ranges() -> None:
    ranges = (ROOT / "pyproject.toml").read_text()
    for line in (ROOT / "tests" / "lowest.txt").read_text().splitlines()[1:]:
        name, _, version = line.partition("==")
        lowest = re.sub(r"(\.0)+$", "", version)
        assert f'"{name}>={lowest}' in ranges, line
