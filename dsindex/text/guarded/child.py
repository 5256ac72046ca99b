"""The program of a guarded process, which answers records one after the other and ends when one takes too much.

    python -m dsindex.text.guarded.child MODULE REQUESTS REPLIES ANSWERS LIFELINE

All arguments but MODULE are open file descriptors. A request is a frame: its length in 8 bytes, then that many bytes.
The first request is JSON: the limits, and the definition for `MODULE.prepare`, which returns facts and the function
that answers a record, by data, which is sent as JSON, or by bytes. All others are records, one per line. Each answer
is a frame in the file ANSWERS, written before the next record is begun, so that their number identifies the record if
this process dies. A byte on REPLIES means that a request is done, or as many of its records as fill ANSWERS_BYTES.

The kernel ends the process when a record has used up its CPU time (by SIGPROF, which is not caught, since Python
handles signals only between two of its own steps), and when the parent has ended (by SIGIO from LIFELINE).
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

from dsindex.text.guarded.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_OUT_OF_MEMORY = 77
ANSWERS_BYTES = 16 << 20
FRAME_HEADER_BYTES = 8


def main() -> None:
    """Serve until the parent closes its end of REQUESTS."""
    requests, replies, answers, lifeline = map(int, sys.argv[2:])
    _reset_signals()
    _die_with(lifeline)
    try:
        _serve(sys.argv[1], requests, replies, answers)
    except MemoryError:
        os._exit(EXIT_OUT_OF_MEMORY)


def _serve(module: str, requests: int, replies: int, answers: int) -> None:
    size = _read_size(requests)
    if size is None:
        return
    request = json.loads(_read(requests, size))
    limits = Limits(**request["limits"])
    prepare = importlib.import_module(module).prepare
    memory = _Memory(limits)
    memory.allow(size)
    _limit_cpu(limits.cpu_for(size))
    facts, answer = prepare(request["definition"])
    write_all(answers, _encode(facts))
    _limit_cpu(0)
    os.write(replies, b"\0")
    memory.measure()
    while (size := _read_size(requests)) is not None:
        memory.allow(size)
        records = _read(requests, size).split(b"\n")
        os.lseek(answers, 0, os.SEEK_SET)  # the parent has read and emptied it
        _answer_all(records, answer, limits, answers)
        os.write(replies, b"\0")


def _answer_all(records: list[bytes], answer: Callable[[bytes], Any], limits: Limits, answers: int) -> None:
    written = 0
    for record in records:
        _limit_cpu(limits.cpu_for(len(record)))
        frame = _encode(answer(record))
        write_all(answers, frame)
        written += len(frame)
        if written > ANSWERS_BYTES:
            break
    _limit_cpu(0)


def _encode(value: object) -> bytes:
    if not isinstance(value, bytes):
        # Lone surrogates pass: the reader of the answer reports them.
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return len(value).to_bytes(FRAME_HEADER_BYTES, "little") + value


def _reset_signals() -> None:
    """Reset inherited signal handling, since ignored and blocked signals stay so across exec."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    for number in (signal.SIGPROF, signal.SIGIO):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGIO})


def _die_with(lifeline: int) -> None:
    """Request SIGIO for when the last process with the other end of this pipe has closed it."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_cpu(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


class _Memory:
    """The limit on this process's address space."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        soft, self._hard = resource.getrlimit(resource.RLIMIT_AS)
        self._most = sys.maxsize if soft == resource.RLIM_INFINITY else soft
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # core dumps are not needed
        self.measure()

    def measure(self) -> None:
        """Take the process's current size as the base of limits."""
        with open("/proc/self/statm", "rb") as file:
            self._base = int(file.read().split()[0]) * resource.getpagesize()

    def allow(self, num_bytes: int) -> None:
        """Set the limit for records of `num_bytes` together."""
        wanted = self._base + self._limits.memory_for(num_bytes)
        resource.setrlimit(resource.RLIMIT_AS, (min(wanted, self._most), self._hard))


def _read_size(file: int) -> int | None:
    """Return the size of the next frame; None if there are no more."""
    header = _read(file, FRAME_HEADER_BYTES)
    return int.from_bytes(header, "little") if header else None


def _read(file: int, num_bytes: int) -> bytes:
    """Read exactly `num_bytes` bytes, or none at the end of the file."""
    parts: list[bytes] = []
    missing = num_bytes
    while missing:
        part = os.read(file, min(missing, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    """Write all of the data."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


if __name__ == "__main__":
    main()
