"""The compiled loop that looks for code points in UTF-8. Loads numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.jit import borrowed, compiled, inlined
from dsindex.kernels.simd import LANES, count_before, mark_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIMD_DIGEST = "83ce44bc0c4c394dbe4f2e2cb8167bac"
"""XXH3-128 of simd.py: a change there has to show here, or the cache gives loops that were compiled before it."""

_ONE = np.uint64(1)


@compiled
def mark_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    leads: NDArray[np.uint8],
    members: NDArray[np.uint8],
    marks: NDArray[np.uint8],
) -> int:
    """Mark the texts that hold a member of a set of code points from U+0080 on.

    Args:
        data: UTF-8.
        offsets: Where the texts begin in `data`, and where the last one ends; shape [D + 1].
        leads: 1 for each first byte of a member, shape [256].
        members: A bit for each code point, least significant first; shape [0x110000 / 8].
        marks: Set to 1 for texts with a member and left alone for the others, shape [D].

    Returns:
        How many texts are marked.
    """
    data, leads, members = borrowed(data), borrowed(leads), borrowed(members)
    lowest = np.uint8(0xFF)
    for lead in range(0xFF, 0x7F, -1):
        if leads[lead]:
            lowest = np.uint8(lead)
    text = count = 0
    end = offsets[len(marks)]
    position = _find_member(data, offsets[0], end, lowest, leads, members)
    while position < end:
        while offsets[text + 1] <= position:
            text += 1
        marks[text] = 1
        count += 1
        position = _find_member(data, offsets[text + 1], end, lowest, leads, members)
    return count


@inlined
def _find_member(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    lowest: np.uint8,
    leads: NDArray[np.uint8],
    members: NDArray[np.uint8],
) -> int:
    """Return where the first member in data[position:end] begins, or `end`."""
    while position < end:
        step = min(LANES, end - position)
        if step == LANES:
            found = mark_from(data, position, lowest)
        else:
            found = np.uint64(0)
            for index in range(step):
                if data[position + index] >= lowest:
                    found |= _ONE << np.uint64(index)
        while found:
            place = position + count_before(found)
            if leads[data[place]] and _is_member(data, place, end, members):
                return place  # type: ignore[no-any-return]
            found &= found - _ONE
        position += step
    return end


@inlined
def _is_member(data: NDArray[np.uint8], place: int, end: int, members: NDArray[np.uint8]) -> bool:
    """Decode the character of several bytes that begins at `place`, and look it up."""
    first = np.int64(data[place])
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if place + size > end:
        return False
    point = first & (0x7F >> size)
    for index in range(1, size):
        point = point << 6 | np.int64(data[place + index]) & 0x3F
    return bool(point < 0x110000 and (members[point >> 3] >> (point & 7)) & 1)
