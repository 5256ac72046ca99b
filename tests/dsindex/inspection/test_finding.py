"""Token ids are found wherever they are, whatever the ranges, and never across documents."""

from __future__ import annotations

import numpy as np
import pytest

from dsindex.tools.inspect import Match, find_ids
from dsindex.tools.inspect_kinds import IndexedStore, PackedStore
from tests.support.datasets import write_dataset
from tests.support.pbin_files import write_pbin

DOCUMENTS = [[1, 2, 1, 2, 3], [], [2, 3], [], [], [1], [2, 3, 1], [2, 1, 2]]


def slow_search(documents, patterns):
    found, first = [], 0
    for number, tokens in enumerate(documents):
        for place in range(len(tokens)):
            for owner, ids in enumerate(patterns):
                if tokens[place : place + len(ids)] == ids:
                    found.append(
                        Match(
                            document=number, position=place, num_tokens=len(tokens), token=first + place, pattern=owner
                        )
                    )
        first += len(tokens)
    return found


@pytest.mark.parametrize("range_tokens", [1, 2, 3, 100])
@pytest.mark.parametrize("patterns", [[[1, 2]], [[2, 3], [1]], [[1, 2, 1, 2, 3]], [[9]], [[70_000], [3, 1]], [[-1]]])
@pytest.mark.parametrize("kind", ["indexed", "packed"])
def test_matches_are_those_of_a_slow_search(kind, patterns, range_tokens, tmp_path):
    store: IndexedStore | PackedStore
    if kind == "packed":
        store = PackedStore(write_pbin(tmp_path / "data.pbin", DOCUMENTS, token_bytes=2))
    else:
        store = IndexedStore(write_dataset(tmp_path / "data", [[part] if part else [] for part in DOCUMENTS]))
    expected = slow_search(DOCUMENTS, patterns)
    for limit in (1, 2, 100):
        assert find_ids(store, patterns, limit=limit, threads=3, range_tokens=range_tokens) == expected[:limit]


def test_sequences_of_a_document_are_searched_as_one_text(tmp_path):
    store = IndexedStore(write_dataset(tmp_path / "data", [[[1], [2], []], [[3]]]))
    assert [match.position for match in find_ids(store, [[1, 2]], limit=9, threads=1)] == [0]
    assert find_ids(store, [[2, 3]], limit=9, threads=1) == []


def test_spans_of_both_stores_are_the_documents(tmp_path):
    packed = PackedStore(write_pbin(tmp_path / "data.pbin", DOCUMENTS, version="spec"))
    indexed = IndexedStore(write_dataset(tmp_path / "data", [[part] if part else [] for part in DOCUMENTS]))
    for store in (packed, indexed):
        spans = [store.document_span(number) for number in range(store.num_documents)]
        assert [store.tokens[begin:end].tolist() for begin, end in spans] == DOCUMENTS
        assert np.concatenate(list(store.document_lengths())).tolist() == list(map(len, DOCUMENTS))
        with pytest.raises(IndexError, match="from 0 to 7, got 8"):
            store.document_span(8)
