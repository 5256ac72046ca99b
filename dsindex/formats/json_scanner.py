"""The compiled part of json_lines: a scanner for JSON by RFC 8259. Loads numba, so import it where it is used.

Every function is given `end` and reads no byte from there on; -1 says that what was looked for is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.indices.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_DEPTH = 64
"""Brackets within brackets that the scanner follows; deeper lines are left to json.loads, whose limit is Python's."""

MAX_NUMBER_BYTES = 4000
"""Longer numbers are left to json.loads: Python refuses integers of more than 4,300 digits."""

_SPACE, _TEXT, _DIGIT, _HEX, _ESCAPE = 1, 2, 4, 8, 16


def _classes() -> NDArray[np.uint8]:
    """Give what each byte may be: white space, text of a string as it stands, a digit, or follow a backslash."""
    classes = np.zeros(256, dtype=np.uint8)
    classes[0x20:] = _TEXT
    classes[[ord('"'), ord("\\")]] = 0
    for members, bit in ((b" \t\r", _SPACE), (b"0123456789", _DIGIT), (b'"\\/bfnrt', _ESCAPE)):
        classes[list(members)] |= bit
    classes[list(b"0123456789abcdefABCDEF")] |= _HEX
    return classes


_CLASSES = _classes()
_VALUE, _KEY, _AFTER = 0, 1, 2
"""What comes next: a value; a key; a comma, a closing bracket or the end."""

_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES, _COUNTING = np.uint64(0x2020202020202020), np.uint64(0x0001020304050607)
_NOTHING, _ONE, _SEVEN, _TOP_BYTE = np.uint64(0), np.uint64(1), np.uint64(7), np.uint64(56)


@compiled
def _count_plain(eight: np.uint64) -> int:
    """Count the bytes before the first of 8 that is a quote, a backslash or below 0x20.

    (x - 0x01…) & ~x & 0x80… marks bytes of x that are 0, and with 0x20 for 0x01 those below 0x20. The lowest mark is
    always true; a borrow may set false ones above it. A mark at byte k is bit 8k + 7: shifted by 7 and multiplied, k
    comes out in the top byte.
    """
    quotes, backslashes = eight ^ _QUOTES, eight ^ _BACKSLASHES
    found = ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes) | ((eight - _SPACES) & ~eight)
    found &= _HIGHS
    if found == _NOTHING:
        return 8
    lowest = (found & (~found + _ONE)) >> _SEVEN
    return int(np.int64((lowest * _COUNTING) >> _TOP_BYTE))  # numba keeps it unsigned otherwise


@compiled
def _skip_class(data: NDArray[np.uint8], position: int, end: int, members: int) -> int:
    """Give the index of the first byte that is not of a class."""
    while position < end and _CLASSES[data[position]] & members:
        position += 1
    return position


@compiled
def _skip_escape(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Give the index after the escape whose backslash is at `position`."""
    if position + 1 >= end:
        return -1
    escaped = data[position + 1]
    if escaped != ord("u"):
        return position + 2 if _CLASSES[escaped] & _ESCAPE else -1
    if position + 6 > end:
        return -1
    left = _CLASSES[data[position + 2]] & _CLASSES[data[position + 3]]
    right = _CLASSES[data[position + 4]] & _CLASSES[data[position + 5]]
    return position + 6 if left & right & _HEX else -1


@compiled
def _skip_string(data: NDArray[np.uint8], eights: NDArray[np.uint64], position: int, end: int) -> int:
    """Give the index after the closing quote of the string whose opening quote is at `position`."""
    position += 1
    while 0 <= position < end:
        byte = data[position]
        if byte == ord("\\"):
            position = _skip_escape(data, position, end)
        elif byte == ord('"'):
            return position + 1
        elif not _CLASSES[byte] & _TEXT:
            return -1
        elif position + 8 > end:
            position += 1
        else:
            plain = _count_plain(eights[position])
            position += plain
            while plain == 8 and position + 8 <= end:
                plain = _count_plain(eights[position])
                position += plain
    return -1


@compiled
def _skip_key(data: NDArray[np.uint8], eights: NDArray[np.uint64], position: int, end: int) -> int:
    """Give the index after the colon of the key at `position`."""
    if data[position] != ord('"'):
        return -1
    position = _skip_string(data, eights, position, end)
    if position < 0:
        return -1
    position = _skip_class(data, position, end, _SPACE)
    return position + 1 if position < end and data[position] == ord(":") else -1


@compiled
def _skip_digits(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Give the index after one digit or more."""
    after = _skip_class(data, position, end, _DIGIT)
    return after if after > position else -1


@compiled
def _skip_number(data: NDArray[np.uint8], begin: int, end: int) -> int:
    """Give the index after the number that begins at `begin`, unless it is very long."""
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
def _skip_scalar(data: NDArray[np.uint8], eights: NDArray[np.uint64], position: int, end: int) -> int:
    """Give the index after the string, number, true, false or null at `position`."""
    first = data[position]
    if first == ord('"'):
        return int(_skip_string(data, eights, position, end))
    if first == ord("-") or _CLASSES[first] & _DIGIT:
        return int(_skip_number(data, position, end))
    for word in (b"true", b"false", b"null"):
        if first == word[0] and position + len(word) <= end:
            for index in range(len(word)):
                if data[position + index] != word[index]:
                    return -1
            return position + len(word)
    return -1


@compiled
def _is_value(
    data: NDArray[np.uint8], eights: NDArray[np.uint64], position: int, end: int, closings: NDArray[np.int64]
) -> bool:
    """Tell whether data[position:end] is one JSON value; closings[1:] is room for what the open brackets wait for."""
    depth = 0
    expected = _VALUE
    while position >= 0:
        position = _skip_class(data, position, end, _SPACE)
        if position >= end:
            return expected == _AFTER and depth == 0
        byte = data[position]
        if expected == _KEY:
            position = _skip_key(data, eights, position, end)
            expected = _VALUE
        elif expected == _AFTER:
            position += 1
            if byte == closings[depth]:
                depth -= 1
            elif byte == ord(",") and depth > 0:
                expected = _KEY if closings[depth] == ord("}") else _VALUE
            else:
                return False
        elif byte == ord("{") or byte == ord("["):
            depth += 1
            if depth == len(closings):
                return False
            closings[depth] = ord("}") if byte == ord("{") else ord("]")
            position = _skip_class(data, position + 1, end, _SPACE)
            # An empty pair of brackets is a value already; the next round closes it.
            is_empty = position < end and data[position] == closings[depth]
            expected = _AFTER if is_empty else (_KEY if byte == ord("{") else _VALUE)
        else:
            position = _skip_scalar(data, eights, position, end)
            expected = _AFTER
    return False


@compiled
def scan_lines(
    data: NDArray[np.uint8],
    eights: NDArray[np.uint64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    accepted: NDArray[np.bool_],
) -> None:
    """Mark the lines that are JSON beyond doubt, apart from their UTF-8.

    Args:
        data: The bytes.
        eights: The same bytes, where eights[i] is the little-endian number of data[i : i + 8].
        starts: Index in `data` of each line's first byte.
        ends: Index in `data` after each line's last byte.
        accepted: Where the marks go, shape [lines].
    """
    closings = np.full(MAX_DEPTH + 1, -1, dtype=np.int64)  # nothing closes depth 0
    for line in range(len(starts)):
        accepted[line] = _is_value(data, eights, starts[line], ends[line], closings)
