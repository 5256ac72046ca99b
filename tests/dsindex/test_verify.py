"""Verification finds every kind of damage in datasets, caches and packed files, and none in whole ones."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.engine.manifest import RecordedInput
from dsindex.tools import verify_files
from dsindex.tools.kinds import Subject
from dsindex.tools.results import DatasetCounts
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_files import (
    TokenPiece,
    cut_documents,
    cut_tokens,
    verify_ends,
    verify_rows,
    verify_structure,
    verify_tokens,
)
from tests.support.datasets import write_dataset
from tests.support.golden import golden_index_cases
from tests.support.pbin_files import DOCUMENTS, VERSION_NAMES, pbin_bytes, write_pbin

CASES = golden_index_cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_caches_of_megatron_are_whole(case):
    prefixes = [str(case.folder / prefix) for prefix in case.prefixes]
    tasks = [(each, prefix) for prefix in prefixes for each in find_caches(str(case.cache), prefix)]
    assert tasks
    assert [sentence for task in tasks for sentence in verify_cache(*task)] == []


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
    prefix = str(case.folder / case.prefixes[0])
    [cache] = find_caches(str(tmp_path / "cache"), prefix)
    findings = verify_cache(cache, prefix)
    assert message in findings[0]
    assert "move its files away and build the cache again" in findings[0]


@pytest.mark.parametrize("num_bytes", [1, 13, 100])
@pytest.mark.parametrize("name", ["document_index", "sample_index", "shuffle_index"])
def test_bytes_after_an_array_are_found(name, num_bytes, tmp_path):
    case = CASES["own-one_epoch"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob(f"*{name}.npy")
    with path.open("ab") as file:
        file.write(bytes(num_bytes))
    prefix = str(case.folder / case.prefixes[0])
    [cache] = find_caches(str(tmp_path / "cache"), prefix)
    [finding] = verify_cache(cache, prefix)
    assert "of the size in its header; it is damaged" in finding


def test_cache_of_other_lengths_is_found():
    case = CASES["own-one_epoch"]
    prefix = str(case.folder / case.prefixes[0])
    [cache] = find_caches(str(case.cache), prefix)
    assert "of the sample index" in verify_cache(cache, str(case.folder / "noeod_text_document"))[0]


def test_cache_without_a_hash_is_whole(tmp_path):
    case = CASES["own-one_epoch"]
    for path in case.cache.iterdir():
        shutil.copy(path, tmp_path / f"my-data{path.name[32:]}")
    [description] = tmp_path.glob("*-description.txt")
    described = json.loads(description.read_text())
    description.write_text(json.dumps({**described, "tokenizer": None}, indent=4))
    prefix = str(case.folder / case.prefixes[0])
    [cache] = find_caches(str(tmp_path), prefix)
    assert verify_cache(cache, prefix) == []


def test_cache_under_another_name_is_found(tmp_path):
    case = CASES["own-one_epoch"]
    for path in case.cache.iterdir():
        shutil.copy(path, tmp_path / f"{'0' * 32}{path.name[32:]}")
    prefix = str(case.folder / case.prefixes[0])
    [cache] = find_caches(str(tmp_path), prefix)
    assert "its name is not the hash of its content" in verify_cache(cache, prefix)[0]


def test_blend_that_draws_too_much_is_found(tmp_path):
    case = CASES["own-blend"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob("*BlendedDataset*dataset_sample_index.npy")
    array = np.load(path)
    array[7] += 1
    np.save(path, array)
    prefix = str(case.folder / case.prefixes[0])
    caches = find_caches(str(tmp_path / "cache"), prefix)
    findings = [sentence for cache in caches for sentence in verify_cache(cache, prefix)]
    assert len(findings) == 1
    assert "at position 7" in findings[0]


def test_documents_without_eod_are_named(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[1, 0]], [], [[3], [4, 5]], [[0]]])
    packed = write_pbin(tmp_path / "p.pbin", [[1, 0], [], [3, 4, 5], [0]], version="2024-04")
    for subject in (Subject(kind="MMIDIDX", path=prefix), Subject(kind="pbin", path=packed)):
        [piece] = cut_documents(subject, 4, 0)
        [finding] = verify_ends(*piece)
        assert f"{subject.path}: expected document 2 to end with EOD (0), got 5" in finding


def test_first_id_outside_the_vocabulary_is_named(tmp_path):
    path = tmp_path / "d.bin"
    path.write_bytes(np.array([5, 0, 9, 7, 0, 8], "<i4").tobytes() + b"x")
    piece = TokenPiece(path=str(path), begin=0, end=25, tokens=(0, 25), dtype="int32", vocabulary_size=9, eod_id=0)
    result = verify_tokens(piece)
    assert result.num_eod == 2
    assert "expected token ids from 0 to 8, got 9 at byte 8" in result.findings[0]


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_only_tokens_are_taken_for_tokens(version, tmp_path):
    """Header and index hold larger numbers, and their bytes, than the tokens do."""
    path = write_pbin(tmp_path / "a.pbin", [[1, 0], [2, 0], [300, 0]], version=version)
    structure, findings = verify_structure(Subject(kind="pbin", path=path), None)
    assert (structure.version, findings) == (version, [])
    assert structure.counts == DatasetCounts(
        documents=3, empty_documents=0, sequences=3, tokens=6, token_type=structure.counts.token_type
    )
    [[piece]] = cut_tokens(path, None, structure)
    result = verify_tokens(replace(piece, vocabulary_size=301, eod_id=0))
    assert (result.findings, result.num_eod) == ((), 3)
    place = structure.tokens[0] + 4 * 4
    [finding] = verify_tokens(replace(piece, vocabulary_size=300)).findings
    assert f"expected token ids from 0 to 299, got 300 at byte {place}" in finding


INDEX = [(0, 12), (12, 0), (12, 8), (20, 4), (24, 0), (24, 0)]
"""Of DOCUMENTS in tokens of 4 bytes."""
WHOLE = pbin_bytes(DOCUMENTS, version="current")


def with_index(entries):
    return WHOLE[: 12 + 24] + pickle.dumps(entries, protocol=4)


def changed(number, entry):
    return with_index([entry if at == number else kept for at, kept in enumerate(INDEX)])


class Calls:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


DAMAGE = {
    "empty": b"", "header-cut": WHOLE[:11], "token-size": WHOLE[:8] + b"\3" + WHOLE[9:], "tokens-cut": WHOLE[:30],
    "index-gone": WHOLE[:36], "torn-tokens": b"\x17" + WHOLE[1:], "data-size": b"\x14" + WHOLE[1:],
    "tokens-gone": WHOLE[:12] + WHOLE[16:], "index-cut": WHOLE[:-3], "more": WHOLE + b"x",
    "calls": with_index([Calls()]), "triples": with_index([(0, 24, 1)]), "negative": changed(3, (-20, 4)),
    "first-offset": changed(0, (7, 12)), "overlap": changed(3, (19, 4)), "torn": changed(3, (21, 3)),
    "falls": changed(3, (0, 4)), "gap": changed(2, (16, 4)), "outside": changed(5, (24, 4)),
    "huge": changed(2, (12, 2**63 - 8)), "last-gone": with_index(INDEX[:3]), "all-gone": with_index([]),
    "low-by-12": changed(3, (8, 4)),
}  # fmt: skip


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("era", [None, "current"])
def test_damage_of_a_pbin_is_one_sentence(data, era, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pbin").write_bytes(data)
    manifest = SimpleNamespace(content=SimpleNamespace(options=SimpleNamespace(pbin_era=era)))
    structure, [finding] = verify_structure(Subject(kind="pbin", path="a.pbin"), manifest)
    assert structure is None
    assert finding.startswith("a.pbin: ")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pbin"]


def rows_of(tmp_path, columns):
    names = {"input": pa.int32(), "offset": pa.int64(), "line": pa.int64()}
    table = pa.table({name: pa.array(values, names[name]) for name, values in zip(names, columns, strict=True)})
    pq.write_table(table, tmp_path / "p.parquet")
    return str(tmp_path / "p.parquet")


ROWS = {
    "whole": (([0, 0, 1, 1], [0, 9, 0, 6], [1, 2, 1, 2]), None),
    "falls": (([0, 0, 1, 1], [0, 9, 6, 4], [1, 2, 1, 2]), "got input 1, offset 4, line 2 for document 3"),
    "inputs": (([0, 1, 0, 1], [0, 9, 6, 7], [1, 2, 1, 2]), "got input 0, offset 6, line 1 for document 2"),
    "lines": (([0, 0, 1, 1], [0, 9, 0, 6], [1, 1, 1, 2]), "got input 0, offset 9, line 1 for document 1"),
    "negative": (([0, 0, 1, 1], [-1, 9, 0, 6], [1, 2, 1, 2]), "got input 0, offset -1, line 1 for document 0"),
    "input": (([0, 0, 1, 2], [0, 9, 0, 6], [1, 2, 1, 2]), "got input 2, offset 6, line 2 for document 3"),
    "offset": (([0, 0, 1, 1], [0, 9, 0, 60], [1, 2, 1, 2]), "got input 1, offset 60, line 2 for document 3"),
    "early": (([0, 0, 1, 1], [0, 9, 0, 0], [1, 2, 1, 2]), "got input 1, offset 0, line 2 for document 3"),
    "line": (([0, 0, 1, 1], [0, 9, 0, 6], [1, 2, 1, 3]), "got input 1, offset 6, line 3 for document 3"),
    "missing": (([0, 1, 1], [0, 0, 6], [1, 1, 2]), "expected 2 documents from a as in the manifest, got 1"),
    "fewer": (([0, 0], [0, 9], [1, 2]), "expected a row for each of 3 documents, got 2"),
}


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
@pytest.mark.parametrize(("columns", "says"), ROWS.values(), ids=ROWS)
def test_rows_that_cannot_be_are_found(columns, says, rows_at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_files, "ROWS_AT_ONCE", rows_at_once)
    path = rows_of(tmp_path, columns)
    inputs = [RecordedInput(path=name, size_bytes=20, lines=2, kept=2) for name in "ab"]
    findings = verify_rows(path, max(3, len(columns[0])), 0, inputs)
    assert bool(findings) == (says is not None)
    assert says is None or says in findings[0]
