"""Compare the loss masks and block layouts of instruction data; its tokens are a dataset like any other."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.comparing.documents import Documents, find_difference
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.datasets.opening import MASK_SUFFIX

if TYPE_CHECKING:
    from dsindex.comparing.documents import Difference

BLOCK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskComparison:
    """The result of comparing the loss masks and block layouts of two sets of instruction data."""

    trainable: tuple[int, int]
    """Trainable tokens."""
    difference: Difference | None
    """The first document whose mask differs, and the token; None if there is none."""
    layouts: dict[str, bool | None]
    """Name of each block layout, such as `packing_4096` -> whether it is the same; None if only one side has it."""

    @property
    def is_same(self) -> bool:
        """Whether masks and all layouts that both have are the same; layouts can be made anew from the lengths."""
        return self.difference is None and False not in self.layouts.values()


def compare_masks(first: str, second: str) -> MaskComparison:
    """Compare the loss masks and block layouts beside two prefixes of instruction data.

    Raises:
        FormatError: If a file cannot be read.
    """
    one, other = (Documents(IndexedDataset(f"{prefix}{MASK_SUFFIX}")) for prefix in (first, second))
    return MaskComparison(
        trainable=(_count_trainable(one), _count_trainable(other)),
        difference=find_difference(one, other),
        layouts=_compare_layouts(first, second),
    )


def _count_trainable(masks: Documents) -> int:
    tokens = masks.tokens
    return sum(int(np.count_nonzero(tokens[begin : begin + BLOCK])) for begin in range(0, len(tokens), BLOCK))


def _compare_layouts(first: str, second: str) -> dict[str, bool | None]:
    sides = [
        {path[len(prefix) + 1 : -len(".idx")]: path.removesuffix(".idx") for path in _find_layouts(prefix)}
        for prefix in (first, second)
    ]
    one, other = sides
    return {
        name: None
        if name not in one or name not in other
        else find_difference(*(Documents(IndexedDataset(side[name])) for side in sides)) is None
        for name in sorted(one.keys() | other.keys())
    }


def _find_layouts(prefix: str) -> list[str]:
    return glob.glob(f"{packing_prefix(glob.escape(prefix), 0)[:-1]}*.idx")
