"""Quantiles of lengths in blocks are those of all lengths at once."""

import numpy as np
import pytest

from dsindex.tools.inspect_origin import SHARES, summarize_lengths


@pytest.mark.parametrize("largest", [5, 1 << 16, 1 << 17, 1 << 40, (1 << 62) // 500])
def test_quantiles_are_those_of_sorted_lengths(largest):
    lengths = np.random.default_rng(1).integers(0, largest, size=501)
    ordered = sorted(lengths.tolist())
    summary = summarize_lengths(np.array_split(lengths, 7))
    expected = {f"{share * 100:g}": ordered[max(-(-round(share * 100) * 501 // 100) - 1, 0)] for share in SHARES}
    assert summary.quantiles == expected
    assert (summary.count, summary.total) == (501, sum(ordered))
    assert summary.empty == ordered.count(0)


def test_no_lengths_have_no_quantiles():
    assert summarize_lengths([np.empty(0, np.int64)]).quantiles == {}
