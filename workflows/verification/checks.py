"""Checks that run as calls on an executor, their results taken in the order in which they were planned.

So a report says the same wherever the checks ran and whichever ended first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from workflows.execution.dispatch import run_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from workflows.execution.calls import Call, Executor
    from workflows.progress.reporter import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A call, and what becomes of its result."""

    call: Call
    take: Callable[[Any], None]
    size_bytes: int = 0
    """What it reads, for the progress display."""


class Checks:
    """What is still to be looked at."""

    def __init__(self, executor: Executor, reporter: Reporter) -> None:
        self.executor = executor
        self._reporter = reporter
        self._planned: list[Iterable[Check]] = []
        self._total_bytes = 0

    def plan(self, checks: Iterable[Check], *, size_bytes: int = 0) -> None:
        """Add checks; an iterator is asked for the next one when it can be started.

        Args:
            checks: Of which a few are held at a time.
            size_bytes: What they read together.
        """
        self._planned.append(checks)
        self._total_bytes += size_bytes

    def run(self) -> None:
        """Run all that was planned."""
        self._reporter.stage("verify", total=self._total_bytes, unit="bytes")
        started: dict[int, Check] = {}
        ended: dict[int, Any] = {}
        upcoming = 0

        def calls() -> Iterator[tuple[int, Call]]:
            for number, check in enumerate(chain.from_iterable(self._planned)):
                started[number] = check
                yield number, check.call

        def on_result(number: int, value: Any) -> None:  # noqa: ANN401 - each check has its own kind of result
            nonlocal upcoming
            ended[number] = value
            self._reporter.advance(started[number].size_bytes)
            while upcoming in ended:
                started.pop(upcoming).take(ended.pop(upcoming))
                upcoming += 1

        run_calls(self.executor, calls(), on_result=on_result, on_idle=self._reporter.tick)
