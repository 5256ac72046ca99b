"""What one pass finds is what a slow reference finds, whatever the blocks, the threads and the parts."""

from collections import Counter

import numpy as np
import pytest

from dsindex.tools import report_measures as measuring
from dsindex.tools.inspect_kinds import IndexedStore
from dsindex.tools.report_measures import (
    DOCUMENTS,
    ConsecutiveSources,
    RepeatFinder,
    find_spans,
    group_documents,
    measure,
)
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
        folder=str(folder),
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
    assert (found.documents, found.tokens, found.empty) == (200, sum(lengths), lengths.count(0))
    ids = Counter(token for document in documents for token in document)
    assert {token: num for token, num in enumerate(found.counts.by_id.tolist()) if num} == ids
    last = Counter(document[-1] for document in documents if document)
    assert {token: num for token, num in enumerate(found.counts.last_by_id.tolist()) if num} == last
    assert (found.counts.others, found.counts.other_ids) == (0, None)
    for each in found.lengths:
        own = [length for length in lengths if each.begin <= length < each.end]
        assert (each.documents, each.tokens) == (len(own), sum(own))
    assert sum(each.documents for each in found.lengths) == 200 - lengths.count(0)
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


def test_repeats_are_the_same_in_files(tmp_path):
    documents = [np.array([number % 70, 1], np.uint16) for number in range(500)]
    tokens, ends = np.concatenate(documents), np.arange(2, 1002, 2)
    found = []
    for part_documents in (1 << 20, 60):
        with RepeatFinder(500, folder=str(tmp_path), part_documents=part_documents) as finder:
            for begin in range(0, 500, 100):
                block = tokens[2 * begin : 2 * begin + 200]
                finder.add(group_documents(block, ends[:100], begin))
            found.append(finder.find(3))
    assert found[0] == found[1]
    assert (found[0].num_repeated, found[0].num_extra, found[0].extra_tokens) == (70, 430, 860)
    assert [(each.first, each.copies) for each in found[0].most] == [(0, 8), (1, 8), (2, 8)]
    assert not list(tmp_path.iterdir())


def test_digests_that_share_a_half_are_different(tmp_path):
    found = np.array([(7, 1, 0, 3, 1), (7, 2, 1, 3, 1), (8, 2, 2, 3, 1)], DOCUMENTS)
    with RepeatFinder(4, folder=str(tmp_path)) as finder:
        finder.add(found)
        finder.add(np.array([(7, 2, 3, 3, 2)], DOCUMENTS))
        repeats = finder.find(5)
    assert [(each.first, each.copies) for each in repeats.most] == [(1, 3)]


@pytest.mark.parametrize("dtype", ["<i4", "<i8"])
def test_ids_outside_every_vocabulary_are_counted_together(dtype, tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[5, -1, 5]], [[2**31 - 1, 1 << 20]]], dtype=dtype)
    found = measure(IndexedStore(prefix), ConsecutiveSources([2]), threads=1, folder=str(tmp_path), most=1).counts
    assert (found.others, found.other_ids) == (3, (-1, 2**31 - 1))
    assert found.by_id.tolist() == [0, 0, 0, 0, 0, 2]


def test_dataset_without_documents_has_nothing(tmp_path):
    found = measured(tmp_path, [])
    assert (found.documents, found.tokens, found.lengths, found.longest) == (0, 0, (), ())
    assert found.repeats.most == ()


def test_spans_are_those_of_the_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BLOCK_DOCUMENTS", 4)
    documents = some_documents(3, 30)
    store = IndexedStore(write_dataset(tmp_path / "d", [[document] for document in documents]))
    wanted = [29, 0, 7, 7, 8]
    assert find_spans(store, wanted) == {number: store.document_span(number) for number in wanted}
