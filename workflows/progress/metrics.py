"""Progress as Prometheus metrics of a Ray cluster: `ray_dsindex_…`, scraped from the node where the driver runs.

Ray's metrics agent keeps a counter for as long as its node lives, and a gauge for about 20 s after it was set last. So
everything here is a gauge, counts as well: they begin at 0, are set again and again while the driver lives, and end
with it. What is unknown is not set, so it has no series.

Ray is imported here only when a job runs on it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ray.util.metrics import Gauge

from dsindex.json_text import show_name
from workflows.progress.heartbeat import Heartbeat

if TYPE_CHECKING:
    from workflows.progress.snapshot import Snapshot

GAUGES = {
    "done": "finished units of the stage: bytes, or things such as datasets",
    "total": "units of the stage",
    "tasks_done": "finished tasks of the stage",
    "tasks_total": "tasks of the stage",
    "speed": "recent units per second",
    "tokens_per_second": "recent tokens per second",
    "eta_seconds": "estimated seconds until the stage ends; absent while it is unknown",
}
"""Set while their stage runs, from fields of snapshots."""
COUNTS = {
    "documents": "documents tokenized, or kept from an earlier run",
    "tokens": "tokens made, or kept from an earlier run",
    "retries": "attempts that were retried",
    "lost_workers": "workers lost while they ran a task",
    "stragglers": "tasks so slow that a second attempt was started",
}
"""Named `…_total` and set until the driver ends; they only grow."""
LABELS = ("build", "stage")
BEAT_SECONDS = 5.0
"""Shorter than the 10 s at which Ray exports metrics."""


class RayMetrics:
    """A display that sends figures to Ray's metrics agent.

    Args:
        build: The value of the label `build`: the prefix of the build's output.
    """

    seconds = 2.0

    def __init__(self, *, build: str) -> None:
        # Ray accepts ASCII only.
        self._build = show_name(build).encode("ascii", "backslashreplace").decode()
        self._gauges = {name: Gauge(f"dsindex_{name}", text, LABELS) for name, text in GAUGES.items()}
        self._counts = {name: Gauge(f"dsindex_{name}_total", text, LABELS) for name, text in COUNTS.items()}
        self._lock = threading.Lock()
        self._running: Snapshot | None = None
        self._stages: dict[str, Snapshot] = {}
        """The last snapshot of every stage so far."""
        self._heartbeat = Heartbeat(self._send, seconds=BEAT_SECONDS)

    def show(self, snapshot: Snapshot) -> None:
        """Set the figures of the running stage, and the counts of all."""
        with self._lock:
            self._running = self._stages[snapshot.stage] = snapshot
        self._send()

    def end(self, snapshot: Snapshot) -> None:
        """Set the last figures of a stage; from then on only its counts."""
        self.show(snapshot)
        with self._lock:
            self._running = None

    def say(self, text: str) -> None:
        """Do nothing: metrics are figures."""

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 - figures do not tell how a job ended
        """Stop setting figures; Ray drops them soon."""
        self._heartbeat.stop()

    def _send(self) -> None:
        with self._lock:
            if self._running is not None:
                for name, gauge in self._gauges.items():
                    self._set(gauge, self._running, name)
            for stage in self._stages.values():
                for name, count in self._counts.items():
                    self._set(count, stage, name)

    def _set(self, gauge: Gauge, snapshot: Snapshot, name: str) -> None:
        value = getattr(snapshot, name)
        if value is not None:
            gauge.set(value, {"build": self._build, "stage": snapshot.stage})
