"""Epochs, splits, blends, lengths of training, names and descriptions: which caches a job looks for."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import FormatError, InputError, LimitError, UsageError
from dsindex.megatron import epochs
from dsindex.megatron.arrays import blend_by_weights, blend_exhaustively
from dsindex.megatron.cache import cache_files, description_text, read_description
from dsindex.megatron.flags import TrainingLength, samples_for_training
from dsindex.megatron.plan import Blend, CacheSettings, PartCounts, find_needed_caches, parse_data_path
from tests.support.golden import golden_caches

RULE = epochs.SampleRule(sequence_length=10)


@pytest.mark.parametrize(("tokens", "num_samples", "num_epochs"), [
    (101, 10, 1), (100, 10, 2), (100, 0, 1), (1, 1, 11), (1000, None, 1),
])  # fmt: skip
def test_epochs_are_the_least_that_give_the_samples(tokens, num_samples, num_epochs):
    assert epochs.count_epochs(tokens, num_samples, rule=RULE, place="p").num_epochs == num_epochs


@pytest.mark.parametrize(("num_samples", "separate"), [(178, False), (177, True), (99, False)])
def test_final_epoch_is_separate_below_the_threshold(num_samples, separate):
    # 1000 tokens: 99 samples come before the second epoch; 80 % of an epoch's 99 is 79.2, cut to 79.
    plan = epochs.count_epochs(1000, num_samples, rule=epochs.SampleRule(sequence_length=10), place="p")
    assert plan.separate_final_epoch == separate
    assert plan.shuffled_together == (99 if separate else plan.num_samples)
    assert plan.num_samples == (99 if num_samples == 99 else 199)


def test_part_without_tokens_is_refused_where_megatron_loops_for_ever():
    with pytest.raises(LimitError, match=r"^web, split test: 5 samples were requested, but the part has no tokens"):
        epochs.count_epochs(0, 5, rule=RULE, place="web, split test")
    with pytest.raises(LimitError, match="loop forever"):
        epochs.count_epochs(0, 0, rule=RULE, place="p")  # the extra token alone
    without_extra = epochs.SampleRule(sequence_length=10, extra_token=False)
    assert epochs.count_epochs(0, 0, rule=without_extra, place="p").num_samples == 0
    assert epochs.count_epochs(0, None, rule=RULE, place="p").num_samples == 0


@pytest.mark.parametrize("length", [1, 2**31 - 1])
def test_sequence_length_that_overflows_or_asserts_in_megatron_is_refused(length):
    with pytest.raises(LimitError, match=f"sequence length {length} is not from 2 to 2147483646"):
        epochs.SampleRule(sequence_length=length)


def test_kept_partial_sample_is_counted_in_float32():
    rule = epochs.SampleRule(sequence_length=2, extra_token=False, keep_partial=True)
    assert epochs.count_samples(7, rule=rule) == 4
    assert epochs.count_samples(2**24 + 3, rule=rule) == 2**23 + 2
    assert epochs.count_samples(2**25 + 1, rule=rule) == 2**24, "exact would be one more"
    with pytest.raises(LimitError, match="Megatron counts 16777216 samples in float32, not the 16777217 that"):
        epochs.count_epochs(2**25 + 2, 2**24 + 1, rule=rule, place="p")


@pytest.mark.parametrize(("num_epochs", "samples"), [("2.5", 249), ("0.001", 0), ("1/3", 33)])
def test_epochs_become_samples(num_epochs, samples):
    assert epochs.samples_for_epochs(Fraction(num_epochs), 1000, rule=RULE) == samples


@pytest.mark.parametrize(("text", "shares"), [
    ("969, 30, 1", (0.969, 0.03, 0.001)), ("1", (1.0, 0.0, 0.0)), ("90/8/2", (0.9, 0.08, 0.02)),
    ("[.5, .25, .25]", (0.5, 0.25, 0.25)),
])  # fmt: skip
def test_split_is_read_in_every_spelling_that_megatron_reads(text, shares):
    assert epochs.parse_split(text) == shares


def test_matrix_is_written_with_an_integer_zero_and_null_for_no_part():
    assert json.dumps(epochs.split_matrix(epochs.parse_split("0,3,1"))) == "[null, [0.0, 0.75], [0.75, 1.0]]"


@pytest.mark.parametrize("text", ["abc", "0,0,0", "1,2,3,4", "-5,5", "1e3,1", "1.2.3,4"])
def test_split_that_megatron_would_misread_is_refused(text):
    with pytest.raises(InputError, match=r"split.*not one to three shares above 0"):
        epochs.parse_split(text)


def slow_blend(weights, size, limits=None):
    taken = [0] * len(weights)
    drawn = []
    for sample in range(size):
        lags = [weight * max(float(sample), 1.0) - float(num) for weight, num in zip(weights, taken, strict=True)]
        lags = [-np.inf if limits and taken[d] >= limits[d] else lag for d, lag in enumerate(lags)]
        dataset = lags.index(max(lags))
        drawn.append((dataset, taken[dataset]))
        taken[dataset] += 1
    return drawn


@settings(max_examples=20)
@given(weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), size=st.integers(0, 300))
def test_weighted_blend_equals_the_slow_reference(weights, size):
    shares = epochs.normalise(weights)
    datasets, samples = blend_by_weights(shares, size)
    assert list(zip(datasets.tolist(), samples.tolist(), strict=True)) == slow_blend(shares, size)
    assert (datasets.dtype, samples.dtype) == (np.int16, np.int64)


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9))
def test_exhaustive_blend_draws_each_sample_once_in_the_slow_references_order(lengths):
    datasets, samples = blend_exhaustively(lengths)
    drawn = list(zip(datasets.tolist(), samples.tolist(), strict=True))
    assert drawn == slow_blend([length / sum(lengths) for length in lengths], sum(lengths), lengths)
    assert sorted(drawn) == [(d, s) for d, length in enumerate(lengths) for s in range(length)]


@pytest.mark.parametrize(("words", "blend"), [
    (["a", "b"], Blend(prefixes=("a", "b"), weights=None)),
    (["1", " a "], Blend(prefixes=("a",), weights=(1.0,))),
    (["0.3", "a", "1e1", "b"], Blend(prefixes=("a", "b"), weights=(0.3, 10.0))),
    (["0.5", "a", "b"], Blend(prefixes=("0.5", "a", "b"), weights=None)),
])  # fmt: skip
def test_data_path_is_read_as_megatron_reads_it(words, blend):
    assert parse_data_path(words) == blend


@pytest.mark.parametrize(("words", "error", "message"), [
    ([], InputError, "--data-path: give at least one prefix"),
    (["1", "a", "b", "c"], InputError, "'b' is not a weight"),
    (["0", "a", "1", "b"], LimitError, r"Megatron refuses the weight 0 of a"),
    (["nan", "a"], LimitError, "Megatron refuses the weight nan of a"),
    (["inf", "a"], LimitError, "Megatron refuses the weight inf of a"),
    (["p"] * 32767, LimitError, "32767 datasets are more than the 32766"),
], ids=["none", "mixed", "zero", "nan", "inf", "too-many"])  # fmt: skip
def test_blend_that_megatron_stops_at_is_refused(words, error, message):
    with pytest.raises(error, match=message):
        parse_data_path(words)


SHARED = CacheSettings(sequence_length=10, split="8,1,1", matrix=epochs.split_matrix(epochs.parse_split("8,1,1")))
PART = PartCounts(begin=0, end=9, tokens=1001)


def plan(blends, sizes, settings=SHARED, counts=None):
    """Return the caches of datasets and of blends; all datasets have the same parts unless counts are given."""
    counts = counts or {prefix: [PART] * 3 for blend in blends if blend is not None for prefix in blend.prefixes}
    return find_needed_caches(blends, [sizes], settings=settings, counts=counts)


def test_dataset_named_twice_is_built_once():
    datasets, [blend] = plan([Blend(prefixes=("a", "b", "a"), weights=(1.0, 2.0, 1.0)), None, None], [40, None, None])
    assert [cache.prefix for cache in datasets] == ["a", "b"]
    assert [part["dataset_path"] for part in blend.identifiers["datasets"]] == ["a", "b", "a"]


def test_more_sequences_than_int32_names_are_refused():
    counts = {"a": [PartCounts(begin=0, end=2**31, tokens=2**40)]}
    with pytest.raises(LimitError, match="a: 2147483648 sequences are more than the 2147483647"):
        plan([Blend(prefixes=("a",), weights=None), None, None], [None, None, None], counts=counts)


RAMP = {"train_samples": 3000, "rampup_batch_size": (2, 2, 999), "eval_interval": 10, "eval_iters": 1}
STEPS = {"train_samples": 3000, "step_batch_size_schedule": "0:4 3000:6 9K:16", "sequence_length": 16}


@pytest.mark.parametrize(("length", "expected"), [
    ({"train_iters": 1000, "eval_interval": 100, "eval_iters": 10}, [(8000, 880, 80)]),
    ({"train_samples": 8007, "eval_interval": 100, "eval_iters": 10}, [(8007, 880, 80)]),
    ({"train_iters": 5, "eval_iters": 0, "full_validation": True}, [(40, None, 0)]),
    ({"train_iters": 100, "eval_interval": 10, "skip_train": True, "eval_iters": 3}, [(800, 24, 24)]),
    ({"train_iters": 100, "eval_interval": 10, "start_eval_at_iter": 35, "eval_iters": 1}, [(800, 64, 8)]),
    ({"train_iters": 100, "eval_interval": 10, "eval_global_batch_size": 3, "eval_iters": 1}, [(800, 33, 3)]),
    ({**RAMP, "release": "0.17"}, [(3000, 448, 8)]),
    ({**RAMP, "release": "0.18"}, [(3000, 304, 8)]),
    ({**STEPS, "eval_interval": 10, "eval_iters": 1}, [(3000, 216, 8)]),
    ({"train_samples": 1000, "eval_interval": 10, "eval_iters": 1, "phase_transition_iterations": (50, 100, 500)},
     [(400, 104, 8), (400, 104, 8), (200, 104, 8)]),
])  # fmt: skip
def test_samples_of_each_phase_follow_megatrons_rule(length, expected):
    assert samples_for_training(TrainingLength(global_batch_size=8, **length)) == expected


@pytest.mark.parametrize(("length", "message"), [
    ({}, "either"),
    ({"train_samples": 1, "rampup_batch_size": (1, 1, 1)}, "needs --megatron-release"),
    ({**RAMP, "release": "0.16", "rampup_batch_size": (8, 1, 9)}, "8 1 9 does not lead to --global-batch-size 8"),
    ({**RAMP, "release": "0.16", "rampup_batch_size": (1, 1, 0)}, "1 1 0 does not lead to"),
    ({**STEPS, "step_batch_size_schedule": "0:4 7"}, "'7' is not a step"),
    ({**STEPS, "step_batch_size_schedule": "5000:4"}, "Megatron stops at"),
    ({**STEPS, "step_batch_size_schedule": "0:4 1:5"}, "Megatron stops at"),
])  # fmt: skip
def test_incomplete_length_or_one_at_which_megatron_stops_is_refused(length, message):
    with pytest.raises(UsageError, match=message):
        samples_for_training(TrainingLength(**{"global_batch_size": 8, "eval_interval": 1, **length}))


GOLDEN_CACHES = golden_caches("GPTDataset") + golden_caches("BlendedDataset")


@pytest.mark.parametrize("path", [cache.description_path for cache in GOLDEN_CACHES], ids=lambda path: path.name[:12])
def test_golden_description_hashes_to_its_own_name(path):
    identifiers = read_description(str(path))
    assert description_text(identifiers).encode() == path.read_bytes()
    files = cache_files(str(path.parent), identifiers)
    assert files.description == str(path)
    assert files.exist()


@pytest.mark.parametrize(("content", "message"), [
    (b"\x93NUMPY", "not JSON"),
    (b'{"class": "GPTDataset"}', "missing required field"),
    (b'{"class": "BlendedDataset", "datasets": [3], "split": "train"}', r"\$.datasets\[0\]"),
    (b'{"class": "GPTDataset", "sequence_length": 0}', r"\$.sequence_length"),
    (b'{"class": "GPTDataset", "sequence_length": 2147483648}', r"\$.sequence_length"),
])  # fmt: skip
def test_file_that_is_no_description_is_refused(content, message, tmp_path):
    path = tmp_path / "description.txt"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=rf"^{path} is not the description of a GPTDataset or Blended.*{message}"):
        read_description(str(path))
