from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import LimitError
from dsindex.index.arrays import blend_by_weights, blend_exhaustively
from dsindex.index.blend import MAX_DATASETS, Blend, check_draws, parse_data_path, samples_wanted
from dsindex.index.epochs import normalise


def slow_blend(weights, size, limits=None):
    taken = [0] * len(weights)
    drawn = []
    for sample in range(size):
        lags = [
            -np.inf if limits and taken[d] >= limits[d] else weight * max(float(sample), 1.0) - float(taken[d])
            for d, weight in enumerate(weights)
        ]
        dataset = lags.index(max(lags))
        drawn.append((dataset, taken[dataset]))
        taken[dataset] += 1
    return drawn


@settings(max_examples=60)
@given(weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), size=st.integers(0, 300))
def test_weighted_blend_equals_the_slow_reference(weights, size):
    shares = normalise(weights)
    datasets, samples = blend_by_weights(shares, size)
    assert list(zip(datasets.tolist(), samples.tolist(), strict=True)) == slow_blend(shares, size)
    assert (datasets.dtype, samples.dtype) == (np.int16, np.int64)


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9))
def test_exhaustive_blend_draws_each_sample_once_in_the_slow_references_order(lengths):
    datasets, samples = blend_exhaustively(lengths)
    drawn = list(zip(datasets.tolist(), samples.tolist(), strict=True))
    assert drawn == slow_blend([length / sum(lengths) for length in lengths], sum(lengths), lengths)
    assert sorted(drawn) == [(d, s) for d, length in enumerate(lengths) for s in range(length)]


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (["a"], Blend(prefixes=("a",), weights=None)),
        (["a", "b"], Blend(prefixes=("a", "b"), weights=None)),
        (["1", " a "], Blend(prefixes=("a",), weights=(1.0,))),
        (["0.3", "a", "1e1", "b"], Blend(prefixes=("a", "b"), weights=(0.3, 10.0))),
        (["0.5", "a", "b"], Blend(prefixes=("0.5", "a", "b"), weights=None)),
    ],
)
def test_data_path_is_read_as_megatron_reads_it(words, blend):
    assert parse_data_path(words) == blend


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([], ValueError, "--data-path: expected at least one prefix"),
        (["1", "a", "b", "c"], ValueError, "got 'b' instead of a weight"),
        (["0", "a", "1", "b"], LimitError, r"positive weight for a, got 0, which Megatron refuses"),
        (["1", "a", "-2", "b"], LimitError, "positive weight for b, got -2"),
        (["nan", "a"], LimitError, "positive weight for a, got nan"),
        (["inf", "a"], LimitError, "positive weight for a, got inf"),
        (["p"] * (MAX_DATASETS + 1), LimitError, "at most 32766 datasets in a blend, got 32767"),
    ],
    ids=["none", "mixed", "zero", "negative", "nan", "inf", "too-many"],
)
def test_blend_that_megatron_stops_at_is_refused(words, error, message):
    with pytest.raises(error, match=message):
        parse_data_path(words)


def test_most_datasets_that_int16_holds_are_accepted():
    assert len(parse_data_path(["p"] * MAX_DATASETS).prefixes) == 32766


def test_samples_wanted_are_rounded_up_once_and_once_more_with_the_surplus():
    assert samples_wanted([1, 2], 100) == [34, 67]
    assert samples_wanted([1, 2], 100, surplus=0.005) == [35, 68]
    assert samples_wanted([1, 2], 0, surplus=0.005) == [0, 0]


def test_blend_that_runs_past_a_dataset_is_refused():
    check_draws(Counter({0: 5, 1: 7}), [5, 7], ["a", "b"], place="blend of 2, split train", surplus=0.005)
    message = r"^blend of 2, split train: the blend draws 8 samples from b, which has only 7; raise --mid-level-dataset"
    with pytest.raises(LimitError, match=message):
        check_draws(Counter({0: 5, 1: 8}), [5, 7], ["a", "b"], place="blend of 2, split train", surplus=0.005)
