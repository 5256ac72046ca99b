"""Documents in a random order: a permutation that needs no table, and a reader that gathers by it."""

from itertools import chain

import numpy as np
import pytest

from dsindex.datasets import IndexedDataset
from dsindex.datasets.documents import ShuffledDocuments, documents_of, permute
from tests.support.datasets import write_dataset


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 1000, 65_537])
def test_permutation_has_each_number_once(count):
    images = permute(np.arange(count), count, seed=7)
    assert np.array_equal(np.sort(images), np.arange(count))
    some = np.array([count - 1, 0, count // 2])
    assert np.array_equal(permute(some, count, seed=7), images[some])
    assert np.array_equal(permute(images, count, seed=7, inverse=True), np.arange(count))


def test_permutations_of_four_are_equally_likely():
    orders = [tuple(permute(np.arange(4), 4, seed).tolist()) for seed in range(2400)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 24
    assert 60 < min(counts) <= max(counts) < 140


def test_numbers_beyond_32_bits_are_permuted():
    count = 3 << 33
    images = permute(np.arange(count - 1000, count), count, seed=1)
    assert len(set(images.tolist())) == 1000
    assert 0 <= images.min() < images.max() < count
    assert abs(images.mean() / count - 0.5) < 0.05


def test_reader_gathers_the_documents_of_all_datasets(tmp_path, monkeypatch):
    monkeypatch.setattr("dsindex.datasets.documents.GATHERED_DOCUMENTS", 7)
    monkeypatch.setattr("dsindex.datasets.documents.PIECE_TOKENS", 10)
    rng = np.random.default_rng(3)
    lengths = [rng.integers(1, 25, rng.integers(0, 3)).tolist() for _ in range(60)]
    documents = [[rng.integers(1, 99, length).tolist() for length in part] for part in lengths]
    parts = []
    for number, part in enumerate((documents[:0], documents[:20], documents[20:21], documents[21:])):
        write_dataset(tmp_path / str(number), part)
        parts.append(documents_of(IndexedDataset(tmp_path / str(number))))
    shuffled = ShuffledDocuments(parts, seed=5)
    token_lists = [[*chain.from_iterable(documents[number])] for number in permute(np.arange(60), 60, seed=5)]
    assert shuffled.lengths(0, shuffled.num_documents).tolist() == list(map(len, token_lists))
    for begin, end in [(0, 60), (0, 0), (13, 37), (59, 60)]:
        pieces = list(shuffled.tokens(begin, end))
        assert all(len(piece) <= 10 for piece in pieces)
        assert [token for piece in pieces for token in piece.tolist()] == [*chain.from_iterable(token_lists[begin:end])]
