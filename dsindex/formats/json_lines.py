"""Find the lines that Python's `json.loads` refuses, at the speed of a scan.

A compiled scanner accepts lines that are certainly JSON by RFC 8259 and leaves all others to `json.loads`, which also
accepts NaN, a BOM, UTF-16 and lone surrogates. So every line gets the verdict of `json.loads`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def find_faulty_lines(
    data: bytearray, starts: NDArray[np.int64], ends: NDArray[np.int64], *, compiled: bool
) -> NDArray[np.int64]:
    """Return the numbers of the lines that json.loads refuses.

    Args:
        data: Lines; the last one ends with a newline or at the end of `data`.
        starts: Index in `data` of each line's first byte.
        ends: Index in `data` after each line's last byte, excluding the newline.
        compiled: Use the scanner; otherwise every line goes through json.loads.

    Returns:
        Ascending indices into `starts`.
    """
    if not compiled:
        doubtful = np.arange(len(starts))
    else:
        from dsindex.kernels.json_scanner import scan_lines  # numba takes a second to load

        accepted = np.zeros(len(starts), dtype=np.bool_)
        scan_lines(np.frombuffer(data, dtype=np.uint8), starts, ends, accepted)
        doubtful = np.flatnonzero(~accepted)
        if len(starts) and not data.isascii() and not _is_utf8(data, int(starts[0]), int(ends[-1])):
            doubtful = np.arange(len(starts))
    view = memoryview(data)
    faulty = [number for number in doubtful.tolist() if not is_json(bytes(view[starts[number] : ends[number]]))]
    return np.array(faulty, dtype=np.int64)


def is_json(line: bytes) -> bool:
    """Tell whether json.loads accepts a line.

    >>> is_json(b'{"a": NaN}'), is_json(b""), is_json(b"{'a': 1}")
    (True, False, False)
    """
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_utf8(data: bytearray, begin: int, end: int) -> bool:
    """Check all lines at once, with the interpreter's lock released."""
    import pyarrow as pa  # slow to load, and not needed for ASCII

    text = pa.py_buffer(memoryview(data)[begin:end])
    offsets = pa.py_buffer(np.array([0, end - begin], dtype=np.int64))
    array = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, text])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
