"""Ctrl-C, SIGTERM and SIGHUP: the first stops a command cleanly, the second at once.

A clean stop starts no new work, abandons running calls (threads finish their current shard), releases the lock and
prints what is kept. A stop at once is equally safe: no result depends on how a driver ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


class TerminatedError(BaseException):
    """SIGTERM or SIGHUP arrived.

    Args:
        number: The signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(f"terminated by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextlib.contextmanager
def stop_on_signals(command: str) -> Iterator[None]:
    """Raise KeyboardInterrupt or TerminatedError at the first signal, and end the process at the second.

    A SIGHUP that is ignored, as under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it gets signals
        return
    handler = _Handler(command)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handler) for number in numbers}
    former_hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_value is handler.stop is not None else former_hook(lost)
    try:
        yield
    except Exception as error:
        if handler.stop is not None:  # compiled code made another exception of it
            raise handler.stop from error
        raise
    finally:
        sys.unraisablehook = former_hook
        for number, former in previous.items():
            signal.signal(number, former)


def raise_missed_stop() -> None:
    """Raise the exception of a signal again if code that cannot raise has swallowed it."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, _Handler) and handler.stop is not None:
        raise handler.stop


@contextlib.contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Install the handler of SIGTERM again after the block, in which Ray replaces it, in Python or below it."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


class _Handler:
    def __init__(self, command: str) -> None:
        self._command = command
        self.stop: BaseException | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> NoReturn:
        if self.stop is not None:
            _say(f"{self._command}: stopped; run the same command again to continue")
            os._exit(128 + number)
        self.stop = KeyboardInterrupt("interrupted") if number == signal.SIGINT else TerminatedError(number)
        _say(f"{self._command}: stopping; a second signal stops it at once, which is safe too")
        raise self.stop


def _say(sentence: str) -> None:
    # Not through sys.stderr: the signal may have interrupted a write to it.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{sentence}\n".encode())
