"""A stage of a job at one moment, and the protocol of the displays that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A stage at one moment, with everything that displays show."""

    stage: str
    unit: str
    """Unit of `done` and `total`: bytes, or things such as datasets."""
    done: int
    """Finished units, including an earlier run's."""
    total: int
    tasks: str
    """Name of the stage's tasks: shards, ranges."""
    tasks_done: int
    tasks_total: int
    """Number of tasks; 0 if the stage counts only units."""
    documents: int
    tokens: int
    seconds: float
    """Seconds since the stage began."""
    speed: float
    """Recent units per second of fresh work."""
    average_speed: float
    """Units per second of fresh work since the stage began."""
    tokens_per_second: float
    """Recent tokens per second of fresh work; of a stage that ended, the average."""
    eta_seconds: float | None
    """Estimated seconds until the stage ends; None if no fresh work is done yet, or none is left."""
    retries: int
    """Retries in this stage."""
    lost_workers: int
    """Workers lost in this stage."""
    stragglers: int
    """Second attempts at slow tasks in this stage."""
    waiting: str | None = None
    """What the stage is waiting for while no task can run, such as a cluster's nodes."""

    @property
    def share(self) -> float:
        """Share that is done, from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Display(Protocol):
    """Shows snapshots and messages."""

    seconds: float
    """Interval between two snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a running stage."""
        ...

    def end(self, snapshot: Snapshot) -> None:
        """Show a stage that ended."""
        ...

    def say(self, text: str) -> None:
        """Show a message."""
        ...

    def close(self, error: BaseException | None) -> None:
        """Stop showing; `error` is the exception that ended the job, if any."""
        ...
