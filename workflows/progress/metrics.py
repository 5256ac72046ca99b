"""Progress as Prometheus metrics of a Ray cluster: `ray_dsindex_…`, scraped from the node where the driver runs.

Ray is imported here only when a job runs on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.util.metrics import Counter, Gauge

if TYPE_CHECKING:
    from workflows.progress.snapshot import Snapshot

GAUGES = {
    "done": "units of the stage that are done: bytes, or tasks",
    "total": "units of the stage",
    "tasks_done": "tasks of the stage that are done",
    "tasks_total": "tasks of the stage",
    "speed": "units per second of late",
    "tokens_per_second": "tokens per second of late",
    "eta_seconds": "seconds that the stage will take from now",
}
COUNTERS = {
    "documents": "documents tokenized or found done",
    "tokens": "tokens made or found done",
    "retries": "attempts that were made again",
    "lost_workers": "workers lost while they ran a task",
    "stragglers": "tasks that took so long that a second attempt was started",
}


class RayMetrics:
    """A display that is Ray's metrics agent."""

    seconds = 2.0

    def __init__(self) -> None:
        self._gauges = {name: Gauge(f"dsindex_{name}", text, ("stage",)) for name, text in GAUGES.items()}
        self._counters = {name: Counter(f"dsindex_{name}", text, ("stage",)) for name, text in COUNTERS.items()}
        self._counted: dict[str, int] = {}
        """What the counters have already of the running stage."""

    def show(self, snapshot: Snapshot) -> None:
        """Set the gauges and count up."""
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
        """Show the end, after which counts begin again at 0."""
        self.show(snapshot)
        self._counted.clear()

    def say(self, text: str) -> None:
        """Nothing to do: metrics are figures."""

    def close(self, error: BaseException | None) -> None:
        """Nothing to do: Ray keeps the last figures until the driver ends."""
