"""The compiled kernels where they pay: over JSON and token ids, several times as fast as numpy and pyarrow.

numba takes half a second to load, and once on a machine some seconds to compile. So a process that has little to do
does without, and one that has much loads them beside its work and goes over to them. The results are the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

LOAD_FROM_BYTES = 64 << 20
"""A process that has so much to read, all in all, loads the kernels."""


class Kernels(NamedTuple):
    """The kernels, by their names in json_scanner and tokens."""

    find_newlines: Callable[..., Any]
    read_objects: Callable[..., Any]
    insert_token: Callable[..., Any]


class _Loader:
    """Loads the kernels when this process reads much."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._has_begun = False
        self.kernels: Kernels | None = None

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            begins = self._num_bytes >= LOAD_FROM_BYTES and not self._has_begun
            self._has_begun |= begins
        if begins:
            threading.Thread(target=self.load, name="dsindex-kernels", daemon=True).start()

    def load(self) -> None:
        kernels = import_kernels()
        # A first call compiles, or loads what an earlier process compiled: not while work waits for it.
        line, places = np.frombuffer(bytearray(b'{"a": "b"}\n'), np.uint8), np.zeros(1, np.int64)
        kernels.find_newlines(line, len(line), places)
        key, key_ends = np.frombuffer(b"a", np.uint8), np.ones(1, np.int64)
        texts, text_ends = np.empty(2 * len(line) + 64, np.uint8), np.zeros((1, 2), np.int64)
        kernels.read_objects(line, np.zeros(1, np.int64), places, key, key_ends, texts, text_ends)
        for dtype in ("<u2", "<i4"):
            kernels.insert_token(np.zeros(1, np.uint32), np.zeros(0, np.int64), 0, np.empty(1, dtype))
        self.kernels = kernels


_LOADER = _Loader()


def count_bytes(num_bytes: int) -> None:
    """Take note of bytes that this process will read: much of it is what loading the kernels pays for."""
    _LOADER.count(num_bytes)


def load_kernels() -> None:
    """Load the kernels now, whatever this process reads; each is compiled when it is first called."""
    _LOADER.kernels = import_kernels()


def loaded_kernels() -> Kernels | None:
    """Return the kernels; None while they are not loaded."""
    return _LOADER.kernels


def import_kernels() -> Kernels:
    """Import numba and the kernels."""
    from dsindex.kernels.json_scanner import find_newlines, read_objects
    from dsindex.kernels.tokens import insert_token

    return Kernels(find_newlines, read_objects, insert_token)
