"""Weights as they are written, and the samples that a job draws with them, against Megatron's own order."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.index.arrays import blend_by_weights
from dsindex.index.epochs import normalise
from dsindex.index.needed_caches import CacheSettings, PartCounts
from dsindex.tools.mix import SourceCounts, apportion, find_warnings, find_weight_warnings, mix, write_weights

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


def test_blend_without_weights_draws_every_dataset_once():
    mixture = mix([source("web", 1001), source("books", 101)], None, None, settings=SETTINGS)
    assert [one.num_samples for one in mixture.sources] == [100, 10]
    assert mixture.data_path == ("web", "books")


def test_single_dataset_has_no_weight():
    mixture = mix([source("web", 1001)], ("1",), 150, settings=SETTINGS)
    assert mixture.data_path == ("web",)
    assert mixture.sources[0].index_epochs == 2


def warnings(counts, weights, num_samples):
    mixture = mix(counts, weights, num_samples, settings=SETTINGS)
    typed = [float(weight) for weight in weights]
    return "\n".join([*find_warnings(mixture, counts), *find_weight_warnings(typed, mixture, counts)])


@pytest.mark.parametrize(
    ("counts", "weights", "num_samples", "message"),
    [
        ([source("a", 1000), source("b", 1000)], ("0.5", "0.5"), 100, ""),
        ([source("a", 1000), source("b", 1000)], ("50", "50"), 800, ""),
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
    ],
)
def test_what_is_probably_not_meant_is_told(counts, weights, num_samples, message):
    said = warnings(counts, weights, num_samples)
    assert message in said
    assert bool(said) == bool(message)
