"""Find the texts that contain one of a set of code points, at memory speed for texts that are mostly ASCII."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.loader import loaded_kernels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_NUM_CODE_POINTS = 0x110000
_PIECE_BYTES = 1 << 20
"""Text searched in one step without the kernels."""
_EXPECTED_PLACES = 256
"""Room for places in a block of text; most have none."""


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
        self._pairs = np.zeros(1 << 16, np.bool_)
        """Whether a member has these first two bytes in UTF-8, as a big-endian number."""
        self._pairs[_first_bytes(np.flatnonzero(flags))] = True
        self._lowest = int(np.argmax(self._pairs)) >> 8
        self._is_empty = not flags.any()

    def find_texts(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the numbers of the texts that contain a member, ascending.

        Args:
            offsets: Start of each text in `data`, then the end of the last one; shape [D + 1].
            data: UTF-8.
        """
        if self._is_empty or len(offsets) < 2:
            return np.empty(0, np.int64)
        places = self._find_places(data, int(offsets[0]), int(offsets[-1]))
        places = places[self._are_members(places, data, int(offsets[-1]))]
        return np.unique(np.searchsorted(offsets, places, side="right") - 1)

    def _find_places(self, data: NDArray[np.uint8], begin: int, end: int) -> NDArray[np.int64]:
        """Return where characters begin in data[begin:end] that share their first two bytes with a member."""
        kernels = loaded_kernels()
        if kernels is not None:
            places = np.empty(_EXPECTED_PLACES, np.int64)
            while (count := kernels.find_characters(data, begin, end, self._lowest, self._pairs, places)) < 0:
                places = np.empty(8 * len(places), np.int64)
            return places[:count]
        found = [np.empty(0, np.int64)]
        for start in range(begin, end - 1, _PIECE_BYTES):
            stop = min(start + _PIECE_BYTES, end - 1)
            high = np.flatnonzero(data[start:stop] >= self._lowest) + start  # few in most texts
            found.append(high[self._pairs[data[high].astype(np.int64) << 8 | data[high + 1]]])
        return np.concatenate(found)

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
    """Return the first two UTF-8 bytes of each code point, none of them in ASCII, as a big-endian number."""
    two = 0xC080 | points >> 6 << 8 | points & 0x3F
    three = 0xE080 | points >> 12 << 8 | points >> 6 & 0x3F
    four = 0xF080 | points >> 18 << 8 | points >> 12 & 0x3F
    pairs: NDArray[np.int64] = np.select([points < 0x800, points < 0x10000], [two, three], four)
    return pairs
