"""The clock of the displays."""

from __future__ import annotations

import pytest

from tests.workflows.progress.stage_play import Clock
from workflows.progress import reporter as progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock
