"""Shares of a mixture, and the samples that a job draws with their weights, against Megatron."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.index.arrays import blend_by_weights
from dsindex.index.epochs import normalise
from dsindex.index.needed_caches import CacheSettings, PartCounts
from dsindex.options.mix_amounts import REST, divide, parse_amount, parse_tokens
from dsindex.tools.mix import SourceCounts, apportion, find_warnings, find_weight_warnings, mix, write_weights


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
    ("33.33% 33.33% 33.33%", [9, 9, 9], 900, 900, [300, 300, 300]),
])  # fmt: skip
def test_amounts_divide_the_tokens(text, available, budget, tokens, shares):
    division = divide(amounts(text), available, budget, names="abc"[: len(available)])
    assert division.tokens == tokens
    assert list(division.shares) == [Fraction(share, tokens) for share in shares]


@pytest.mark.parametrize(("text", "budget", "message"), [
    ("60% 60%", None, "at most 100% together, got 120%"),
    ("60% 30%", None, "expected shares of 100% together, got 90%; raise them"),
    ("60% 30%", 1000, r"expected amounts of 1,000 tokens together, got 900 \(90%\)"),
    ("2epochs 100tokens", 250, "a: expected amounts of at most 250 tokens together, got 300, of which 200 of "),
    ("2epochs rest", 200, "b: nothing remains for it, since the others take all 200 tokens"),
    ("100% 1epoch", None, "expected shares below 100% together"),
    ("1epoch 1epoch", 10**6, "leave the budget out if it follows from them"),
])  # fmt: skip
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


SETTINGS = CacheSettings(sequence_length=10)


def source(prefix, tokens, *, documents=1):
    part = PartCounts(begin=0, end=documents, tokens=tokens)
    return SourceCounts(prefix=prefix, num_documents=documents, part=part, empty_splits=(), has_mask=False)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12), st.integers(1, 10**4))
def test_weights_draw_within_a_sample_of_the_shares(parts, num_samples):
    shares = [Fraction(part, sum(parts)) for part in parts]
    weights = normalise([float(text) for text in write_weights(shares, num_samples)])
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


def test_mixture_counts_tokens_and_epochs():
    counts = [source("web", 1001), source("books", 101)]
    mixture = mix(counts, ("0.75", "0.25"), 100, settings=SETTINGS)
    web, books = mixture.sources
    assert (web.num_samples, web.tokens_drawn, web.share) == (75, 750, 0.75)
    assert (books.num_samples, books.tokens_drawn, books.index_epochs) == (25, 250, 3)
    assert books.epochs == pytest.approx(250 / 101)
    assert mixture.first_to_run_out == books
    assert mixture.tokens_until_read_once(books) == 404
    assert mixture.data_path == ("0.75", "web", "0.25", "books")


def warnings(counts, weights, num_samples):
    mixture = mix(counts, weights, num_samples, settings=SETTINGS)
    typed = [float(weight) for weight in weights]
    return "\n".join([*find_warnings(mixture, counts), *find_weight_warnings(typed, mixture, counts)])


@pytest.mark.parametrize(("counts", "weights", "num_samples", "message"), [
    ([source("a", 1000), source("b", 1000)], ("0.5", "0.5"), 100, ""),
    ([source("a", 1000), source("b", 1000)], ("50", "50"), 800, ""),
    ([source("a", 1000, documents=9), source("b", 2000, documents=9)], ("0.5", "0.5"), 80, ""),
    ([source("a", 1000), source("b", 1000)], ("0.1", "0.9"), 500, "b is read 4.5 times"),
    ([source("a", 1000), source("b", 10)], ("0.5", "0.5"), 4, "b has 10 tokens, less than one sample of 11"),
    ([source("a", 1000), source("b", 99)], ("0.99", "0.01"), 10, "b gives no sample: 1% of 10 samples is 0.1"),
    ([source("a", 1000), source("b", 1000)], ("3", "1"), 100, "so 3 for a is 75% of the tokens, or 0.75 epochs"),
    (
        [source("a", 1000, documents=30), source("b", 1000, documents=10)],
        ("0.75", "0.25"),
        100,
        "in proportion to the datasets' numbers of documents",
    ),
])  # fmt: skip
def test_what_is_probably_not_meant_is_told(counts, weights, num_samples, message):
    said = warnings(counts, weights, num_samples)
    assert message in said
    assert bool(said) == bool(message)
