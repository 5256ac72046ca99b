import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import LimitError
from dsindex.instruction.blocks import lay_out_blocks


def reference_blocks(lengths, capacity):
    """Best fit, the longest first, by looking at every block each time."""
    blocks = []
    free = []
    filled_at = []
    for time, conversation in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        size = lengths[conversation]
        candidates = [(free[b], -filled_at[b], b) for b in range(len(blocks)) if free[b] >= size]
        if not candidates:
            blocks.append([])
            free.append(capacity)
            filled_at.append(0)
        block = min(candidates)[2] if candidates else len(blocks) - 1
        blocks[block].append(conversation)
        free[block] -= size
        filled_at[block] = time
    return sorted(sorted(block) for block in blocks)


def blocks_of(plan):
    return [plan.block(number).tolist() for number in range(plan.num_blocks)]


@settings(max_examples=300)
@given(data=st.data(), capacity=st.integers(1, 70))
def test_plan_is_that_of_the_slow_reference(data, capacity):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=40))
    plan = lay_out_blocks(lengths, sequence_length=capacity)
    assert blocks_of(plan) == reference_blocks(lengths, capacity)
    assert plan.num_tokens == sum(lengths)
    assert plan.num_padding == plan.num_blocks * capacity - sum(lengths)


def test_order_of_a_plan_is_pinned():
    """Changing it changes every packed data set."""
    plan = lay_out_blocks([3, 9, 4, 4, 2, 7, 1, 10, 5, 5], sequence_length=10)
    assert blocks_of(plan) == [[0, 5], [1, 6], [2, 3, 4], [7], [8, 9]]


@pytest.mark.parametrize(
    ("lengths", "capacity", "expected"),
    [
        pytest.param([], 8, [], id="none"),
        pytest.param([8], 8, [[0]], id="full"),
        pytest.param([1] * 3, 1, [[0], [1], [2]], id="length-one"),
        pytest.param([8, 8], 8, [[0], [1]], id="two-full"),
    ],
)
def test_plan_at_the_edges(lengths, capacity, expected):
    plan = lay_out_blocks(lengths, sequence_length=capacity)
    assert blocks_of(plan) == expected
    assert plan.fill == 1.0


def test_realistic_lengths_fill_the_blocks():
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 1.0, 100_000).astype(np.int64), 1, 4096)
    plan = lay_out_blocks(lengths, sequence_length=4096)
    assert plan.fill > 0.999
    assert sorted(plan.conversations.tolist()) == list(range(100_000))
    sums = np.add.reduceat(lengths[plan.conversations], plan.block_starts[:-1])
    assert sums.max() <= 4096


@pytest.mark.parametrize("lengths", [[0], [9], [5, -1]])
def test_lengths_out_of_range_are_refused(lengths):
    with pytest.raises(ValueError, match="expected 1 to 8 tokens"):
        lay_out_blocks(lengths, sequence_length=8)
    with pytest.raises(ValueError, match="at least 1"):
        lay_out_blocks([], sequence_length=0)
    with pytest.raises(LimitError, match="sequence_length"):
        lay_out_blocks([1], sequence_length=2**40)
