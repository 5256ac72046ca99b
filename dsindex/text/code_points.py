"""Find the texts that contain one of a set of code points, at memory speed for texts that are mostly ASCII."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.loader import loaded_loops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_NUM_CODE_POINTS = 0x110000
_PIECE_BYTES = 1 << 20
"""Text searched in one step while the kernels are not loaded."""


class CodePoints:
    """A set of code points outside ASCII, prepared for searching UTF-8."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Prepare a set.

        Args:
            ranges: First and last code point of each range, both included.
        """
        flags = np.zeros(_NUM_CODE_POINTS, np.uint8)
        for first, last in ranges:
            if not 0x80 <= first <= last < _NUM_CODE_POINTS:
                msg = f"expected ranges within U+0080 to U+10FFFF, got U+{first:04X} to U+{last:04X}"
                raise ValueError(msg)
            flags[first : last + 1] = 1
        self._members = np.packbits(flags, bitorder="little")
        self._leads = np.zeros(256, np.uint8)
        self._leads[np.unique(_first_bytes(np.flatnonzero(flags)))] = 1
        self._is_empty = not flags.any()

    def find_texts(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the numbers of the texts that contain a member, ascending.

        Args:
            offsets: Start of each text in `data`, then the end of the last one; shape [D + 1].
            data: UTF-8.
        """
        if self._is_empty or len(offsets) < 2:
            return np.empty(0, np.int64)
        loops = loaded_loops()
        if loops is None:
            return self._find_texts_with_numpy(offsets, data)
        marks = np.zeros(len(offsets) - 1, np.uint8)
        if not loops.mark_texts(data, offsets, self._leads, self._members, marks):
            return np.empty(0, np.int64)
        return np.flatnonzero(marks)

    def _find_texts_with_numpy(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int64]:
        begin, end = int(offsets[0]), int(offsets[-1])
        lowest = int(np.argmax(self._leads))
        found: list[NDArray[np.int64]] = []
        for start in range(begin, end, _PIECE_BYTES):
            piece = data[start : min(start + _PIECE_BYTES, end)]
            high = np.flatnonzero(piece >= lowest)  # few, if most characters have one or two bytes
            places = high[self._leads[piece[high]] > 0] + start
            found.append(places[self._are_members(places, data, end)])
        places = np.concatenate([np.empty(0, np.int64), *found])
        return np.unique(np.searchsorted(offsets, places, side="right") - 1)

    def _are_members(self, places: NDArray[np.int64], data: NDArray[np.uint8], end: int) -> NDArray[np.bool_]:
        """Decode the characters that begin at `places` and look them up."""
        first = data[places].astype(np.int64)
        sizes = 2 + (first >= 0xE0) + (first >= 0xF0)
        points = first & (0x7F >> sizes)
        for index in range(1, 4):
            following = data[np.minimum(places + index, end - 1)].astype(np.int64)
            points = np.where(index < sizes, points << 6 | following & 0x3F, points)
        points = np.where((places + sizes <= end) & (points < _NUM_CODE_POINTS), points, 0)
        are_members: NDArray[np.bool_] = (self._members[points >> 3] >> (points & 7).astype(np.uint8) & 1).astype(bool)
        return are_members


def _first_bytes(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first UTF-8 byte of each code point, none of them in ASCII."""
    return np.select([points < 0x800, points < 0x10000], [0xC0 | points >> 6, 0xE0 | points >> 12], 0xF0 | points >> 18)
