"""Results in the order of the tasks, on any executor: what the library's own jobs take as `run_tasks`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from workflows.execution.calls import Call
from workflows.execution.dispatch import run_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from workflows.execution.calls import Executor
    from workflows.execution.dispatch import RetryPolicy

GROUP = 8
"""Tasks per slot that are dispatched before their results are handed on: this many results wait at most."""


def ordered_runner(
    executor: Executor, *, name: str, policy: RetryPolicy | None = None
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Yield a function that runs another one on every task and yields the results in the order of the tasks.

    Args:
        executor: Where to run.
        name: What people see of a task: `name[7]`.
        policy: Budgets and deadline.
    """

    def run_tasks(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        numbered = enumerate(tasks)
        while group := list(islice(numbered, GROUP * executor.slots)):
            results: dict[int, Any] = {}
            calls = [
                (number, Call(name=f"{name}[{number}]", place=f"range {number}", function=function, arguments=(task,)))
                for number, task in group
            ]
            run_calls(executor, calls, on_result=results.__setitem__, policy=policy)
            for number, _ in group:
                yield results.pop(number)

    return run_tasks
