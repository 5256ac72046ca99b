"""What a benchmark gives: a row with our figures, the peer's beside them, and the target."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.benchmarks.processes import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; figures are per round, in the order of the rounds."""

    group: str
    name: str
    against: str = ""
    """The peer; empty where we are held against a number."""
    unit: str = "s"
    ours: tuple[float, ...] = ()
    peer: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    """How many times as good as the peer we are, per round."""
    cpu_ratios: tuple[float, ...] = ()
    """The same by CPU time, which others on the machine blur less."""
    target: float | None = None
    judged: Literal["ratio at least", "ours at most"] = "ratio at least"
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Judge the median; None where there is no target, or nothing was measured."""
        figures = self.ratios if self.judged == "ratio at least" else self.ours
        if self.target is None or not figures:
            return None
        reached = statistics.median(figures)
        return reached >= self.target if self.judged == "ratio at least" else reached <= self.target

    def to_json(self) -> dict[str, Any]:
        """Return everything that was measured and the verdict."""
        return {**asdict(self), "is_met": self.is_met}

    @staticmethod
    def from_json(figures: dict[str, Any]) -> Row:
        """Read what `to_json` gave."""
        return Row(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in figures.items()
                if name != "is_met"
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How something grows: for a picture, log-log."""

    group: str
    name: str
    x_unit: str
    y_unit: str
    points: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the points."""
        return asdict(self)


def compare_runs(group: str, name: str, against: str, *, ours: Sequence[Run], peer: Sequence[Run], **more: Any) -> Row:
    """Make a row of whole runs, by time. A peer that ran fewer rounds stands for the others by its last one."""
    pairs = [(mine, peer[min(number, len(peer) - 1)]) for number, mine in enumerate(ours)] if peer else []
    return Row(
        group=group,
        name=name,
        against=against,
        ours=tuple(run.seconds for run in ours),
        peer=tuple(run.seconds for run in peer),
        ratios=tuple(other.seconds / mine.seconds for mine, other in pairs),
        cpu_ratios=tuple(other.cpu_seconds / max(mine.cpu_seconds, 1e-3) for mine, other in pairs),
        **more,
    )


def median_of(runs: Sequence[Run], figure: Callable[[Run], float]) -> float:
    """Return the median of one figure over runs."""
    return statistics.median(figure(run) for run in runs)


def absent(group: str, name: str, against: str, remedy: str, *, target: float | None = None) -> Row:
    """Make a row for a peer that is not there."""
    return Row(group=group, name=name, against=against, target=target, note=f"not measured: {remedy}")
