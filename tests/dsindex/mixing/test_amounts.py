"""How shares, epochs, tokens and the rest of a budget become shares of the tokens that are drawn."""

from fractions import Fraction

import pytest

from dsindex.errors import InputError
from dsindex.options.mix_amounts import REST, divide, parse_amount, parse_tokens


def amounts(text):
    return [parse_amount(word) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "available", "budget", "tokens", "shares"),
    [
        ("40% 60%", [100, 100], 1000, 1000, [400, 600]),
        ("40% rest rest", [100, 200, 100], 1000, 1000, [400, 400, 200]),
        ("2epochs 100tokens rest", [100, 900, 50], 1000, 1000, [200, 100, 700]),
        ("1epoch 20%", [800, 10], None, 1000, [800, 200]),
        ("rest rest", [300, 100], None, 400, [300, 100]),
        ("rest 50%", [300, 100], None, 600, [300, 300]),
        ("50% 50%", [300, 100], None, 200, [100, 100]),
        ("33.33% 33.33% 33.33%", [9, 9, 9], 900, 900, [300, 300, 300]),
    ],
)
def test_amounts_divide_the_tokens(text, available, budget, tokens, shares):
    division = divide(amounts(text), available, budget, names="abc"[: len(available)])
    assert division.tokens == tokens
    assert list(division.shares) == [Fraction(share, tokens) for share in shares]


@pytest.mark.parametrize(
    ("text", "budget", "message"),
    [
        ("60% 60%", None, "at most 100% together, got 120%"),
        ("60% 30%", None, "expected shares of 100% together, got 90%; raise them"),
        ("60% 30%", 1000, r"expected amounts of 1,000 tokens together, got 900 \(90%\)"),
        ("2epochs 100tokens", 250, "at most 250 tokens together, got 300"),
        ("2epochs rest", 200, "b: nothing remains for it, since the others take all 200 tokens"),
        ("100% 1epoch", None, "expected shares below 100% together"),
        ("1epoch 1epoch", 10**6, "leave the budget out if it follows from them"),
    ],
)
def test_amounts_that_contradict_each_other_are_refused(text, budget, message):
    with pytest.raises(InputError, match=message):
        divide(amounts(text), [100, 100], budget, names="ab")


@pytest.mark.parametrize("text", ["", "x", "-3%", "1e3%", "150%", "0%", "0epochs", "nan%", "3 %%", "10GB", "٣%"])
def test_texts_that_are_no_amount_are_refused(text):
    with pytest.raises(ValueError, match=r"expected (40%|more than nothing|a share of at most)"):
        parse_amount(text)


def test_number_without_a_unit_is_told_the_units():
    with pytest.raises(ValueError, match="write 3%, 3epochs or 3tokens"):
        parse_amount("3")


def test_units_are_read_in_either_case():
    assert parse_amount("1.5b") == parse_amount("1500M") == parse_amount("1_500_000_000 tokens")
    assert parse_amount("REST") == REST
    assert parse_tokens("0.3t") == 3 * 10**11


@pytest.mark.parametrize("text", ["0", "0.1", "-5", "lots", "", "10GB", "inf"])
def test_tokens_are_a_positive_number(text):
    with pytest.raises(ValueError, match="expected a positive number of tokens such as 300B"):
        parse_tokens(text)
