"""Load the kernels for JSON and token ids, which are several times as fast as numpy and pyarrow, when that pays off.

numba takes half a second to import and, once per machine, some seconds to compile. So a process with little to read
does without the kernels; one with much loads them in the background and then switches. The results are the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

LOAD_FROM_BYTES = 64 << 20
"""A process that reads at least this many bytes in total loads the kernels."""
WAIT_SECONDS = 1.0
"""Time for which work waits for kernels that are being loaded: they take 0.2 s, unless they must be compiled."""


class Kernels(NamedTuple):
    """The kernels, under their names in json_scanner, json_reader, tokens and characters."""

    find_newlines: Callable[..., Any]
    read_objects: Callable[..., Any]
    read_id_lists: Callable[..., Any]
    insert_token: Callable[..., Any]
    find_characters: Callable[..., Any]


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
        kernels = import_kernels()
        # The first call compiles or loads from the cache; make it here, so that no work waits for it.
        line, places = np.frombuffer(bytearray(b'{"a": "b"}\n'), np.uint8), np.zeros(1, np.int64)
        kernels.find_newlines(line, len(line), places)
        key, key_ends = np.frombuffer(b"a", np.uint8), np.ones(1, np.int64)
        objects, columns = np.full(1, -1), np.zeros(1, np.int64)
        texts, text_ends = np.empty(2 * len(line) + 64, np.uint8), np.zeros((1, 2), np.int64)
        kernels.read_objects(line, np.zeros(1, np.int64), places, key, key_ends, objects, columns, texts, text_ends)
        ids = np.empty(len(line), np.uint32)
        kernels.read_id_lists(line, np.zeros(1, np.int64), places, key, key_ends, objects, columns, 1, ids, places)
        for dtype in ("<u2", "<i4"):
            kernels.insert_token(np.zeros(1, np.uint32), np.zeros(0, np.int64), 0, np.empty(1, dtype))
        kernels.find_characters(line, 0, len(line), 0x80, np.zeros(1 << 16, np.bool_), places)
        self.kernels = kernels


_LOADER = _Loader()


def count_bytes(num_bytes: int) -> None:
    """Count bytes that this process will read; from LOAD_FROM_BYTES on, load the kernels in the background."""
    _LOADER.count(num_bytes)


def wait_for_kernels() -> None:
    """Wait a moment for kernels that are being loaded: to read without them meanwhile takes more time than that."""
    _LOADER.wait(WAIT_SECONDS)


def load_kernels() -> None:
    """Load the kernels now, however little this process reads; each is compiled on its first call."""
    _LOADER.kernels = import_kernels()


def loaded_kernels() -> Kernels | None:
    """Return the kernels; None if they are not loaded yet."""
    return _LOADER.kernels


def import_kernels() -> Kernels:
    """Import numba and return the kernels."""
    from dsindex.kernels.json_reader import read_id_lists, read_objects
    from dsindex.kernels.json_scanner import find_newlines
    from dsindex.kernels.tokens import find_characters, insert_token

    return Kernels(find_newlines, read_objects, read_id_lists, insert_token, find_characters)
