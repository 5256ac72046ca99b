"""Shares of a mixture, and the samples that a job draws with their weights, against Megatron."""

from collections import Counter
from fractions import Fraction

import pytest
from dsindex.options.mix_amounts import REST, divide, parse_amount, parse_tokens
from hypothesis import given
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.index.arrays import blend_by_weights
from dsindex.index.epochs import normalise
from dsindex.tools.mix import _write_weights, apportion


def amounts(text):
    return [parse_amount(word) for word in text.split()]


@pytest.mark.parametrize(("text", "available", "budget", "tokens", "shares"), [
    ("40% 60%", [100, 100], 1000, 1000, [400, 600]),
    ("40% rest rest", [100, 200, 100], 1000, 1000, [400, 400, 200]),
    ("2epochs 100tokens rest", [100, 900, 50], 1000, 1000, [200, 100, 700]),
    ("1epoch 20%", [800, 10], None, 1000, [800, 200]),
    ("rest rest", [300, 100], None, 400, [300, 100]),
    ("rest 50%", [300, 100], None, 600, [300, 300]),
    ("50% 50%", [300, 100], None, 200, [100, 100]),
    ("30% max2epochs rest", [900, 100, 500], 1500, 1500, [450, 175, 875]),
    ("30% max1epoch rest", [900, 100, 500], 1500, 1500, [450, 100, 950]),
    ("max10% max1epoch rest", [500, 100, 100], 1000, 1000, [100, 100, 800]),
    ("max2epochs 50%", [300, 100], None, 600, [300, 300]),
    ("max0.5epochs 50%", [300, 100], None, 300, [150, 150]),
    ("33.33% 33.33% 33.33%", [9, 9, 9], 900, 900, [300, 300, 300]),
])  # fmt: skip
def test_amounts_divide_the_tokens(text, available, budget, tokens, shares):
    found, parts = divide(amounts(text), available, budget, names="abc"[: len(available)])
    assert found == tokens
    assert list(parts) == [Fraction(share, tokens) for share in shares]


@pytest.mark.parametrize(("text", "budget", "message"), [
    ("60% 60%", None, "at most 100% together, got 120%"),
    ("60% 30%", None, "expected shares of 100% together, got 90%; raise them"),
    ("60% 30%", 1000, r"expected amounts of 1,000 tokens together, got 900 \(90%\)"),
    ("2epochs 100tokens", 250, "a: expected amounts of at most 250 tokens together, got 300, 200 of them of "),
    ("2epochs rest", 200, "b: nothing remains for it, since the others take all 200 tokens"),
    ("100% 1epoch", None, "expected shares below 100% together"),
    ("1epoch 1epoch", 10**6, "lower the budget"),
    ("max1epoch max2epochs", 301, "raise them or their limits"),
])  # fmt: skip
def test_amounts_that_contradict_each_other_are_refused(text, budget, message):
    with pytest.raises(InputError, match=message):
        divide(amounts(text), [100, 100], budget, names="ab")


@pytest.mark.parametrize("text", ["", "x", "-3%", "1e3%", "150%", "0%", "0epochs", "nan%", "3 %%", "10GB", "٣%"])
def test_texts_that_are_no_amount_are_refused(text):
    with pytest.raises(ValueError, match=r"expected 40%"):
        parse_amount(text)


def test_units_are_read_in_either_case():
    assert parse_amount("1.5b") == parse_amount("1500M") == parse_amount("1_500_000_000 tokens")
    assert parse_amount("REST") == REST
    assert parse_tokens("0.3t") == 3 * 10**11


@pytest.mark.parametrize("text", ["0", "0.1", "-5", "lots", "", "10GB", "inf"])
def test_tokens_are_a_positive_number(text):
    with pytest.raises(ValueError, match="expected a positive number of tokens such as 300B"):
        parse_tokens(text)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12), st.integers(1, 10**4))
def test_weights_draw_within_a_sample_of_the_shares(parts, num_samples):
    shares = [Fraction(part, sum(parts)) for part in parts]
    weights = normalise([float(text) for text in _write_weights(shares, num_samples)])
    for share, weight in zip(shares, weights, strict=True):
        assert abs(num_samples * weight - float(num_samples * share)) <= 1
    assert min(weights) > 0


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.integers(1, 300))
def test_samples_are_those_that_megatron_draws(weights, num_samples):
    shares = normalise(weights)
    drawn = Counter(blend_by_weights(shares, num_samples)[0].tolist())
    counts = apportion([Fraction(share) for share in shares], num_samples)
    assert sum(counts) == num_samples
    assert all(abs(drawn[number] - num) <= len(weights) for number, num in enumerate(counts))
