"""Handle Ctrl-C, SIGTERM and SIGHUP: the first signal stops a command cleanly, the second at once.

A clean stop starts no new work, abandons running calls (threads finish their current shard), releases the lock and
prints what is kept. A stop at once is equally safe: no result depends on how a driver ends.

During an import, a finalizer of `multiprocessing` or numpy's `NumpyVersion`, the first signal is delayed: a native
library panics if an exception interrupts its import or its look at numpy's version, and Python prints an exception of a
finalizer and drops it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


POLL_SECONDS = 0.05
"""Interval at which a delayed signal is delivered again."""

_NOT_INTERRUPTED = re.compile(r"^<frozen importlib|/multiprocessing/util\.py$|/numpy/lib/_version\.py$")
"""Files whose code ends before a signal stops the command."""


class StoppedError(KeyboardInterrupt):
    """A signal asked the command to stop.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else "terminated")
        self.exit_code = 128 + number


_stop: StoppedError | None = None
"""The exception raised for the first signal."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise StoppedError at the first signal, and end the process at the second; main thread only.

    A SIGHUP that is ignored, as under `nohup`, stays ignored.
    """
    global _stop
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)

    def stop(number: int, frame: FrameType | None) -> None:
        global _stop
        if _stop is None and _must_end_first(frame):
            timer = threading.Timer(POLL_SECONDS, os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()
            return
        is_first, _stop = _stop is None, _stop or StoppedError(number)
        sentence = "stopping; a second signal stops it at once, which is safe too"
        if not is_first:
            sentence = "stopped; rerun the command to continue"
        with contextlib.suppress(OSError):  # not by sys.stderr: the signal may have interrupted a write to it
            os.write(2, f"\n{sentence}\n".encode())
        if not is_first:
            os._exit(128 + number)
        raise _stop

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, *hang_up)}
    try:
        yield
    except Exception as error:
        if _stop is not None:  # compiled code turned it into another exception
            raise _stop from error
        raise
    finally:
        _stop = None
        for number, handler in previous.items():
            signal.signal(number, handler)


def _must_end_first(frame: FrameType | None) -> bool:
    while frame is not None and not _NOT_INTERRUPTED.search(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


def raise_missed_stop() -> None:
    """Raise the signal's exception again if code that cannot propagate exceptions swallowed it."""
    if _stop is not None:
        raise _stop


@contextlib.contextmanager
def keep_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler after the block: Ray replaces it, from Python or native code."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
