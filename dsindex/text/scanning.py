"""Scan a block of lines with the kernels, once they are loaded: line ends, and the texts under wanted keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dsindex.kernels.loader import loaded_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SPARE_BYTES = 64
"""Bytes that the kernels copy at once, possibly beyond the end of a text."""
_BYTES_PER_LINE = 64


def find_newlines(data: bytearray, size: int) -> NDArray[np.int64] | None:
    """Return the index of every newline byte in data[:size], ascending; None while the kernels are not loaded."""
    kernels = loaded_kernels()
    if kernels is None:
        return None
    octets = np.frombuffer(data, np.uint8)
    room = size // _BYTES_PER_LINE + 1
    while True:
        newlines = np.empty(room, np.int64)
        count = kernels.find_newlines(octets, size, newlines)
        if count >= 0:
            return newlines[:count]
        room *= 8


def scan_texts(
    data: bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64], keys: Sequence[str]
) -> dict[str, pa.LargeStringArray] | None:
    """Read the strings under the wanted keys of lines of JSON.

    Args:
        data: The lines, in UTF-8, which is not checked.
        starts: Index in `data` of each line's first byte, shape [lines], at least one.
        ends: Index in `data` after each line's last byte, same shape.
        keys: The wanted top-level keys.

    Returns:
        For each key an array of shape [lines]. None while the kernels are not loaded, and unless each line is an object
        that has each key once, written without escapes, with a string that has no lone surrogate as its value.
    """
    kernels = loaded_kernels()
    if kernels is None:
        return None
    spelt = [key.encode("utf-8", errors="surrogatepass") for key in keys]
    key_bytes = np.frombuffer(b"".join(spelt), np.uint8)
    key_ends = np.cumsum([len(key) for key in spelt], dtype=np.int64)
    room = int(ends[-1] - starts[0]) + _SPARE_BYTES
    buffer = pa.allocate_buffer(len(keys) * room)  # from Arrow's pool, whose memory is not cleared
    texts = np.frombuffer(buffer, np.uint8)
    text_ends = np.empty((len(keys), len(starts) + 1), np.int64)
    text_ends[:, 0] = room * np.arange(len(keys))
    if not kernels.read_objects(np.frombuffer(data, np.uint8), starts, ends, key_bytes, key_ends, texts, text_ends):
        return None
    return {
        key: pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(text_ends[number]), buffer)
        for number, key in enumerate(keys)
    }
