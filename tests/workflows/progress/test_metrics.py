"""The figures that Ray's dashboard and Prometheus get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.processes import wait_until
from tests.workflows.progress.stage_play import MB, SNAPSHOT

# Prometheus


Gauges = dict[tuple[str, ...], float]


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Gauges:
    """What is set, in place of Ray's agent: name, build and stage → value."""
    from workflows.progress import metrics

    values: Gauges = {}

    class Fake:
        def __init__(self, name: str, _description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.labels = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags["build"].isascii()  # Ray refuses others
            values[self.name, *(tags[label] for label in self.labels)] = value

    monkeypatch.setattr(metrics, "Gauge", Fake)
    return values


def metrics_display(build: str = "/out/x") -> Any:
    from workflows.progress.metrics import RayMetrics

    return RayMetrics(build=build)


def test_metrics_name_the_build_and_begin_at_zero(gauges: Gauges) -> None:
    display = metrics_display("/out/ä x")
    display.show(replace(SNAPSHOT, documents=0, tokens=0, done=0, eta_seconds=None))
    display.close(None)
    build = "/out/\\xe4 x"
    for name in ("documents", "tokens", "retries", "lost_workers", "stragglers"):
        assert gauges.pop((f"dsindex_{name}_total", build, "tokenize")) == 0
    assert gauges.pop(("dsindex_done", build, "tokenize")) == 0
    assert gauges.pop(("dsindex_total", build, "tokenize")) == 1000 * MB
    assert {name for name, *_ in gauges} == {
        f"dsindex_{name}" for name in ("tasks_done", "tasks_total", "speed", "tokens_per_second")
    }  # nothing about the ETA, which is unknown


def test_counts_of_every_stage_stay_and_other_figures_end_with_their_stage(gauges: Gauges) -> None:
    display = metrics_display()
    display.show(SNAPSHOT)
    assert gauges["dsindex_eta_seconds", "/out/x", "tokenize"] == 192.0
    display.end(replace(SNAPSHOT, documents=200_001, retries=2))
    gauges.clear()  # as Ray's agent does with what is not set again
    display.show(replace(SNAPSHOT, stage="merge", documents=0, retries=1))
    display.close(None)
    assert gauges["dsindex_documents_total", "/out/x", "tokenize"] == 200_001
    assert gauges["dsindex_retries_total", "/out/x", "tokenize"] == 2
    assert gauges["dsindex_retries_total", "/out/x", "merge"] == 1
    assert gauges["dsindex_done", "/out/x", "merge"] == 250 * MB
    assert ("dsindex_done", "/out/x", "tokenize") not in gauges


def test_figures_are_repeated_while_the_driver_is_busy(gauges: Gauges, monkeypatch: pytest.MonkeyPatch) -> None:
    from workflows.progress import metrics

    monkeypatch.setattr(metrics, "BEAT_SECONDS", 0.01)
    display = metrics_display()
    display.show(SNAPSHOT)
    gauges.clear()
    wait_until(lambda: ("dsindex_speed", "/out/x", "tokenize") in gauges)
    display.close(None)
    gauges.clear()
    assert not gauges
