"""Kernel that copies a JSON string, unescaped. Imports numba, so import it where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.jit import inlined
from dsindex.kernels.json_scanner import CLASSES, HEX, TEXT
from dsindex.kernels.vectors import LANES, NOTHING, copy_and_mark_special, count_before

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEX_VALUES = np.zeros(256, dtype=np.int64)
for _digit in range(16):
    _HEX_VALUES[[ord(f"{_digit:x}"), ord(f"{_digit:X}")]] = _digit

_ESCAPED = np.zeros(256, dtype=np.uint8)
_ESCAPED[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')


@inlined
def _read_code_unit(data: NDArray[np.uint8], position: int, end: int) -> int:
    r"""Return the code unit of the escape \uXXXX at `position`."""
    if position + 6 > end or data[position] != ord("\\") or data[position + 1] != ord("u"):
        return -1
    code = 0
    for index in range(position + 2, position + 6):
        if not CLASSES[data[index]] & HEX:
            return -1
        code = 16 * code + _HEX_VALUES[data[index]]
    return code


@inlined
def _write_character(code: int, texts: NDArray[np.uint8], written: int) -> int:
    """Write a character in UTF-8 and return the index after it."""
    if code < 0x80:
        texts[written] = code
        return written + 1
    if code < 0x800:
        texts[written] = 0xC0 | code >> 6
    else:
        if code < 0x10000:
            texts[written] = 0xE0 | code >> 12
        else:
            texts[written] = 0xF0 | code >> 18
            texts[written + 1] = 0x80 | code >> 12 & 0x3F
            written += 1
        texts[written + 1] = 0x80 | code >> 6 & 0x3F
        written += 1
    texts[written + 1] = 0x80 | code & 0x3F
    return written + 2


@inlined
def _read_unicode_escape(
    data: NDArray[np.uint8], position: int, end: int, texts: NDArray[np.uint8], written: int
) -> tuple[int, int]:
    r"""Write the character of one or two escapes \uXXXX at `position`; return the indices after both, -1 if invalid."""
    code = _read_code_unit(data, position, end)
    position += 6
    if 0xD800 <= code < 0xDC00:
        low = _read_code_unit(data, position, end)
        position += 6
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) if 0xDC00 <= low < 0xE000 else -1
    if code < 0 or 0xDC00 <= code < 0xE000:
        return -1, written
    return position, _write_character(code, texts, written)


@inlined
def read_string(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    texts: NDArray[np.uint8],
    written: int,
) -> tuple[int, int]:
    """Write the text of the string whose opening quote is at `position`.

    Returns:
        The index after its closing quote, -1 if there is none or the text has a lone surrogate, which UTF-8 cannot
        represent; and the index after the written text.
    """
    position += 1
    while 0 <= position < end:
        if position + LANES <= len(data):
            marks = copy_and_mark_special(data, position, texts, written)  # excess bytes are overwritten later
            if marks == NOTHING:
                position, written = position + LANES, written + LANES
                continue
            plain = count_before(marks)
            position, written = position + plain, written + plain
            if position >= end:
                break
        byte = data[position]
        if byte == ord("\\"):
            escaped = _ESCAPED[data[position + 1]] if position + 1 < end else np.uint8(0)
            if escaped:
                texts[written] = escaped
                position, written = position + 2, written + 1
            else:
                position, written = _read_unicode_escape(data, position, end, texts, written)
        elif byte == ord('"'):
            return position + 1, written
        elif CLASSES[byte] & TEXT:  # in the last 63 bytes
            texts[written] = byte
            position, written = position + 1, written + 1
        else:
            break
    return -1, written
