"""The first item in which two large arrays differ, block by block on all CPUs."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from dsindex.formats.token_array import Tokens

BLOCK = 1 << 21
"""Items that are compared at once."""
BLOCKS_AHEAD = 4
"""Blocks that are compared before it is known whether an earlier one differs, for each CPU."""


def first_unequal(one: Tokens, other: Tokens, *, on_progress: Callable[[int], None] | None = None) -> int | None:
    """Return the first position at which two arrays differ, within the shorter one; None if there is none.

    Args:
        one: An array of any integer type, which may be mapped; shape [n], or [n, m] to compare rows.
        other: Another one; types may differ.
        on_progress: Called with the number of items that are the same, from time to time.
    """
    size = min(len(one), len(other))

    def compare(begin: int) -> int | None:
        end = min(begin + BLOCK, size)
        unequal = one[begin:end] != other[begin:end]
        if not unequal.any():
            return None
        return begin + int(np.argmax(unequal if unequal.ndim == 1 else unequal.any(axis=1)))

    begins = iter(range(0, size, BLOCK))
    cpus = os.cpu_count() or 1
    with ThreadPoolExecutor(cpus) as pool:
        pending: deque[Future[int | None]] = deque()
        same = 0
        while True:
            while len(pending) < BLOCKS_AHEAD * cpus and (begin := next(begins, None)) is not None:
                pending.append(pool.submit(compare, begin))
            if not pending:
                return None
            found = pending.popleft().result()
            if found is not None:
                pool.shutdown(cancel_futures=True)
                return found
            same = min(same + BLOCK, size)
            if on_progress is not None:
                on_progress(same)
