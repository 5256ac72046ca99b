"""Run jq programs in a child process that the kernel ends when a program runs away.

jq holds the GIL and cannot be interrupted: `def f: f; f` would stop a whole process, where not even SIGTERM is handled.
So every thread that needs jq has a child of its own, with limits on CPU time and memory. The output does not depend on
them: a program that exceeds one ends the job.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORD_SECONDS = 10.0
"""CPU time for one record; jq takes a second for about 20 MB."""
SECONDS_PER_BYTE = 1e-6
MEMORY_BYTES = 4 << 30
"""Address space of a child, beyond what its records take."""
MEMORY_PER_BYTE = 100
TOO_DEEP = {"error": "the record is nested too deep"}

_thread = threading.local()


class _LimitError(Exception):
    """The child was ended by a limit."""


class RunawayError(Exception):
    """A program exceeds a limit.

    Args:
        number: Number of the line on which it does.
        limit: The limit, in words.
    """

    def __init__(self, number: int, limit: str) -> None:
        super().__init__(number, limit)
        self.number, self.limit = number, limit


def run_program(program: str, lines: Sequence[bytes] = ()) -> list[dict[str, Any]]:
    """Return the one result of a jq program for each line of JSON, an object; or `{"error": …}` if it fails.

    Raises:
        ValueError: If the program does not compile.
        RunawayError: If it takes too long or too much memory.
    """
    try:
        return _open_child().run(program, lines)
    except _LimitError as error:
        for number, line in enumerate(lines if len(lines) > 1 else ()):
            try:
                _open_child().run(program, [line])
            except _LimitError as limit:
                raise RunawayError(number, str(limit)) from error
        raise RunawayError(0, str(error)) from error


def _open_child() -> _Child:
    child = getattr(_thread, "child", None)
    if child is None or child.owner != os.getpid():  # a fork has copies of its parent's connections
        child = _thread.child = _Child()
    return child


class _Child:
    """A child process and the connection to it."""

    def __init__(self) -> None:
        import jq  # noqa: F401 - says now that it is not installed

        self.owner = os.getpid()
        self._connection, other = multiprocessing.Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(other.fileno()), str(RECORD_SECONDS), str(MEMORY_BYTES)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[other.fileno()],
                process_group=0,  # Ctrl-C is for the driver
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        weakref.finalize(self, _end, self._connection, self._process)

    def run(self, program: str, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        try:
            self._connection.send_bytes(program.encode("utf-8", "surrogatepass"))
            self._connection.send_bytes(b"\n".join(lines))
            answer: Any = marshal.loads(self._connection.recv_bytes())
        except BaseException as error:  # it may still answer
            _thread.child = None
            if not isinstance(error, (EOFError, ConnectionError)):
                raise
            ended = self._process.wait()
            is_slow = ended == -signal.SIGPROF
            raise _LimitError(
                f"{RECORD_SECONDS:g} seconds" if is_slow else f"{MEMORY_BYTES >> 30} GiB of memory"
            ) from error
        if isinstance(answer, str):
            raise ValueError(answer)
        return list(answer)


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


def _is_flat(answer: Any) -> bool:  # noqa: ANN401 - any JSON value
    try:
        return bool(marshal.dumps(answer))
    except ValueError:
        return False


def _serve(connection: Connection, seconds: float, memory_bytes: int) -> None:
    """Answer requests until the parent is gone: to a program and lines, the answers, or why the program is refused."""
    import jq

    compiled = functools.lru_cache(maxsize=16)(jq.compile)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def run(program: Any, line: bytes) -> dict[str, Any]:  # noqa: ANN401 - jq has no types
        signal.setitimer(signal.ITIMER_PROF, seconds + SECONDS_PER_BYTE * len(line))
        try:
            [answer] = program.input_text(line.decode()).all()
        except RecursionError:  # releases of Python word it differently, and the reason is in the output
            return TOO_DEEP
        except (ValueError, TypeError) as error:
            return {"error": str(error)}
        return dict(answer)

    while True:
        source, text = connection.recv_bytes().decode("utf-8", "surrogatepass"), connection.recv_bytes()
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes + MEMORY_PER_BYTE * len(text), resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            program = compiled(source)
        except ValueError as error:
            connection.send_bytes(marshal.dumps(str(error)))
            continue
        answers = [run(program, line) for line in text.split(b"\n")] if text else []
        try:
            connection.send_bytes(marshal.dumps(answers))
        except ValueError:
            connection.send_bytes(marshal.dumps([answer if _is_flat(answer) else TOO_DEEP for answer in answers]))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError), Connection(int(sys.argv[1])) as parent:
        _serve(parent, float(sys.argv[2]), int(sys.argv[3]))
