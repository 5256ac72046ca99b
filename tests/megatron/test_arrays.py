"""Document, sample and shuffle index against slow, obvious references, and one pinned order."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import LimitError
from dsindex.megatron import arrays as sample
from dsindex.megatron.arrays import build_sample_index, shuffle_in_place
from dsindex.megatron.building import build_arrays
from dsindex.megatron.epochs import SampleRule, count_epochs


def slow_sample_rows(lengths, documents, rule):
    """Lay all tokens end to end, each named by its position and offset; take L + x, step back x, and so on."""
    extra = int(rule.extra_token)
    tokens = [(position, offset) for position, d in enumerate(documents) for offset in range(lengths[d])]
    yield [0, 0]
    begin = 0
    while begin + rule.sequence_length + extra <= len(tokens):
        # The next sample begins x tokens before where this one ends; its place is told from the last token taken.
        position, offset = tokens[begin + rule.sequence_length + extra - 1]
        yield [position, offset + 1 - extra]
        begin += rule.sequence_length
    if rule.keep_partial and begin + extra < len(tokens):
        yield [len(documents) - 1, lengths[documents[-1]] - extra]


def slow_shuffled(ids, rng):
    array = np.array(ids, np.int32)
    rng.shuffle(array)
    return array.tolist()


LENGTHS = st.lists(st.one_of(st.integers(0, 9), st.sampled_from([0, 0, 40, 300])), min_size=1, max_size=30)


@settings(max_examples=60)
@given(
    lengths=LENGTHS, length=st.integers(2, 40), num_samples=st.none() | st.integers(0, 60), extra=st.booleans(),
    keep_partial=st.booleans(), seed=st.integers(0, 2**32 - 1), begin=st.integers(0, 1000), block=st.integers(1, 7),
)  # fmt: skip
def test_arrays_equal_the_slow_reference(lengths, length, num_samples, extra, keep_partial, seed, begin, block):
    rule = SampleRule(sequence_length=length, extra_token=extra, keep_partial=keep_partial)
    if not sum(lengths):
        num_samples = None
    plan = count_epochs(sum(lengths), num_samples, rule=rule, place="p")
    rng = np.random.RandomState(seed)
    ids = list(range(begin, begin + len(lengths)))
    if plan.separate_final_epoch:
        documents = slow_shuffled(ids * (plan.num_epochs - 1), rng) + slow_shuffled(ids, rng)
    else:
        documents = slow_shuffled(ids * plan.num_epochs, rng)
    rows = list(slow_sample_rows(lengths, [d - begin for d in documents], rule))
    order = slow_shuffled(list(range(plan.shuffled_together)), rng)
    order += slow_shuffled(list(range(plan.shuffled_together, len(rows) - 1)), rng)

    array = np.array(lengths, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "BLOCK_POSITIONS", block)
        if rows[-1][1] < 0:
            with pytest.raises(LimitError, match="the last sequence is empty"):
                build_arrays(array, plan, begin=begin, rule=rule, seed=seed)
            return
        ours = build_arrays(array, plan, begin=begin, rule=rule, seed=seed, threads=2)
    assert ours[0].tolist() == documents
    assert ours[1].tolist() == rows
    assert ours[2].tolist() == order
    assert [a.dtype for a in ours] == [np.int32, np.int32, np.uint32]


def test_pinned_order_of_seed_1234():
    """A change here breaks every cache ever built: training jobs would resume on other samples."""
    lengths = np.array([20, 50, 60, 30, 100, 5], np.int32)
    rule = SampleRule(sequence_length=30)
    plan = count_epochs(265, 20, rule=rule, place="p")
    arrays = build_arrays(lengths, plan, begin=0, rule=rule, seed=1234)
    assert (plan.num_epochs, plan.separate_final_epoch) == (3, True)
    assert arrays[0].tolist() == [1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3, 1, 0, 3, 2, 5, 4]
    digests = [hashlib.md5(array.tobytes()).hexdigest()[:16] for array in arrays]
    assert digests == ["d02d69506580fda8", "4c5dee59f811140b", "c82894cd640f883c"]


def test_rows_of_the_longest_sequences():
    rule = SampleRule(sequence_length=2**30)
    plan = count_epochs(2**32 - 2, None, rule=rule, place="p")
    lengths = np.array([2**31 - 1, 2**31 - 1], np.int32)
    rows = build_sample_index(lengths, np.arange(2, dtype=np.int32), plan.num_samples, rule=rule)
    assert rows.tolist() == [[0, 0], [0, 2**30], [1, 1], [1, 2**30 + 1]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [0, 1, 2, 623, 625, 70_000])
def test_shuffle_is_numpys_and_so_is_the_state_after(dtype, size):
    ours, numpys = np.random.RandomState(size), np.random.RandomState(size)
    for _ in range(3):
        expected = np.arange(size, dtype=dtype)
        array = expected.copy()
        numpys.shuffle(expected)
        shuffle_in_place(array, rng=ours)
        assert np.array_equal(array, expected)
    theirs, state = numpys.get_state(legacy=False), ours.get_state(legacy=False)
    assert state["state"]["pos"] == theirs["state"]["pos"]
    assert np.array_equal(state["state"]["key"], theirs["state"]["key"])


def test_sample_index_is_int64_for_positions_beyond_int32(monkeypatch):
    monkeypatch.setattr(sample, "sample_dtype", lambda _: np.dtype("<i8"))
    rule = SampleRule(sequence_length=10)
    rows = build_sample_index(np.array([25], np.int32), np.zeros(2, np.int32), 4, rule=rule, threads=2)
    assert rows.dtype == np.int64
    assert rows.tolist() == [[0, 0], [0, 10], [0, 20], [1, 5], [1, 15]]
