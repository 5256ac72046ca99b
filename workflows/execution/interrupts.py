"""Ctrl-C and SIGTERM: the first stops a command in order, the second at once.

In order means: no new work is begun, what runs is abandoned (threads end the shard they are at), the lock is given
back, and it is said what is kept. At once is as safe: nothing of a job depends on how its driver ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TerminatedError(BaseException):
    """SIGTERM arrived."""


@contextlib.contextmanager
def stop_on_signals(command: str) -> Iterator[None]:
    """Raise KeyboardInterrupt or TerminatedError at the first signal, and end the process at the second."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it gets signals
        return
    handler = _Handler(command)
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let a Ctrl-C wait for the end of the block, which it would leave with processes that nobody ends.

    It is answered at once in words, and the second one stops at once as ever. In the main thread only.

    Raises:
        KeyboardInterrupt: At the end of the block, if that was asked for.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _Handler):
        yield  # whoever called this has other ideas of what a signal means
        return
    held: list[KeyboardInterrupt] = []

    def hold(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except KeyboardInterrupt as interrupt:
            held.append(interrupt)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            raise held[0]


class _Handler:
    def __init__(self, command: str) -> None:
        self._command = command
        self._is_stopping = False

    def __call__(self, number: int, _frame: FrameType | None) -> NoReturn:
        interrupted = number == signal.SIGINT
        if self._is_stopping:
            _say("stopped at once; run the same command again to continue")
            os._exit(EXIT_INTERRUPTED if interrupted else EXIT_TERMINATED)
        self._is_stopping = True
        _say(f"{self._command}: stopping; once more stops at once, which is as safe")
        if interrupted:
            raise KeyboardInterrupt
        raise TerminatedError


def _say(sentence: str) -> None:
    # Not through sys.stderr: the signal may have come in the middle of a write there.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{sentence}\n".encode())
