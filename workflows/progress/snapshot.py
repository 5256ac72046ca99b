"""A stage of a job at one moment, and what shows it to somebody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A stage at one moment: all that any display shows."""

    stage: str
    unit: str
    """Of `done` and `total`: bytes, or things such as datasets."""
    done: int
    """What an earlier run did included."""
    total: int
    tasks: str
    """What the tasks of this stage are called: shards, ranges."""
    tasks_done: int
    tasks_total: int
    """0 where the stage counts nothing but its units."""
    documents: int
    tokens: int
    seconds: float
    """Since the stage began."""
    speed: float
    """Units per second, of fresh work of late."""
    average_speed: float
    """Units per second, of fresh work since the stage began."""
    tokens_per_second: float
    """Of fresh work, as `speed`; in a stage that ended, as `average_speed`."""
    eta_seconds: float | None
    """None where nothing fresh was done yet, or nothing is left."""
    retries: int
    """Of this stage, as the next two."""
    lost_workers: int
    stragglers: int

    @property
    def share(self) -> float:
        """Part that is done, 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Display(Protocol):
    """Shows snapshots to somebody."""

    seconds: float
    """How often it wants one."""

    def show(self, snapshot: Snapshot) -> None:
        """Show how a stage goes."""
        ...

    def end(self, snapshot: Snapshot) -> None:
        """Show how a stage ended."""
        ...

    def say(self, text: str) -> None:
        """Tell one thing once."""
        ...

    def close(self, error: BaseException | None) -> None:
        """Show nothing more; `error` is what ended the job."""
        ...
