"""Load the kernels for JSON and token ids, which are several times as fast as numpy and pyarrow, when that pays off.

Once per machine they must be compiled, which takes some seconds. So a process with little to read does without the
kernels; one with much loads them in the background and then switches. The results are the same.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsindex.kernels.machine_code import Kernels

LOAD_FROM_BYTES = 16 << 20
"""A process that reads at least this many bytes in total loads the kernels."""
MAX_DEPTH = 64
"""Deepest nesting that the kernels for JSON follow; deeper lines are left to json.loads, whose limit is Python's."""
WAIT_SECONDS = 1.0
"""Time for which work waits for kernels that are being loaded: they take 0.05 s, unless they must be compiled."""


class _Loader:
    """Loads the kernels once this process has read enough."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._thread: threading.Thread | None = None
        self.kernels: Kernels | None = None

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            if self._num_bytes >= LOAD_FROM_BYTES and self._thread is None:
                self._thread = threading.Thread(target=self.load, name="dsindex-kernels", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def load(self) -> None:
        with contextlib.suppress(ImportError):  # or not compiled: then everything is done without
            from dsindex.kernels.machine_code import import_kernels

            self.kernels = import_kernels()


_LOADER = _Loader()


def count_bytes(num_bytes: int) -> None:
    """Count bytes that this process will read; from LOAD_FROM_BYTES on, load the kernels in the background."""
    _LOADER.count(num_bytes)


def wait_for_kernels() -> None:
    """Wait a moment for kernels that are being loaded: to read without them meanwhile takes more time than that."""
    _LOADER.wait(WAIT_SECONDS)


def load_kernels() -> None:
    """Load the kernels now, however little this process reads."""
    _LOADER.load()


def loaded_kernels() -> Kernels | None:
    """Return the kernels; None if they are not loaded yet."""
    return _LOADER.kernels
