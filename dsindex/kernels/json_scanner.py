"""Kernels for lines of JSON (RFC 8259): find where lines end, and which are certainly JSON.

Imports numba, so import it where it is used. Every function ignores the bytes from `end` on, and returns -1 if it
does not find what it looks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.jit import compiled, inlined
from dsindex.kernels.loader import MAX_DEPTH
from dsindex.kernels.vectors import (
    LANES,
    NOTHING,
    ONE,
    count_before,
    mark_newlines,
    mark_special,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_NUMBER_BYTES = 4000
"""Longer numbers are left to json.loads: Python refuses integers of more than 4,300 digits."""

SPACE, TEXT, DIGIT, HEX, _ESCAPE = 1, 2, 4, 8, 16
"""Classes of bytes in CLASSES; a byte may be of several."""


def _classes() -> NDArray[np.uint8]:
    """Return the classes of each byte value: white space, unescaped text, digit, hex digit, after a backslash."""
    classes = np.zeros(256, dtype=np.uint8)
    classes[0x20:] = TEXT
    classes[[ord('"'), ord("\\")]] = 0
    for members, bit in ((b" \t\r", SPACE), (b"0123456789", DIGIT), (b'"\\/bfnrt', _ESCAPE)):
        classes[list(members)] |= bit
    classes[list(b"0123456789abcdefABCDEF")] |= HEX
    return classes


CLASSES = _classes()

_VALUE, _KEY, _AFTER = 0, 1, 2
"""States of `skip_value`, by what comes next: a value; a key; a comma, a closing bracket or the end."""


@inlined
def skip_class(data: NDArray[np.uint8], position: int, end: int, members: int) -> int:
    """Return the index of the first byte outside a class."""
    while position < end and CLASSES[data[position]] & members:
        position += 1
    return position


@inlined
def _skip_escape(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the index after the escape whose backslash is at `position`."""
    if position + 1 >= end:
        return -1
    escaped = data[position + 1]
    if escaped != ord("u"):
        return position + 2 if CLASSES[escaped] & _ESCAPE else -1
    if position + 6 > end:
        return -1
    left = CLASSES[data[position + 2]] & CLASSES[data[position + 3]]
    right = CLASSES[data[position + 4]] & CLASSES[data[position + 5]]
    return position + 6 if left & right & HEX else -1


@inlined
def skip_string(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the index after the closing quote of the string whose opening quote is at `position`."""
    position += 1
    while 0 <= position < end:
        if position + LANES <= len(data):
            marks = mark_special(data, position)
            if marks == NOTHING:
                position += LANES
                continue
            position += count_before(marks)
            if position >= end:
                break
        byte = data[position]
        if byte == ord("\\"):
            position = _skip_escape(data, position, end)
        elif byte == ord('"'):
            return position + 1
        elif CLASSES[byte] & TEXT:  # in the last 63 bytes
            position += 1
        else:
            break
    return -1


@compiled
def _skip_key(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the index after the colon of the key at `position`."""
    if data[position] != ord('"'):
        return -1
    position = skip_string(data, position, end)
    if position < 0:
        return -1
    position = skip_class(data, position, end, SPACE)
    return position + 1 if position < end and data[position] == ord(":") else -1


@compiled
def _skip_digits(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the index after one or more digits."""
    after = skip_class(data, position, end, DIGIT)
    return after if after > position else -1


@compiled
def _skip_number(data: NDArray[np.uint8], begin: int, end: int) -> int:
    """Return the index after the number at `begin`; -1 also if it is longer than MAX_NUMBER_BYTES."""
    digits = begin + 1 if data[begin] == ord("-") else begin
    position = _skip_digits(data, digits, end)
    if position < 0 or (data[digits] == ord("0") and position > digits + 1):
        return -1
    if position < end and data[position] == ord("."):
        position = _skip_digits(data, position + 1, end)
    if 0 <= position < end and (data[position] == ord("e") or data[position] == ord("E")):
        position += 1
        if position < end and (data[position] == ord("+") or data[position] == ord("-")):
            position += 1
        position = _skip_digits(data, position, end)
    return -1 if position - begin > MAX_NUMBER_BYTES else position


@compiled
def _skip_scalar(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the index after the string, number, true, false or null at `position`."""
    first = data[position]
    if first == ord('"'):
        return int(skip_string(data, position, end))
    if first == ord("-") or CLASSES[first] & DIGIT:
        return int(_skip_number(data, position, end))
    for word in (b"true", b"false", b"null"):
        if first == word[0] and position + len(word) <= end:
            for index in range(len(word)):
                if data[position + index] != word[index]:
                    return -1
            return position + len(word)
    return -1


@compiled
def skip_value(data: NDArray[np.uint8], position: int, end: int, closings: NDArray[np.int64]) -> int:
    """Return the index after the JSON value at `position`; closings[1:] is scratch space for closing brackets."""
    depth = 0
    expected = _VALUE
    while 0 <= position < end:
        byte = data[position]
        if expected == _KEY:
            position = _skip_key(data, position, end)
            expected = _VALUE
        elif expected == _AFTER:
            position += 1
            if byte == closings[depth]:
                depth -= 1
            elif byte == ord(","):
                expected = _KEY if closings[depth] == ord("}") else _VALUE
            else:
                return -1
        elif byte == ord("{") or byte == ord("["):
            depth += 1
            if depth == len(closings):
                return -1
            closings[depth] = ord("}") if byte == ord("{") else ord("]")
            position = skip_class(data, position + 1, end, SPACE)
            # An empty pair of brackets is complete; the next iteration closes it.
            is_empty = position < end and data[position] == closings[depth]
            expected = _AFTER if is_empty else (_KEY if byte == ord("{") else _VALUE)
        else:
            position = _skip_scalar(data, position, end)
            expected = _AFTER
        if depth == 0 and expected == _AFTER:
            return position
        if position >= 0:
            position = skip_class(data, position, end, SPACE)
    return -1


@compiled
def find_newlines(data: NDArray[np.uint8], size: int, newlines: NDArray[np.int64]) -> int:
    """Write the index of every newline in data[:size], ascending; return their number, -1 if there is no room."""
    position, count = 0, 0
    while position < size:
        if position + LANES <= len(data):
            marks = mark_newlines(data, position)
            step = LANES
        else:
            marks = ONE if data[position] == ord("\n") else NOTHING
            step = 1
        while marks != NOTHING:
            index = position + count_before(marks)
            if index >= size:
                break
            if count == len(newlines):
                return -1
            newlines[count] = index
            count += 1
            marks &= marks - ONE
        position += step
    return count


@compiled
def scan_lines(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    accepted: NDArray[np.bool_],
) -> None:
    """Mark the lines that are certainly JSON; their UTF-8 is not checked.

    Args:
        data: The bytes.
        starts: Index in `data` of each line's first byte.
        ends: Index in `data` after each line's last byte.
        accepted: Output: True for JSON, shape [lines].
    """
    closings = np.empty(MAX_DEPTH + 1, dtype=np.int64)
    for line in range(len(starts)):
        end = ends[line]
        position = skip_class(data, starts[line], end, SPACE)
        position = skip_value(data, position, end, closings)
        accepted[line] = position >= 0 and skip_class(data, position, end, SPACE) == end
