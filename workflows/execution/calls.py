"""Calls, how they end, and the executors that run them.

An executor starts calls and reports which have ended; retries, stragglers and lost workers are the dispatch's business.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One function to run somewhere, on arguments that can be pickled."""

    name: str
    """What people see: `tokenize[00042]`."""
    place: str
    """What it works on, for messages."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """May hold values that `Executor.share` gave."""
    memory_bytes: int = 0
    """What the task needs at its peak, where the scheduler can reserve memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt at a call ended."""

    attempt_id: int
    value: Any = None
    error: BaseException | None = None
    """What the function raised, or why its worker was lost."""
    worker_lost: bool = False
    """The worker died or could not be reached: the call itself may be innocent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What a function said on one machine."""

    value: Any = None
    error: BaseException | None = None


class Executor(Protocol):
    """Runs calls. Not thread-safe: one driver owns it."""

    kind: str
    slots: int
    """Calls that run at once."""
    backlog: int
    """Calls worth having started beyond `slots`, so that no slot waits for the driver."""
    is_cluster: bool
    """Tasks may run on other machines than the driver's."""

    def share(self, value: object) -> object:
        """Make a large argument available to all workers once; pass what this returns in `Call.arguments`."""
        ...

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Begin one attempt and return its id.

        Args:
            call: What to run.
            beyond_slots: Do not wait for a slot, where that is possible: those that are taken may hang.
        """
        ...

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the attempts that ended, waiting for at least one up to `timeout` seconds."""
        ...

    def abandon(self, attempt_id: int) -> None:
        """Stop an attempt where that is possible; its outcome will not be reported."""
        ...

    def on_every_node(self, call: Call, *, timeout: float) -> dict[str, NodeAnswer]:
        """Run a call once on each machine that runs tasks, and give the answers by the machines' names."""
        ...

    def close(self) -> None:
        """Stop all workers. Attempts that still run are abandoned."""
        ...


def run_guarded(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Run a function and give its value, or its error with the traceback as a note: tracebacks cannot be pickled."""
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver decides what follows
        error.add_note(traceback.format_exc())
        return None, error


def answer(call: Call) -> NodeAnswer:
    """Run a call and give what it says, or its error."""
    value, error = run_guarded(call.function, call.arguments)
    return NodeAnswer(value=value, error=error)
