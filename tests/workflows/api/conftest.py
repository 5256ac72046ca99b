"""Where and with what the functions run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in results and manifests are as given; two runs with the same names differ in their folder only."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _unconnected(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests that are not about Ray do not use the connection that others have left open for the session."""
    if request.node.get_closest_marker("ray") is None and "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "is_initialized", lambda: False)
