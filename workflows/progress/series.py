"""How a stage went over its time: a few hundred points at most, however long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflows.progress.snapshot import Snapshot

MOST_POINTS = 240
SERIES_FIELDS = ("seconds", "done", "retries", "lost_workers")
"""What each point has, in this order; the first one is the beginning, with the work that an earlier run had done."""

Point = tuple[float, int, int, int]


class Series:
    """The points of a running stage. Once there are too many, every other one is left out, and fewer are added."""

    def __init__(self) -> None:
        self._stage = ""
        self._points: list[Point] = []
        self._step = 0.0
        """The least time between two points, in seconds."""

    def add(self, snapshot: Snapshot, *, last: bool = False) -> list[Point]:
        """Add a snapshot, and return all points of its stage.

        Args:
            snapshot: The stage; another one than before begins anew.
            last: Whether the stage has ended, so that the point is kept in any case.
        """
        if snapshot.stage != self._stage or (snapshot.seconds < self._points[-1][0]):
            kept = snapshot.done - round(snapshot.average_speed * snapshot.seconds)
            self._stage, self._points, self._step = snapshot.stage, [(0.0, max(0, kept), 0, 0)], 0.0
        if last or snapshot.seconds - self._points[-1][0] >= self._step:
            seconds = round(snapshot.seconds, 3)
            self._points.append((seconds, snapshot.done, snapshot.retries, snapshot.lost_workers))
        if len(self._points) > MOST_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]
            self._step = 1.5 * self._points[-1][0] / len(self._points)
        return list(self._points)
