"""Verification finds every kind of damage, and none in what Megatron wrote."""

import json
import shutil

import numpy as np
import pytest

from dsindex.tools.verify_caches import CacheTask, find_caches, verify_cache
from dsindex.tools.verify_files import DocumentPiece, verify_ends, verify_index
from dsindex.tools.verify_report import InputFacts, RowPiece, TokenPiece, verify_rows, verify_tokens
from dsindex.tools.verify_source import DocumentSlice, choose_runs, plan_slices
from tests.support.datasets import write_dataset
from tests.support.golden import golden_index_cases

CASES = golden_index_cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_caches_of_megatron_are_whole(case):
    tasks = [task for prefix in case.prefixes for task in find_caches(str(case.cache), str(case.folder / prefix))]
    assert tasks
    assert [sentence for task in tasks for sentence in verify_cache(task)] == []


def swap_ends(array):
    array[0], array[-1] = array[-1].copy(), array[0].copy()


def repeat_first(array):
    array[-1] = array[0]


def point_outside(array):
    array[1] = 10**6


def move_token(array):
    array[5, 1] += 1


def move_last_row(array):
    array[-1, 1] -= 1


CACHE_DAMAGE = [
    ("document-twice", "document_index", repeat_first, "every sequence once per epoch"),
    ("document-outside", "document_index", point_outside, "expected sequences from 0 to 99 in the document index"),
    ("documents-swapped", "document_index", swap_ends, "of the sample index"),
    ("sample-moved", "sample_index", move_token, "expected row 5 of the sample index at token 320, got 321"),
    ("last-row-moved", "sample_index", move_last_row, "of the sample index at token"),
    ("row-outside", "sample_index", point_outside, "of the sample index"),
    ("shuffle-twice", "shuffle_index", repeat_first, "expected every sample once in the shuffle index"),
    ("shuffle-outside", "shuffle_index", point_outside, "expected samples below 318 in the shuffle index"),
]


@pytest.mark.parametrize(
    ("name", "damage", "message"), [case[1:] for case in CACHE_DAMAGE], ids=[case[0] for case in CACHE_DAMAGE]
)
def test_damaged_cache_is_found(name, damage, message, tmp_path):
    case = CASES["own-one_epoch"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob(f"*{name}.npy")
    array = np.load(path)
    damage(array)
    np.save(path, array)
    [task] = find_caches(str(tmp_path / "cache"), str(case.folder / case.prefixes[0]))
    findings = verify_cache(task)
    assert message in findings[0]
    assert "move its files away and build the cache again" in findings[0]


@pytest.mark.parametrize("num_bytes", [1, 13, 100])
@pytest.mark.parametrize("name", ["document_index", "sample_index", "shuffle_index"])
def test_bytes_after_an_array_are_found(name, num_bytes, tmp_path):
    case = CASES["own-one_epoch"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob(f"*{name}.npy")
    size_bytes = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(num_bytes))
    [task] = find_caches(str(tmp_path / "cache"), str(case.folder / case.prefixes[0]))
    [finding] = verify_cache(task)
    assert f"of {size_bytes} bytes, as its header says, got {size_bytes + num_bytes}" in finding


def test_cache_of_other_lengths_is_found():
    case = CASES["own-one_epoch"]
    [task] = find_caches(str(case.cache), str(case.folder / case.prefixes[0]))
    other = CacheTask(description=task.description, prefix=str(case.folder / "noeod_text_document"))
    assert "of the sample index" in verify_cache(other)[0]


def test_cache_without_a_hash_is_whole(tmp_path):
    case = CASES["own-one_epoch"]
    for path in case.cache.iterdir():
        shutil.copy(path, tmp_path / f"my-data{path.name[32:]}")
    [description] = tmp_path.glob("*-description.txt")
    described = json.loads(description.read_text())
    description.write_text(json.dumps({**described, "tokenizer": None}, indent=4))
    [task] = find_caches(str(tmp_path), str(case.folder / case.prefixes[0]))
    assert verify_cache(task) == []


def test_cache_under_another_name_is_found(tmp_path):
    case = CASES["own-one_epoch"]
    for path in case.cache.iterdir():
        shutil.copy(path, tmp_path / f"{'0' * 32}{path.name[32:]}")
    [task] = find_caches(str(tmp_path), str(case.folder / case.prefixes[0]))
    assert "its name is not the hash of its content" in verify_cache(task)[0]


def test_blend_that_draws_too_much_is_found(tmp_path):
    case = CASES["own-blend"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob("*BlendedDataset*dataset_sample_index.npy")
    array = np.load(path)
    array[7] += 1
    np.save(path, array)
    findings = [
        sentence
        for task in find_caches(str(tmp_path / "cache"), str(case.folder / case.prefixes[0]))
        for sentence in verify_cache(task)
    ]
    assert len(findings) == 1
    assert "at position 7" in findings[0]


def test_verify_index_counts_documents_and_names_damage(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[1, 2]], [], [[3], [4, 5]]])
    counts, findings = verify_index(prefix)
    assert findings == []
    assert (counts.num_documents, counts.num_empty_documents, counts.num_sequences, counts.num_tokens) == (3, 1, 3, 5)
    (tmp_path / "d.bin").write_bytes(b"1234")
    counts, findings = verify_index(prefix)
    assert counts is None
    assert "expected a .bin of 10 bytes, got 4" in findings[0]
    assert f"dsindex repair {prefix}" in findings[0]


def test_verify_ends_names_documents_without_eod(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[1, 0]], [], [[3], [4, 5]], [[0], []]])
    findings = verify_ends(DocumentPiece(prefix=prefix, begin=0, end=4, eod_id=0))
    assert len(findings) == 2
    assert "document 2 to end with EOD (0), got 5" in findings[0]
    assert "document 3 to end with EOD (0), got no token" in findings[1]


def test_verify_ends_of_dataset_without_tokens(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[]], []])
    [finding] = verify_ends(DocumentPiece(prefix=prefix, begin=0, end=2, eod_id=0))
    assert "document 0" in finding


def test_verify_tokens_names_first_id_outside_vocabulary(tmp_path):
    path = tmp_path / "d.bin"
    path.write_bytes(np.array([5, 0, 9, 7, 0, 8], "<i4").tobytes() + b"x")
    piece = TokenPiece(
        path=str(path), begin=0, end=25, tokens_begin=0, tokens_end=25, dtype="int32", vocabulary_size=9, eod_id=0
    )
    result = verify_tokens(piece)
    assert result.num_eod == 2
    assert "expected token ids from 0 to 8, got 9 at byte 8" in result.findings[0]


def test_verify_rows_compares_neighbours_of_pieces(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = str(tmp_path / "p.parquet")
    table = pa.table(
        {
            "input": pa.array([0, 0, 1, 1], pa.int32()),
            "offset": pa.array([0, 9, 6, 4], pa.int64()),
            "line": pa.array([1, 2, 1, 2], pa.int64()),
        }
    )
    pq.write_table(table, path)
    inputs = [InputFacts(size_bytes=20, lines=2, kept=2), InputFacts(size_bytes=20, lines=2, kept=2)]
    assert verify_rows(RowPiece(path=path, begin=0, end=3), inputs).findings == ()
    result = verify_rows(RowPiece(path=path, begin=3, end=4), inputs)
    assert "got input 1, offset 4, line 2 for document 3" in result.findings[0]
    outside = verify_rows(RowPiece(path=path, begin=0, end=3), inputs[:1])
    assert "expected inputs from 0 to 0" in outside.findings[0]


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_sample_is_the_same_every_time_and_of_the_size_wanted(share):
    for piece in plan_slices(200_000, share):
        runs = choose_runs(piece)
        assert runs == choose_runs(piece)
        assert all(piece.begin <= begin < end <= piece.end for begin, end in runs)
        taken = sum(end - begin for begin, end in runs)
        assert taken == pytest.approx(share * (piece.end - piece.begin), rel=0.05, abs=16)


def test_sample_is_never_empty():
    assert choose_runs(DocumentSlice(begin=0, end=3, share=0.001)) == [(0, 3)]
