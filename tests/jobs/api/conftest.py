"""Where the functions run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in results and manifests are as given; two runs with the same names differ in their folder only."""
    monkeypatch.chdir(tmp_path)
