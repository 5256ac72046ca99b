"""Progress as Prometheus metrics of a Ray cluster: `ray_dsindex_…`, scraped from the node where the driver runs.

Ray is imported here only when a job runs on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.util.metrics import Counter, Gauge

if TYPE_CHECKING:
    from workflows.progress.snapshot import Snapshot

GAUGES = {
    "done": "finished units of the stage: bytes, or tasks",
    "total": "units of the stage",
    "tasks_done": "finished tasks of the stage",
    "tasks_total": "tasks of the stage",
    "speed": "recent units per second",
    "tokens_per_second": "recent tokens per second",
    "eta_seconds": "estimated seconds until the stage ends",
}
COUNTERS = {
    "documents": "documents tokenized, or kept from an earlier run",
    "tokens": "tokens made, or kept from an earlier run",
    "retries": "attempts that were retried",
    "lost_workers": "workers lost while they ran a task",
    "stragglers": "tasks so slow that a second attempt was started",
}


class RayMetrics:
    """A display that sends figures to Ray's metrics agent."""

    seconds = 2.0

    def __init__(self) -> None:
        self._gauges = {name: Gauge(f"dsindex_{name}", text, ("stage",)) for name, text in GAUGES.items()}
        self._counters = {name: Counter(f"dsindex_{name}", text, ("stage",)) for name, text in COUNTERS.items()}
        self._counted: dict[str, int] = {}
        """Counts of the running stage that the counters already include."""

    def show(self, snapshot: Snapshot) -> None:
        """Set the gauges and increase the counters."""
        tags = {"stage": snapshot.stage}
        for name, gauge in self._gauges.items():
            gauge.set(getattr(snapshot, name) or 0, tags)
        for name, counter in self._counters.items():
            now = getattr(snapshot, name)
            more = now - self._counted.get(name, 0)
            self._counted[name] = now
            if more > 0:
                counter.inc(more, tags)

    def end(self, snapshot: Snapshot) -> None:
        """Show the last figures, and start the next stage's counts at 0."""
        self.show(snapshot)
        self._counted.clear()

    def say(self, text: str) -> None:
        """Do nothing: metrics are figures."""

    def close(self, error: BaseException | None) -> None:
        """Do nothing: Ray keeps the last figures until the driver ends."""
