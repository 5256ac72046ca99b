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


@settings(max_examples=400)
@given(data=st.data(), multiple=st.sampled_from([1, 1, 2, 4, 6]), times=st.integers(1, 70))
def test_plan_is_that_of_the_slow_reference(data, multiple, times):
    """Of padded lengths; conversations that are longer than a block are left out."""
    capacity = times * multiple
    lengths = data.draw(st.lists(st.integers(1, data.draw(st.integers(1, capacity + 3))), max_size=40))
    kept = [number for number, length in enumerate(lengths) if length <= capacity]
    plan = lay_out_blocks(lengths, sequence_length=capacity, pad_to_multiple=multiple, drop_longer=True)
    expected = reference_blocks([-(-lengths[number] // multiple) * multiple for number in kept], capacity)
    assert sorted(blocks_of(plan)) == [[kept[place] for place in block] for block in expected]
    assert plan.num_tokens == sum(lengths[number] for number in kept)
    assert plan.num_padding == plan.num_blocks * capacity - plan.num_tokens


def test_order_of_a_plan_is_pinned():
    """Changing it changes every packed data set."""
    plan = lay_out_blocks([3, 9, 4, 4, 2, 7, 1, 10, 5, 5], sequence_length=10)
    assert blocks_of(plan) == [[1, 6], [0, 5], [8, 9], [2, 3, 4], [7]]


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


def test_blocks_are_not_in_the_order_of_lengths():
    """Some trainers read packs in the order of the file: no tenth of them has longer conversations than the others."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 1.0, 100_000).astype(np.int64), 1, 4096)
    plan = lay_out_blocks(lengths, sequence_length=4096)
    means = [lengths[block].mean() for block in np.split(plan.conversations, plan.block_starts[1:-1])]
    tenths = [np.mean(tenth) for tenth in np.array_split(means, 10)]
    assert min(tenths) > 0.9 * np.mean(means)
    assert max(tenths) < 1.1 * np.mean(means)


@pytest.mark.parametrize("lengths", [[0], [9], [5, -1]])
def test_lengths_out_of_range_are_refused(lengths):
    with pytest.raises(ValueError, match="expected 1 to 8 tokens"):
        lay_out_blocks(lengths, sequence_length=8)
    with pytest.raises(ValueError, match="at least 1"):
        lay_out_blocks([], sequence_length=0)
    with pytest.raises(ValueError, match="a multiple of pad_to_multiple 3"):
        lay_out_blocks([], sequence_length=8, pad_to_multiple=3)
    with pytest.raises(LimitError, match="sequence_length"):
        lay_out_blocks([1], sequence_length=2**40)
