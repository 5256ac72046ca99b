"""One pass over a dataset against a slow reference."""

from collections import Counter

import numpy as np
import pytest

from dsindex.commands import report_measures as measuring
from dsindex.commands.report_measures import MOST_NAMED, Sources, measure
from dsindex.datasets.detect import DetectedDataset
from dsindex.datasets.documents import open_documents
from tests.support.datasets import write_dataset


@pytest.mark.parametrize("block_tokens", [1 << 24, 50, 7])
@pytest.mark.parametrize("seed", [1, 2])
def test_pass_finds_what_a_slow_reference_finds(seed, block_tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BLOCK_TOKENS", block_tokens)
    random = np.random.RandomState(seed)
    kinds = [random.randint(0, 9, size).tolist() for size in (0, 1, 1, 2, 3, 5, 40, 41)]
    documents = [kinds[kind] for kind in random.randint(0, len(kinds), 200)]
    lengths = [len(document) for document in documents]
    masks = np.arange(sum(lengths)) % 3 == 0
    prefix = write_dataset(tmp_path / "d", [[document] for document in documents])
    sources = Sources(names=["0", "1", "2"], num_documents=[50, 0, 150])
    whole = open_documents(DetectedDataset(kind="MMIDIDX", path=prefix))
    found = measure(whole, sources, threads=1 + seed, masks=masks)
    assert (found.documents, found.tokens, found.lengths.empty) == (200, sum(lengths), lengths.count(0))
    ids = Counter(token for document in documents for token in document)
    assert {token: num for token, num in enumerate(found.counts.tolist()) if num} == ids
    last = Counter(document[-1] for document in documents if document)
    assert {token: num for token, num in enumerate(found.last_counts.tolist()) if num} == last
    numbers = [number for number in range(200) if lengths[number]]
    assert list(found.longest) == sorted(numbers, key=lambda number: (-lengths[number], number))[:MOST_NAMED]
    assert list(found.shortest) == sorted(numbers, key=lambda number: (lengths[number], number))[:MOST_NAMED]
    head, tail = sum(lengths[:50]), sum(lengths[50:])
    first, last = [50, head, int(masks[:head].sum())], [150, tail, int(masks[head:].sum())]
    assert found.by_source.tolist() == [first, [0, 0, 0], last]
    copies = Counter(tuple(document) for document in documents if document)
    assert found.repetitions == sum(num - 1 for num in copies.values())
    expected = sorted((-num, -len(document), documents.index(list(document))) for document, num in copies.items())
    most = [(first, -num) for num, _, first in expected[:MOST_NAMED]]
    assert list(found.repeated) == most
