from fractions import Fraction

import pytest

from dsindex.errors import LimitError
from dsindex.index.epochs import SampleRule, count_epochs, count_samples, samples_for_epochs

RULE = SampleRule(sequence_length=10)


@pytest.mark.parametrize(
    ("tokens", "num_samples", "epochs"),
    [(101, 10, 1), (100, 10, 2), (100, 0, 1), (1, 0, 1), (1, 1, 11), (1000, None, 1)],
    ids=["just-enough", "one-token-short", "nothing-wanted", "one-token", "eleven-times-one-token", "one-epoch"],
)
def test_epochs_are_the_least_that_give_the_samples(tokens, num_samples, epochs):
    assert count_epochs(tokens, num_samples, rule=RULE, place="p").num_epochs == epochs


@pytest.mark.parametrize(
    ("num_samples", "threshold", "separate"),
    [
        (178, 0.80, False),
        (177, 0.80, True),
        (177, 0.75, False),
        (193, 0.95, False),
        (192, 0.95, True),
        (99, 0.95, False),
    ],
)
def test_final_epoch_is_separate_below_the_threshold(num_samples, threshold, separate):
    # 1000 tokens: 99 samples come before the second epoch; 80 % of an epoch's 99 is 79.2, cut to 79; 95 % is 94.
    rule = SampleRule(sequence_length=10, threshold=threshold)
    plan = count_epochs(1000, num_samples, rule=rule, place="p")
    assert plan.separate_final_epoch == separate
    assert plan.shuffled_together == (99 if separate else plan.num_samples)
    assert plan.num_samples == (99 if num_samples == 99 else 199)


def test_part_without_tokens_is_refused_where_megatron_loops_for_ever():
    with pytest.raises(
        LimitError, match=r"^web, split test: 5 samples were requested, but the part has no tokens \(Meg"
    ):
        count_epochs(0, 5, rule=RULE, place="web, split test")
    with pytest.raises(LimitError, match="loop forever"):
        count_epochs(0, 0, rule=RULE, place="p")  # the extra token alone
    assert count_epochs(0, 0, rule=SampleRule(sequence_length=10, extra_token=False), place="p").num_samples == 0
    assert count_epochs(0, None, rule=RULE, place="p").num_samples == 0


def test_too_many_epochs_are_refused():
    with pytest.raises(LimitError, match="take 3000000001 epochs of 10 tokens, more than the 2147483647"):
        count_epochs(10, 3_000_000_000, rule=RULE, place="p")
    with pytest.raises(LimitError, match="at least 0, got -1"):
        count_epochs(10, -1, rule=RULE, place="p")


@pytest.mark.parametrize("length", [1, 0, -5, 2**31 - 1])
def test_sequence_length_that_overflows_or_asserts_in_megatron_is_refused(length):
    with pytest.raises(LimitError, match=f"sequence length from 2 to 2147483646, got {length}"):
        SampleRule(sequence_length=length)


def test_kept_partial_sample_is_counted_in_float32():
    rule = SampleRule(sequence_length=2, extra_token=False, keep_partial=True)
    assert count_samples(7, rule=rule) == 4
    assert count_samples(2**24 + 3, rule=rule) == 2**23 + 2
    assert count_samples(2**25 + 1, rule=rule) == 2**24, "exact would be one more"
    with pytest.raises(LimitError, match="expected 16777217 samples, got 16777216, as Megatron counts them in float32"):
        count_epochs(2**25 + 2, 2**24 + 1, rule=rule, place="p")


@pytest.mark.parametrize(("epochs", "samples"), [("1", 99), ("2.5", 249), ("0.5", 49), ("0.001", 0), ("1/3", 33)])
def test_epochs_become_samples(epochs, samples):
    assert samples_for_epochs(Fraction(epochs), 1000, rule=RULE) == samples
