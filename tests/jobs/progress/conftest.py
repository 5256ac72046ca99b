"""The clock of the displays."""

import pytest

from dsindex.execution.progress import reporter as progress
from tests.jobs.progress.stage_play import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock
