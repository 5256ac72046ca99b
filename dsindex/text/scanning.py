"""The compiled loops where they pay: the ends of lines and the wanted texts of a block, several times as fast.

numba takes half a second to load, and once on a machine some seconds to compile. So a process that reads little does
without, and one that reads much loads them beside its work and goes over to them. What is read is the same either way.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numpy.typing import NDArray

LOAD_AFTER_BYTES = 64 << 20
"""What a process reads before it loads the loops."""
_SPARE_BYTES = 8
_BYTES_PER_LINE = 64


class _Loader:
    """Loads the loops when this process has read much."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._has_begun = False
        self.loops: ModuleType | None = None

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            begins = self._num_bytes > LOAD_AFTER_BYTES and not self._has_begun
            self._has_begun |= begins
        if begins:
            threading.Thread(target=self._compile_and_load, name="dsindex-loops", daemon=True).start()

    def _compile_and_load(self) -> None:
        from dsindex.formats import json_scanner

        # A first call compiles, or loads what an earlier process compiled: not while work waits for it.
        line = bytearray(b'{"a": "b"}\n')
        _find_newlines(json_scanner, line, len(line))
        _scan_texts(json_scanner, line, np.zeros(1, np.int64), np.full(1, len(line) - 1), ["a"])
        self.loops = json_scanner


_LOADER = _Loader()


def load_loops() -> None:
    """Load the loops now, whatever this process reads; each is compiled when it is first called."""
    from dsindex.formats import json_scanner

    _LOADER.loops = json_scanner


def count_bytes(num_bytes: int) -> None:
    """Take note of bytes that this process reads: much of it is what loading the loops pays for."""
    _LOADER.count(num_bytes)


def find_newlines(data: bytearray, size: int) -> NDArray[np.int64] | None:
    """Give the index of every newline byte in data[:size], ascending; None while the loops are not loaded."""
    return None if _LOADER.loops is None else _find_newlines(_LOADER.loops, data, size)


def scan_texts(
    data: bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64], keys: Sequence[str]
) -> dict[str, pa.LargeStringArray] | None:
    """Read the strings under the wanted keys of lines of JSON.

    Args:
        data: The lines, in UTF-8, which is not looked at.
        starts: Index in `data` of each line's first byte, shape [lines], at least one.
        ends: Index in `data` after each line's last byte, same shape.
        keys: Keys of the object that a line is.

    Returns:
        For each key an array of shape [lines]. None while the loops are not loaded, and unless each line is one object
        that has each of the keys once, spelt without escapes, and under it a string without half a surrogate pair.
    """
    return None if _LOADER.loops is None else _scan_texts(_LOADER.loops, data, starts, ends, keys)


def _find_newlines(loops: ModuleType, data: bytearray, size: int) -> NDArray[np.int64]:
    octets, eights = _views(np.frombuffer(data, np.uint8))
    room = size // _BYTES_PER_LINE + 1
    while True:
        newlines = np.empty(room, np.int64)
        count = loops.find_newlines(octets, eights, size, newlines)
        if count >= 0:
            return newlines[:count]
        room *= 8


def _scan_texts(
    loops: ModuleType, data: bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64], keys: Sequence[str]
) -> dict[str, pa.LargeStringArray] | None:
    octets, eights = _views(np.frombuffer(data, np.uint8))
    spelt = [key.encode("utf-8", errors="surrogatepass") for key in keys]
    key_bytes = np.frombuffer(b"".join(spelt), np.uint8)
    key_ends = np.cumsum([len(key) for key in spelt], dtype=np.int64)
    room = int(ends[-1] - starts[0]) + _SPARE_BYTES
    buffer = pa.allocate_buffer(len(keys) * room)  # from Arrow's own pool, whose memory need not be cleared again
    texts, text_eights = _views(np.frombuffer(buffer, np.uint8).reshape(len(keys), room))
    text_ends = np.zeros((len(keys), len(starts) + 1), np.int64)
    if not loops.read_objects(octets, eights, starts, ends, key_bytes, key_ends, texts, text_eights, text_ends):
        return None
    return {
        key: pa.LargeStringArray.from_buffers(
            len(starts), pa.py_buffer(text_ends[number]), buffer.slice(number * room, int(text_ends[number, -1]))
        )
        for number, key in enumerate(keys)
    }


def _views(octets: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Give bytes, and beside them the little-endian number that begins at each; the last axis has 7 fewer of these."""
    shape = (*octets.shape[:-1], max(0, octets.shape[-1] - 7))
    return octets, np.ndarray(shape=shape, dtype="<u8", buffer=octets, strides=octets.strides)
