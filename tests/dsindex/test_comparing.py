"""Two datasets are compared in blocks of any size; rules for the edges of documents are told from other differences."""

import numpy as np
import pytest

from dsindex.tools import compare as comparing
from dsindex.tools.compare import Difference, Edges, compare_datasets
from dsindex.tools.inspect_kinds import IndexedStore
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN

BOS, EOD = 900, 901
RNG = np.random.default_rng(5)
TEXTS = [RNG.integers(1, 800, size=size).tolist() for size in (3, 0, 1, 7, 0, 40, 2, *RNG.integers(1, 30, size=60))]


@pytest.fixture(autouse=True, params=[1, 50, 1 << 20])
def _steps(request, monkeypatch):
    monkeypatch.setattr(comparing, "BLOCK_TOKENS", request.param)
    monkeypatch.setattr(comparing, "BLOCK_DOCUMENTS", max(1, request.param // 10))
    monkeypatch.setattr(comparing, "BLOCK_ENDS", max(1, request.param // 10))
    monkeypatch.setattr(comparing, "BLOCK", request.param)


@pytest.fixture
def compare(tmp_path):
    def compare_them(one, other, dtype="<u2"):
        paths = []
        for name, texts, own in (("a", one, "<u2"), ("b", other, dtype)):
            documents = [[text] if len(text) else [] for text in texts]
            paths.append(write_dataset(tmp_path / name, documents, dtype=np.dtype(own)))
        return compare_datasets(*map(IndexedStore, paths))

    return compare_them


def with_eod(text):
    return [*text, EOD] if text else []


@pytest.mark.parametrize(("one", "other", "edges"), [
    (list(map(with_eod, TEXTS)), TEXTS, (Edges(last=EOD, num_empty=2), Edges(num_empty=2))),
    (
        [*map(with_eod, TEXTS)],
        [[*text, EOD] for text in TEXTS],
        (Edges(last=EOD, num_empty=2), Edges(last=EOD, num_edges_only=2)),
    ),
    (
        [*map(with_eod, TEXTS)],
        [with_eod(text) for text in TEXTS if text],
        (Edges(last=EOD, num_empty=2), Edges(last=EOD)),
    ),
    (TEXTS, [[BOS, *text] for text in TEXTS], (Edges(num_empty=2), Edges(first=BOS, num_edges_only=2))),
    ([[BOS, *text, EOD] for text in TEXTS], TEXTS, (Edges(first=BOS, last=EOD, num_edges_only=2), Edges(num_empty=2))),
    (
        [[BOS, *text] for text in TEXTS],
        list(map(with_eod, TEXTS)),
        (Edges(first=BOS, num_edges_only=2), Edges(last=EOD, num_empty=2)),
    ),
], ids=["EOD", "empty texts as EOD", "empty texts left out", "BOS", "both", "one each"])  # fmt: skip
def test_rules_are_told(one, other, edges, compare):
    for first, second, expected in ((one, other, edges), (other, one, edges[::-1])):
        found = compare(first, second)
        assert not found.is_same
        assert found.difference is None
        assert found.edges == expected


@pytest.mark.parametrize("number", [0, 5, len(TEXTS) - 1])
def test_first_difference_is_found_with_and_without_a_rule(number, compare):
    changed = [list(text) for text in TEXTS]
    changed[number][-1] += 1
    found = compare(TEXTS, changed)
    assert found.difference == Difference(documents=(number, number), token=len(TEXTS[number]) - 1)
    found = compare([with_eod(text) for text in changed if text], TEXTS)
    before = sum(not text for text in TEXTS[:number])
    assert found.difference == Difference(documents=(number - before, number), token=len(TEXTS[number]) - 1)
    assert found.edges[0].last == EOD


@pytest.mark.parametrize(("changed", "surplus", "documents"), [
    (TEXTS[1:], 1, (0, 0)),
    (TEXTS[:5] + TEXTS[12:], 7, (5, 5)),
    (TEXTS[:-2], 2, (len(TEXTS) - 2, None)),
    ([*TEXTS[:5], [1, 2, 3, 4], *TEXTS[6:]], 0, (5, 5)),
    (TEXTS[:5] + TEXTS[6:9] + TEXTS[10:], None, (5, 5)),
    ([*TEXTS[:5], [1], *TEXTS[7:]], None, (5, 5)),
    ([*TEXTS[:-2], [*TEXTS[-2], *TEXTS[-1]], []], None, (len(TEXTS) - 2, len(TEXTS) - 2)),
])  # fmt: skip
def test_dropped_documents_are_told_if_they_are_all(changed, surplus, documents, compare):
    found = compare(TEXTS, changed)
    assert found.surplus == surplus
    assert found.difference.documents == documents
    assert compare(changed, TEXTS).surplus == (surplus if surplus is None else -surplus)


def test_boundaries_alone_differ(compare, tmp_path):
    found = compare([[1, 2], [3]], [[1], [2, 3]])
    assert found.same_tokens
    assert not found.same_boundaries
    assert found.difference == Difference(documents=(0, 0), token=1)
    one = write_dataset(tmp_path / "one", [[[1, 2, 3]]])
    other = write_dataset(tmp_path / "other", [[[1], [2, 3]]])
    found = compare_datasets(IndexedStore(one), IndexedStore(other))
    assert (found.same_tokens, found.same_boundaries, found.difference) == (True, False, None)


def test_empty_texts_as_sequences_without_tokens_are_a_rule(tmp_path):
    """preprocess_data_fast.py writes such sequences; preprocess_data.py writes a document without a sequence."""
    one = write_dataset(tmp_path / "one", [[[1, 2]], [], [[3], [4]]])
    other = write_dataset(tmp_path / "other", [[[1, 2]], [[]], [[3], [4]]])
    third = write_dataset(tmp_path / "third", [[[1, 2]], [[]], [[3, 4]]])
    found = compare_datasets(IndexedStore(one), IndexedStore(other))
    assert (found.is_same, found.difference, found.empty_sequences) == (False, None, (0, 1))
    assert compare_datasets(IndexedStore(other), IndexedStore(third)).empty_sequences is None


def test_what_megatron_made_with_and_without_a_rule():
    def compared(one, other):
        return compare_datasets(*(IndexedStore(GOLDEN / f"{name}_text_document") for name in (one, other)))

    assert compared("eod", "keys").is_same
    assert compared("eod", "noeod").edges == (Edges(last=0, num_empty=2), Edges(num_empty=2))
    found = compared("bos", "nobos")
    assert found.difference is None
    assert (found.edges[0].first, found.edges[0].num_edges_only, found.edges[1].num_empty) == (0, 2, 2)
