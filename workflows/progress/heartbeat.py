"""A thread that repeats something while a job runs, so that a watcher can tell a busy driver from a dead one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

JOIN_SECONDS = 5.0
"""How long the end of a job waits for a call that hangs, such as a write to a server that is gone."""


class Heartbeat:
    """Calls a function every few seconds until it is stopped, even while the driver's thread is busy.

    Args:
        function: Called from another thread.
        seconds: The interval.
    """

    def __init__(self, function: Callable[[], None], *, seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dsindex-heartbeat")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._function()

    def stop(self) -> None:
        """Stop; the function is not called any more."""
        self._stop.set()
        self._thread.join(JOIN_SECONDS)
