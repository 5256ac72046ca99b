"""What one pass finds is what a slow reference finds, whatever the blocks, the threads and the parts."""

from collections import Counter

import numpy as np
import pytest

from dsindex.tools import report_measures as measuring
from dsindex.tools.inspect_kinds import IndexedStore
from dsindex.tools.report_measures import ConsecutiveSources, measure
from tests.support.datasets import write_dataset

MOST = 5


def some_documents(seed, num):
    """Documents of few different tokens and lengths, many of them equal and some empty."""
    random = np.random.RandomState(seed)
    kinds = [random.randint(0, 9, size).tolist() for size in (0, 1, 1, 2, 3, 5, 40, 41)]
    return [kinds[kind] for kind in random.randint(0, len(kinds), num)]


def measured(folder, documents, sources=None, threads=2):
    prefix = write_dataset(folder / "d", [[document] for document in documents])
    return measure(
        IndexedStore(prefix),
        sources or ConsecutiveSources([len(documents)]),
        threads=threads,
        most=MOST,
    )


@pytest.mark.parametrize(("block_documents", "block_tokens"), [(1 << 16, 1 << 24), (3, 1 << 24), (50, 7)])
@pytest.mark.parametrize("seed", [1, 2])
def test_pass_finds_what_a_slow_reference_finds(seed, block_documents, block_tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BLOCK_DOCUMENTS", block_documents)
    monkeypatch.setattr(measuring, "BLOCK_TOKENS", block_tokens)
    documents = some_documents(seed, 200)
    sizes = [50, 0, 150]
    found = measured(tmp_path, documents, ConsecutiveSources(sizes), threads=1 + seed)

    lengths = [len(document) for document in documents]
    assert (found.documents, found.tokens, found.lengths.empty) == (200, sum(lengths), lengths.count(0))
    ids = Counter(token for document in documents for token in document)
    assert {token: num for token, num in enumerate(found.counts.by_id.tolist()) if num} == ids
    last = Counter(document[-1] for document in documents if document)
    assert {token: num for token, num in enumerate(found.counts.last_by_id.tolist()) if num} == last
    assert (found.counts.others, found.counts.other_ids) == (0, None)
    for each in found.lengths.bins:
        own = [length for length in lengths if each.begin <= length < each.end]
        assert (each.documents, each.tokens) == (len(own), sum(own))
    assert sum(each.documents for each in found.lengths.bins) == 200 - lengths.count(0)
    numbers = [number for number in range(200) if lengths[number]]
    assert list(found.longest) == sorted(numbers, key=lambda number: (-lengths[number], number))[:MOST]
    assert list(found.shortest) == sorted(numbers, key=lambda number: (lengths[number], number))[:MOST]
    assert [(each.documents, each.tokens) for each in found.sources] == [
        (50, sum(lengths[:50])),
        (0, 0),
        (150, sum(lengths[50:])),
    ]

    copies = Counter(tuple(document) for document in documents if document)
    assert found.repeats.num_repeated == sum(num > 1 for num in copies.values())
    assert found.repeats.num_extra == sum(num - 1 for num in copies.values())
    assert found.repeats.extra_tokens == sum((num - 1) * len(document) for document, num in copies.items())
    expected = sorted((-num, -len(document), documents.index(list(document))) for document, num in copies.items())
    assert [(-each.copies, -each.num_tokens, each.first) for each in found.repeats.most] == expected[:MOST]


def test_drawn_documents_depend_on_their_numbers_alone(tmp_path, monkeypatch):
    documents = [[1, 2]] * 300 + [[]] * 5 + [[7]] * 3
    sources = ConsecutiveSources([300, 8])
    whole = measured(tmp_path, documents, sources).sources
    monkeypatch.setattr(measuring, "BLOCK_DOCUMENTS", 7)
    assert measured(tmp_path, documents, sources).sources == whole
    assert [len(each.drawn) for each in whole] == [16, 3]
    assert whole[1].drawn == (305, 306, 307)
    assert max(whole[0].drawn) - min(whole[0].drawn) > 150


def test_repeats_of_a_large_dataset_are_estimated_and_frequent_documents_counted(tmp_path, monkeypatch):
    """15,000 documents occur twice, and one makes up a third of the dataset."""
    documents = [[number // 2 % 10_000, number // 20_000, 3] for number in range(30_000)] + [[7, 7]] * 15_000
    order = np.random.RandomState(1).permutation(len(documents))
    documents = [documents[number] for number in order]
    exact = measured(tmp_path, documents).repeats
    assert (exact.one_of, exact.num_repeated, exact.num_extra) == (1, 15_001, 15_000 + 14_999)
    monkeypatch.setattr(measuring, "MOST_DIGESTS", 6000)
    monkeypatch.setattr(measuring, "RUN_DOCUMENTS", 100)
    found = [measured(tmp_path, documents, threads=threads).repeats for threads in (1, 3)]
    assert found[0] == found[1]
    assert (found[0].one_of, found[0].most[0]) == (8, exact.most[0])
    for name in ("num_repeated", "num_extra", "extra_tokens"):
        assert abs(getattr(found[0], name) / getattr(exact, name) - 1) < 0.05


@pytest.mark.parametrize("dtype", ["<i4", "<i8"])
def test_ids_outside_every_vocabulary_are_counted_together(dtype, tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[5, -1, 5]], [[2**31 - 1, 1 << 20]]], dtype=dtype)
    found = measure(IndexedStore(prefix), ConsecutiveSources([2]), threads=1, most=1).counts
    assert (found.others, found.other_ids) == (3, (-1, 2**31 - 1))
    assert found.by_id.tolist() == [0, 0, 0, 0, 0, 2]


def test_dataset_without_documents_has_nothing(tmp_path):
    found = measured(tmp_path, [])
    assert (found.documents, found.tokens, found.lengths.bins, found.longest) == (0, 0, (), ())
    assert found.repeats.most == ()
