"""Kernels for lines of JSON (RFC 8259): read the strings, or the lists of token ids, under wanted keys.

Imports numba, so import it where it is used. Every function ignores the bytes from `end` on, and returns -1 if it
does not find what it looks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.jit import compiled, inlined
from dsindex.kernels.json_scanner import (
    CLASSES,
    DIGIT,
    HEX,
    SPACE,
    TEXT,
    skip_class,
    skip_string,
    skip_value,
)
from dsindex.kernels.vectors import LANES, NOTHING, copy_and_mark_special, count_before

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Kernel that copies a JSON string, unescaped. Imports numba, so import it where it is used.

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


@inlined
def _find_key(
    data: NDArray[np.uint8],
    begin: int,
    end: int,
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    objects: NDArray[np.int64],
    within: int,
) -> int:
    """Return the number of the wanted key in data[begin:end]; -1 for another key, -2 for one with escapes."""
    for position in range(begin, end):
        if data[position] == ord("\\"):
            return -2
    key_begin = 0
    for number in range(len(key_ends)):
        key_end = key_ends[number]
        same = objects[number] == within and key_end - key_begin == end - begin
        for index in range(end - begin if same else 0):
            same = same and data[begin + index] == keys[key_begin + index]
        if same:
            return number
        key_begin = key_end
    return -1


@inlined
def _enter_member(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    objects: NDArray[np.int64],
    within: int,
) -> tuple[int, int]:
    """Skip a bracket or comma at `position` and a key; return the key's number and its value's index; -1 if unsure."""
    begin = skip_class(data, position + 1, end, SPACE)
    if begin == end or data[begin] != ord('"'):
        return -1, -1
    after = skip_string(data, begin, end)
    if after < 0:
        return -1, -1
    number = _find_key(data, begin + 1, after - 1, keys, key_ends, objects, within)
    position = skip_class(data, after, end, SPACE)
    if number == -2 or position == end or data[position] != ord(":"):
        return -1, -1
    position = skip_class(data, position + 1, end, SPACE)
    return number, (position if position < end else -1)


@inlined
def _leave_objects(
    data: NDArray[np.uint8], position: int, end: int, objects: NDArray[np.int64], within: int
) -> tuple[int, int]:
    """Skip white space and the closing brackets of objects under wanted keys; return the index, and the object then."""
    position = skip_class(data, position, end, SPACE)
    while within >= 0 and position < end and data[position] == ord("}"):
        within = objects[within]
        position = skip_class(data, position + 1, end, SPACE)
    return position, within


@inlined
def _find_value(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    objects: NDArray[np.int64],
    columns: NDArray[np.int64],
    within: int,
    line: int,
    last_lines: NDArray[np.int64],
    closings: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Skip the bracket or comma at `position`, and what is not wanted.

    Returns:
        The column of the next wanted value, its index, and the object that it is in. The column is -1, and the index
        after the last member, if there is none. The index is -1 if unsure.
    """
    while True:
        number, position = _enter_member(data, position, end, keys, key_ends, objects, within)
        if position < 0:
            return -1, -1, within
        if number >= 0:
            is_again = last_lines[number] == line
            last_lines[number] = line
            if is_again or (columns[number] < 0 and data[position] != ord("{")):
                return -1, -1, within
            if columns[number] >= 0:
                return columns[number], position, within
            within = number
            continue
        position = skip_value(data, position, end, closings)
        if position < 0:
            return -1, -1, within
        position, within = _leave_objects(data, position, end, objects, within)
        if position == end or data[position] != ord(","):
            return -1, position, within


@inlined
def _is_closed(data: NDArray[np.uint8], position: int, end: int, within: int) -> bool:
    """Tell whether the line ends with the closing bracket of its object at `position`."""
    if within >= 0 or position == end or data[position] != ord("}"):
        return False
    return bool(skip_class(data, position + 1, end, SPACE) == end)


@inlined
def _read_object(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    objects: NDArray[np.int64],
    columns: NDArray[np.int64],
    texts: NDArray[np.uint8],
    text_ends: NDArray[np.int64],
    line: int,
    last_lines: NDArray[np.int64],
    closings: NDArray[np.int64],
) -> bool:
    """Write the strings under the wanted keys of the object in data[position:end]; return False if unsure."""
    missing = len(text_ends)
    position = skip_class(data, position, end, SPACE)
    if position == end or data[position] != ord("{"):
        return False
    within = -1
    while True:
        column, position, within = _find_value(
            data, position, end, keys, key_ends, objects, columns, within, line, last_lines, closings
        )
        if position < 0:
            return False
        if column < 0:
            break
        if data[position] != ord('"'):
            return False
        missing -= 1
        position, written = read_string(data, position, end, texts, text_ends[column, line])
        text_ends[column, line + 1] = written
        if position < 0:
            return False
        position, within = _leave_objects(data, position, end, objects, within)
        if position == end or data[position] != ord(","):
            break
    return missing == 0 and _is_closed(data, position, end, within)


@compiled
def read_objects(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    objects: NDArray[np.int64],
    columns: NDArray[np.int64],
    texts: NDArray[np.uint8],
    text_ends: NDArray[np.int64],
    closings: NDArray[np.int64],
    last_lines: NDArray[np.int64],
) -> bool:
    """Read the strings under the wanted keys, if every line is certainly an object that has each key once.

    A wanted key is one of the line's object, or of the object under another wanted key. `.a.b` and `.a.c` make the
    keys `a`, `b` and `c`, with objects [-1, 0, 0] and columns [-1, 0, 1].

    Args:
        data: The bytes.
        starts: Index in `data` of each line's first byte.
        ends: Index in `data` after each line's last byte.
        keys: The wanted keys in UTF-8, concatenated.
        key_ends: End of each key in `keys`.
        objects: Number of the key whose object has this key; -1 for the line's object.
        columns: Number of each key's row in `text_ends`; -1 for a key of an object.
        texts: Output: the unescaped strings, those of a key one after the other; needs the size of all lines plus
            LANES bytes for each key.
        text_ends: Output: the end of each string in `texts`, shape [rows, lines + 1]. The caller sets column 0 to where
            each key's strings begin.
        closings: Scratch space, shape [MAX_DEPTH + 1].
        last_lines: The last line with each key: -1, shape [keys].

    Returns:
        False if `json.loads` must decide. The encoding is not checked.
    """
    for line in range(len(starts)):
        if not _read_object(
            data,
            starts[line],
            ends[line],
            keys,
            key_ends,
            objects,
            columns,
            texts,
            text_ends,
            line,
            last_lines,
            closings,
        ):
            return False
    return True


@inlined
def _read_ids(
    data: NDArray[np.uint8], position: int, end: int, limit: int, ids: NDArray[np.uint32], written: int
) -> tuple[int, int]:
    """Write the integers in [0, limit) of the list whose opening bracket is at `position`.

    Returns:
        The index after its closing bracket, -1 if there is anything else in the list; and the index after the ids.
    """
    position = skip_class(data, position + 1, end, SPACE)
    if position < end and data[position] == ord("]"):
        return position + 1, written
    while position < end:
        begin, value = position, np.int64(0)
        while position < end and position < begin + 10 and CLASSES[data[position]] & DIGIT:
            value = 10 * value + (data[position] - ord("0"))
            position += 1
        if position == begin or (data[begin] == ord("0") and position > begin + 1) or value >= limit:
            break
        ids[written] = value
        written += 1
        position = skip_class(data, position, end, SPACE)
        if position < end and data[position] == ord("]"):
            return position + 1, written
        if position == end or data[position] != ord(","):
            break
        position = skip_class(data, position + 1, end, SPACE)
    return -1, written


@compiled
def read_id_lists(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    objects: NDArray[np.int64],
    columns: NDArray[np.int64],
    limit: int,
    ids: NDArray[np.uint32],
    id_ends: NDArray[np.int64],
    closings: NDArray[np.int64],
    last_lines: NDArray[np.int64],
) -> bool:
    """Read the list of token ids under the one wanted key, like `read_objects`.

    Args:
        data: The bytes.
        starts: Index in `data` of each line's first byte.
        ends: Index in `data` after each line's last byte.
        keys: The keys that lead to the list, as for `read_objects`.
        key_ends: End of each key in `keys`.
        objects: Number of the key whose object has this key; -1 for the line's object.
        columns: 0 for the last key, -1 for the others.
        limit: Ids are below this number.
        ids: Output: the ids of all lists; needs an item for every two bytes of the lines.
        id_ends: Output: the end of each line's ids, shape [lines].
        closings: As for `read_objects`.
        last_lines: As for `read_objects`.

    Returns:
        False if `json.loads` must decide. The encoding is not checked.
    """
    written = 0
    for line in range(len(starts)):
        end, within, is_found = ends[line], -1, False
        position = skip_class(data, starts[line], end, SPACE)
        if position == end or data[position] != ord("{"):
            return False
        while True:
            column, position, within = _find_value(
                data, position, end, keys, key_ends, objects, columns, within, line, last_lines, closings
            )
            if position < 0:
                return False
            if column < 0:
                break
            if data[position] != ord("["):
                return False
            is_found = True
            position, written = _read_ids(data, position, end, limit, ids, written)
            if position < 0:
                return False
            position, within = _leave_objects(data, position, end, objects, within)
            if position == end or data[position] != ord(","):
                break
        if not (is_found and _is_closed(data, position, end, within)):
            return False
        id_ends[line] = written
    return True
