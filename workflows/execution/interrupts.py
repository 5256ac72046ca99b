"""Ctrl-C and SIGTERM: the first stops a command cleanly, the second at once.

A clean stop starts no new work, abandons running calls (threads finish their current shard), releases the lock and
prints what is kept. A stop at once is equally safe: no result depends on how a driver ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    """Delay a Ctrl-C until the block ends, since it would leave the block's processes running.

    Its message is printed immediately, and a second Ctrl-C still stops at once. For the main thread only.

    Raises:
        KeyboardInterrupt: At the end of the block, if Ctrl-C was pressed.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _Handler):
        yield  # the caller has handlers of its own
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


@contextlib.contextmanager
def stops_unwrapped() -> Iterator[None]:
    """Raise the signal's exception if compiled code, such as Ray's, turned it into a SystemError.

    Raises:
        KeyboardInterrupt, TerminatedError: If it caused the SystemError.
    """
    try:
        yield
    except SystemError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, KeyboardInterrupt | TerminatedError):
            raise cause from None
        raise


class _Handler:
    def __init__(self, command: str) -> None:
        self._command = command
        self._is_stopping = False

    def __call__(self, number: int, _frame: FrameType | None) -> NoReturn:
        interrupted = number == signal.SIGINT
        if self._is_stopping:
            _say("stopped; run the same command again to continue")
            os._exit(EXIT_INTERRUPTED if interrupted else EXIT_TERMINATED)
        self._is_stopping = True
        _say(f"{self._command}: stopping; a second signal stops it at once, which is safe too")
        if interrupted:
            raise KeyboardInterrupt
        raise TerminatedError


def signals_shown_as(form: Callable[[str], bytes] | None) -> None:
    """Set how sentences about signals are written to standard error; None: as plain lines."""
    global _form
    _form = form or _as_plain_line


def _as_plain_line(sentence: str) -> bytes:
    return f"\n{sentence}\n".encode()


_form = _as_plain_line


def _say(sentence: str) -> None:
    # Not through sys.stderr: the signal may have interrupted a write to it.
    with contextlib.suppress(OSError):
        os.write(2, _form(sentence))
