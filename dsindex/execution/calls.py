"""Calls, their outcomes, and the executors that run them.

An executor starts calls and reports which have ended; dsindex.execution.dispatch handles retries, stragglers and lost
workers.
"""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from abc import ABC, abstractmethod
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


THIS_MACHINE = "this machine"


class ClusterLostError(TaskError):
    """The cluster is lost, so that no call can be made any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function to run on some worker, with arguments that can be pickled."""

    name: str
    """The name shown to users, such as `tokenize[00042]`."""
    place: str
    """The file or folder that it works on, for messages."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Arguments; may contain values that `Executor.share` returned."""
    memory_bytes: int = 0
    """Peak memory of the task, for schedulers that can reserve memory."""
    listener: Callable[[int, int, int], None] | None = None
    """Called in the driver's process, from any thread, with what the function reports
    (dsindex.execution.calls) while it runs on this machine; Ray's workers report only results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStart:
    """Workers that start before the first call, while the plan is made."""

    num_calls: int
    """Number of calls that will be started soon: so many workers, if there are CPUs for them."""
    memory_bytes: int
    """Peak memory of those calls."""
    prepare: Callable[[], None]
    """Run once in each worker's process, before its first call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one attempt at a call."""

    attempt_id: int
    value: Any = None
    error: BaseException | None = None
    """The function's exception, or the reason for the loss of its worker."""
    seconds: float | None = None
    """How long it ran, if the executor knows."""
    worker_lost: bool = False
    """Whether the worker died or could not be reached, perhaps not because of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """A function's value or error on one machine."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The lack of any node with CPUs in a cluster."""

    num_wanted: int
    """Number of CPUs that the job has asked for, or could use at least."""
    since: float
    """When it was noticed, by `time.monotonic`."""
    reason: str
    """What the cluster's autoscaler is doing, or why it adds no node."""
    adds_nodes: bool | None = None
    """Whether there is an autoscaler that adds nodes; None if none has reported yet."""

    def describe(self) -> str:
        """Return what is waited for, since when, and why, as text."""
        seconds = time.monotonic() - self.since
        return f"waiting for nodes: 0 of {self.num_wanted:,} CPUs, for {seconds:.0f} s; {self.reason}"


class Executor(ABC):
    """Runs calls. Not thread-safe: one driver owns it. What only clusters have is a no-op here."""

    kind: str
    slots: int
    """Number of calls that run at once."""
    backlog: int
    """Number of calls to start beyond `slots`, so that no slot waits for the driver."""
    is_cluster = False
    """Whether tasks may run on other machines than the driver's."""

    is_on_this_machine = False
    """Whether all calls run on the driver's machine, as far as that is known."""
    most_waiting = 0
    """Number of calls that may wait for others without holding up those that are to begin."""

    note: str | None = None
    """What the user should know of this executor."""

    @property
    def shortage(self) -> Shortage | None:
        """Why no task can run now; None if tasks can run."""
        return None

    @property
    def waiting(self) -> str | None:
        """What calls wait for, since when and why, as text; None if some run."""
        return None

    def request_cpus(self, number: int) -> int:  # noqa: ARG002 - a machine does not grow
        """Ask a cluster's autoscaler for CPUs; return how many were asked for."""
        return self.slots

    def check_new_nodes(self, check: Callable[[], None]) -> None:  # noqa: B027 - a machine has no other nodes
        """Run a check before the first call on each node that `on_every_node` has not reached.

        Args:
            check: Raises an error if the node would fail; the call then fails with it. Can be pickled.
        """

    def share(self, value: object) -> object:
        """Make a large argument available to all workers once; pass what this returns in `Call.arguments`."""
        return value

    @abstractmethod
    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Begin one attempt and return its id.

        Args:
            call: The call to run.
            beyond_slots: Whether to run it at once if possible, since calls in the occupied slots may hang.
        """

    @abstractmethod
    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt began (time.monotonic); None while it waits for a slot."""

    @abstractmethod
    def wait(self, timeout: float) -> list[Outcome]:
        """Return the attempts that ended, waiting for at least one up to `timeout` seconds."""

    @abstractmethod
    def abandon(self, attempt_id: int) -> None:
        """Stop an attempt if possible; its outcome will not be reported."""

    def on_every_node(self, call: Call, *, timeout: float) -> dict[str, NodeAnswer]:  # noqa: ARG002 - nothing is sent
        """Run a call once on each machine that runs tasks; return the answers by machine name."""
        value, error = run_guarded(call.function, call.arguments)
        return {THIS_MACHINE: NodeAnswer(value=value, error=error)}

    @abstractmethod
    def close(self) -> None:
        """Stop all workers. Attempts that still run are abandoned."""


def run_guarded(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Return a function's value, or its error with the traceback as a note, since tracebacks cannot be pickled."""
    try:
        return function(*arguments), None
    except KeyboardInterrupt:  # the user's, where the call runs in the driver itself
        raise
    except BaseException as error:  # noqa: BLE001 - the driver handles every error
        told = as_exception(error)
        try:
            pickle.loads(pickle.dumps(told))  # noqa: S301 - it was made here
        except Exception:  # noqa: BLE001 - a class may do anything there
            told = _described(error)
        told.add_note(traceback.format_exc())
        return None, told


def as_exception(error: BaseException) -> Exception:
    """Return an error that the driver can raise.

    A panic of a library in Rust is no `Exception`; a SystemExit would end the driver without a word.
    """
    return error if isinstance(error, Exception) else _described(error)


def _described(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")


# Progress callbacks for running shards; a no-op without a listener.

_listener: ContextVar[Callable[[int, int, int], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def reporting_to(listener: Callable[[int, int, int], None] | None) -> Iterator[None]:
    """Pass on what `report` is called with in this thread while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(text_bytes: int, documents: int, tokens: int) -> None:
    """Tell how many bytes of text, documents and tokens of a shard are done so far."""
    listener = _listener.get()
    if listener is not None:
        listener(text_bytes, documents, tokens)
