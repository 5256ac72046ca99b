"""Shuffled documents: the same order for any cut into shards, runs and buckets, as a slow reference has it."""

import numpy as np
import pytest

from dsindex.datasets.provenance import ShardProvenance, provenance_rows
from dsindex.engine.merge import open_part
from dsindex.engine.shards import shuffle
from dsindex.engine.shards.attempt import Attempt
from dsindex.engine.shards.shuffle import (
    DocumentSource,
    SortSettings,
    choose_run_bytes,
    count_buckets,
    cut_key_range,
    document_keys,
    find_keys,
    plan_groups,
    shuffled_order,
    sort_documents,
)
from dsindex.store.ownership import mark_folder

DTYPE = np.dtype("<u2")
SEED = 17


def make_documents(count, rng):
    """Documents of 0 to 4 sequences, one of them very long."""
    documents = [
        [rng.integers(0, 60_000, rng.integers(1, 9)).tolist() for _ in range(rng.integers(0, 5))] for _ in range(count)
    ]
    if count > 3:
        documents[3] = [rng.integers(0, 60_000, 700).tolist()]
    return documents


def write_shard(work_dir, documents, *, number, first):
    """Write documents of several keys, each record on a line of its own."""
    with Attempt(str(work_dir), folder="shards/0000", name=f"{number:08d}") as attempt:
        stored = []
        for key, own in enumerate(documents):
            part = attempt.open_part(str(key), DTYPE)
            for document in own:
                tokens = np.array([token for sequence in document for token in sequence], DTYPE)
                part.add(tokens, np.array([len(each) for each in document], np.int64), np.array([len(document)]))
            stored.append(part.finish()[0])
        count = len(documents[0])
        rows = attempt.open("prov")
        rows.write(provenance_rows(np.arange(count) * 10, np.arange(count)).data)
        provenance = rows.finish()
        attempt.commit()
    return DocumentSource(
        parts=tuple(open_part(str(work_dir / file.name.removesuffix(".bin"))) for file in stored),
        provenance=ShardProvenance(
            path=str(work_dir / provenance.name), input=number % 3, first_line=first + 1, first_offset=first * 10
        ),
    )


def test_runs_are_as_small_as_asked_for(tmp_path):
    mark_folder(str(tmp_path))
    documents = make_documents(100, np.random.default_rng(5))
    source = write_shard(tmp_path, [documents], number=0, first=0)
    settings = SortSettings(seed=SEED, run_bytes=200, dtype=DTYPE.str, work_dir=str(tmp_path))
    [task] = plan_groups([source], 200)
    runs = sort_documents(task, settings).groups
    sizes = [run.parts[0].bin.size_bytes for run in runs]
    assert len(runs) > 10
    assert max(sizes) == 1400, "the long document is a run of its own"
    assert sorted(sizes)[-2] <= 200


def test_few_documents_are_held_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle, "RUN_DOCUMENTS", 8)
    mark_folder(str(tmp_path))
    source = write_shard(tmp_path, [[[] for _ in range(100)]], number=0, first=0)
    settings = SortSettings(seed=SEED, run_bytes=1 << 20, dtype=DTYPE.str, work_dir=str(tmp_path))
    [task] = plan_groups([source], 1 << 20)
    assert [run.num_documents for run in sort_documents(task, settings).groups] == [8] * 12 + [4]
    assert count_buckets(total_bytes=0, num_documents=100, run_bytes=1 << 20) == 13


def test_keys_are_all_different_and_fill_their_range():
    keys = document_keys(3, 0, 200_000)
    assert len(np.unique(keys)) == 200_000
    counts = [len(range(*find_keys(np.sort(keys), low, high))) for low, high in cut_key_range(10)]
    assert sum(counts) == 200_000
    assert 19_000 < min(counts) <= max(counts) < 21_000


def test_keys_do_not_depend_on_where_they_begin():
    assert document_keys(3, 1000, 50).tolist() == document_keys(3, 0, 1050)[1000:].tolist()


@pytest.mark.parametrize(
    ("seed", "order"), [(0, [6, 0, 1, 3, 4, 5, 7, 2]), (1, [5, 7, 4, 6, 3, 1, 2, 0]), (2**62, [7, 3, 5, 1, 0, 4, 6, 2])]
)
def test_the_order_of_a_seed_never_changes(seed, order):
    """A build that is continued or repeated with another version must have the same order."""
    assert shuffled_order(seed, 8).tolist() == order


def test_borders_and_the_largest_key_are_in_one_range():
    keys = np.array([0, 2**64 - 1], np.uint64)
    assert find_keys(keys, *cut_key_range(3)[-1]) == (1, 2)
    _, (low, high), _ = cut_key_range(3)
    assert find_keys(np.array([low, high], np.uint64), low, high) == (0, 1)  # a border belongs to the later range


def test_runs_grow_only_when_there_are_too_many():
    sizes = [choose_run_bytes(total) for total in (0, 500 << 30, 1 << 40)]
    assert sizes == [64 << 20, 64 << 20, 128 << 20]
