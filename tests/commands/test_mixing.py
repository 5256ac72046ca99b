"""Shares of a mixture: what amounts and a budget of tokens come to, and which contradict each other."""

from fractions import Fraction

import pytest

from dsindex.commands.mix import divide, parse_amount
from dsindex.errors import InputError
from dsindex.options.numbers import parse_tokens


def amounts(text):
    return [parse_amount(word) for word in text.split()]


@pytest.mark.parametrize(("text", "available", "budget", "tokens", "shares"), [
    ("40% 60%", [100, 100], 1000, 1000, [400, 600]),
    ("40% rest rest", [100, 200, 100], 1000, 1000, [400, 400, 200]),
    ("2epochs 100tokens rest", [100, 900, 50], 1000, 1000, [200, 100, 700]),
    ("1epoch 20%", [800, 10], None, 1000, [800, 200]),
    ("rest 50%", [300, 100], None, 600, [300, 300]),
    ("50% 50%", [300, 100], None, 200, [100, 100]),
    ("30% max2epochs rest", [900, 100, 500], 1500, 1500, [450, 175, 875]),
    ("max10% max1epoch rest", [500, 100, 100], 1000, 1000, [100, 100, 800]),
    ("max0.5epochs 50%", [300, 100], None, 300, [150, 150]),
    ("33.33% 33.33% 33.33%", [9, 9, 9], 900, 900, [300, 300, 300]),
])  # fmt: skip
def test_amounts_divide_the_tokens(text, available, budget, tokens, shares):
    num_tokens, parts = divide(amounts(text), available, budget, names="abc"[: len(available)])
    assert num_tokens == tokens
    assert list(parts) == [Fraction(share, tokens) for share in shares]


@pytest.mark.parametrize(("text", "budget", "message"), [
    ("60% 30%", 1000, "the amounts add up to 900 tokens, 90% of the run"),
    ("2epochs 100tokens", 250, "a: the amounts add up to 300 tokens, more than the 250 of the run; 200 are of this"),
    ("2epochs rest", 200, "b: nothing remains for it, since the others take all 200 tokens"),
    ("100% 1epoch", None, "the shares add up to 100%, and other amounts are in tokens"),
    ("1epoch 1epoch", 10**6, "lower the tokens of the run"),
    ("max1epoch max2epochs", 301, "raise them or their limits"),
])  # fmt: skip
def test_amounts_that_contradict_each_other_are_refused(text, budget, message):
    with pytest.raises(InputError, match=message):
        divide(amounts(text), [100, 100], budget, names="ab")


@pytest.mark.parametrize("text", ["", "x", "-3%", "1e3%", "150%", "0%", "0epochs", "nan%", "3 %%", "10GB", "٣%"])
def test_texts_that_are_no_amount_are_refused(text):
    with pytest.raises(ValueError, match="is not an amount such as 40%"):
        parse_amount(text)


@pytest.mark.parametrize("text", ["0", "0.1", "-5", "lots", "", "10GB", "inf"])
def test_tokens_are_a_positive_number(text):
    with pytest.raises(ValueError, match="is not a positive number of tokens such as 300B"):
        parse_tokens(text)
