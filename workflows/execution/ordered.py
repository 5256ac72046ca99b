"""Run calls on any executor and return their results in the order of the calls."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any

from workflows.execution.calls import Call
from workflows.execution.dispatch import Dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from workflows.execution.calls import Executor
    from workflows.execution.dispatch import DispatchStatistics, RetryPolicy

WINDOW = 8
"""Calls per slot that are started beyond the first whose result is missing, which limits the results that wait."""


def run_in_order(
    executor: Executor,
    calls: Iterable[Call],
    *,
    policy: RetryPolicy | None = None,
    statistics: DispatchStatistics | None = None,
    on_idle: Callable[[], None] | None = None,
) -> Generator[Any]:
    """Run calls and yield their results in the order of the calls.

    Args:
        executor: The executor to run them on.
        calls: The calls, consumed as slots become free and at most WINDOW per slot ahead of the results.
        policy: Budgets and deadline.
        statistics: Counters to increase.
        on_idle: Called at least every half second while waiting for a result.

    Raises:
        DsindexError: The data fault of the first call that has one, after the results of all calls before it.
        TaskError: If a call used up a budget.
    """
    numbered = enumerate(calls)
    first = islice(numbered, WINDOW * executor.slots)
    dispatch = Dispatch(executor, first, policy=policy, statistics=statistics, on_idle=on_idle)
    ended: dict[int, Any] = {}
    upcoming = 0
    with contextlib.closing(dispatch.run()) as results:
        for number, value in results:
            ended[number] = value
            while upcoming in ended:
                upcoming += 1
                dispatch.release(islice(numbered, 1))
                yield ended.pop(upcoming - 1)


def ordered_runner(
    executor: Executor, *, name: str, policy: RetryPolicy | None = None
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Return a function for the library's `run_tasks` arguments: it maps a function over tasks, in order.

    Args:
        executor: The executor to run tasks on.
        name: Name of the tasks shown to users, as in `name[7]`.
        policy: Budgets and deadline.
    """

    def run_tasks(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        calls = (
            Call(name=f"{name}[{number}]", place=f"range {number}", function=function, arguments=(task,))
            for number, task in enumerate(tasks)
        )
        return run_in_order(executor, calls, policy=policy)

    return run_tasks
