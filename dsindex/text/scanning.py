"""Scan a block of lines with the kernels, once they are loaded: line ends, and the texts under wanted keys."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.kernels.loader import MAX_DEPTH, loaded_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.text.fields import Path

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
    data: bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64], paths: Sequence[Path]
) -> dict[Path, pa.LargeStringArray] | None:
    """Read the strings at the wanted paths of lines of JSON.

    Args:
        data: The lines, in UTF-8, which is not checked.
        starts: Index in `data` of each line's first byte, shape [lines], at least one.
        ends: Index in `data` after each line's last byte, same shape.
        paths: The wanted paths, each once, none of which leads through the value of another.

    Returns:
        For each path an array of shape [lines]. None while the kernels are not loaded, and unless each line is an
        object that has each key of a path once, written without escapes, with a string that has no lone surrogate as
        the value at the path.
    """
    kernels = loaded_kernels()
    if kernels is None:
        return None
    import pyarrow as pa  # readers of lines by a raw index do without

    keys = _plan_keys(tuple(paths))
    room = int(ends[-1] - starts[0]) + _SPARE_BYTES
    buffer = pa.allocate_buffer(len(paths) * room)  # from Arrow's pool, whose memory is not cleared
    texts = np.frombuffer(buffer, np.uint8)
    text_ends = np.empty((len(paths), len(starts) + 1), np.int64)
    text_ends[:, 0] = room * np.arange(len(paths))
    octets = np.frombuffer(data, np.uint8)
    if not kernels.read_objects(octets, starts, ends, *keys, texts, text_ends, *_scratch(keys)):
        return None
    return {
        path: pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(text_ends[number]), buffer)
        for number, path in enumerate(paths)
    }


def scan_ids(
    data: bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64], path: Path, *, limit: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]] | None:
    """Read the list of integers at a path of lines of JSON.

    Args:
        data: The lines, in UTF-8, which is not checked.
        starts: Index in `data` of each line's first byte, shape [lines], at least one.
        ends: Index in `data` after each line's last byte, same shape.
        path: The path of the list.
        limit: The integers are from 0 to below this number.

    Returns:
        The integers of all lines, and the number of those of each line, shape [lines]. None while the kernels are not
        loaded, and unless each line is an object that has each key of the path once, written without escapes, with such
        a list as the value at the path.
    """
    kernels = loaded_kernels()
    if kernels is None:
        return None
    ids = np.empty(int(ends[-1] - starts[0]) // 2 + 1, np.uint32)  # each takes a digit and a comma or bracket
    id_ends = np.empty(len(starts), np.int64)
    octets = np.frombuffer(data, np.uint8)
    keys = _plan_keys((path,))
    if not kernels.read_id_lists(octets, starts, ends, *keys, limit, ids, id_ends, *_scratch(keys)):
        return None
    return ids[: id_ends[-1]].copy(), np.diff(id_ends, prepend=0)


def _scratch(keys: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the scratch space that the kernels need for some keys."""
    return np.empty(MAX_DEPTH + 1, np.int64), np.full(len(keys[1]), -1)


@functools.lru_cache(maxsize=16)
def _plan_keys(
    paths: tuple[Path, ...],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of all paths as the kernel takes them: bytes, ends, objects and columns."""
    numbers: dict[Path, int] = {}
    for path in paths:
        for depth in range(1, len(path) + 1):
            numbers.setdefault(path[:depth], len(numbers))
    spelt = [path[-1].encode("utf-8", errors="surrogatepass") for path in numbers]
    return (
        np.frombuffer(b"".join(spelt), np.uint8),
        np.cumsum([len(key) for key in spelt], dtype=np.int64),
        np.array([numbers.get(path[:-1], -1) for path in numbers], np.int64),
        np.array([paths.index(path) if path in paths else -1 for path in numbers], np.int64),
    )
