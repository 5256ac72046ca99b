"""How a stage went over its time: a few hundred points at most, however long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflows.progress.snapshot import Snapshot

MOST_POINTS = 240
SERIES_FIELDS = ("seconds", "done", "tokens", "retries", "lost_workers")
"""What each point has, in this order, counted from the beginning of the stage."""

Point = tuple[float, int, int, int, int]


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
        if snapshot.stage != self._stage or (self._points and snapshot.seconds < self._points[-1][0]):
            self._stage, self._points, self._step = snapshot.stage, [], 0.0
        before = self._points[-1][0] if self._points else None
        if last or before is None or snapshot.seconds - before >= self._step:
            point = (snapshot.seconds, snapshot.done, snapshot.tokens, snapshot.retries, snapshot.lost_workers)
            self._points.append((round(point[0], 3), *point[1:]))
        if len(self._points) > MOST_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]
            self._step = 1.5 * self._points[-1][0] / len(self._points)
        return list(self._points)
