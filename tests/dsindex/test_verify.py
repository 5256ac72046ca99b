"""Verification finds every kind of damage in datasets, caches and packed files, and none in whole ones."""

import json
import os
import pickle
import shutil
from itertools import chain

import numpy as np
import pytest

from dsindex.formats.pbin import CURRENT_VERSION, PBIN_VERSIONS, PbinHeader, read_pbin_header
from dsindex.tools.verify_caches import CacheTask, find_caches, verify_cache
from dsindex.tools.verify_files import DocumentPiece, DocumentRun, PbinDocuments, read_runs, verify_ends
from dsindex.tools.verify_pbin import PbinEndsPiece, verify_pbin_ends, verify_pbin_header, verify_pbin_index
from dsindex.tools.verify_report import InputFacts, RowPiece, TokenPiece, plan_token_pieces, verify_rows, verify_tokens
from dsindex.tools.verify_source import DocumentSlice, choose_runs, plan_slices
from tests.support.datasets import write_dataset
from tests.support.golden import golden_index_cases
from tests.support.pbin_files import DOCUMENTS, VERSION_NAMES, pbin_bytes, write_pbin

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


INDEX = [(0, 12), (12, 0), (12, 8), (20, 4), (24, 0), (24, 0)]
"""Of DOCUMENTS in tokens of 4 bytes."""
WHOLE = pbin_bytes(DOCUMENTS, version="current")


def findings_of(path, data, *, version_name=None):
    """Write a file and give what is found in its structure."""
    path.write_bytes(data)
    header, findings = verify_pbin_header(str(path), version_name=version_name)
    if header is not None:
        counts, wrong = verify_pbin_index(str(path), header)
        assert (counts is None) == bool(wrong)
        findings += wrong
    return findings


def with_index(entries):
    return WHOLE[: 12 + 24] + pickle.dumps(entries, protocol=4)


def changed(number, entry):
    return with_index([entry if at == number else kept for at, kept in enumerate(INDEX)])


class Calls:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize("token_bytes", [1, 2, 4])
def test_whole_file_of_every_era(version, token_bytes, tmp_path):
    size = 4 if version == "spec" else token_bytes
    path = write_pbin(tmp_path / "a.pbin", DOCUMENTS, version=version, token_bytes=size)
    header, findings = verify_pbin_header(path, version_name=version)
    assert (header.version.name, findings) == (version, [])
    counts, findings = verify_pbin_index(path, header)
    assert findings == []
    assert (counts.num_documents, counts.num_empty_documents, counts.num_tokens) == (6, 3, 6)
    assert counts.token_dtype == {1: "uint8", 2: "uint16", 4: "uint32"}[size]


DAMAGE = [
    ("empty", b"", "expected the header of a .pbin, 8 bytes with the size of all tokens and 4 with that of one"),
    ("header-cut", WHOLE[:11], "expected the header of a .pbin"),
    ("token-size", WHOLE[:8] + b"\3" + WHOLE[9:], "got 180000000000000003000000"),
    ("tokens-cut", WHOLE[:30], "expected tokens up to byte 36, as its header says, and an index, got a file of 30"),
    ("index-gone", WHOLE[:36], "expected tokens up to byte 36, as its header says, and an index, got a file of 36"),
    ("torn-tokens", b"\x17" + WHOLE[1:], "expected whole tokens of 4 bytes, got 23 bytes in its header"),
    ("data-size", b"\x14" + WHOLE[1:], "expected its index at byte 32, where its header says that the tokens end"),
    ("tokens-gone", WHOLE[:12] + WHOLE[16:], "expected its index at byte 36"),
    ("index-cut", WHOLE[:-3], "got one that is cut off"),
    ("more", WHOLE + b"x", "or of something else; it was not unpickled"),
    ("calls", with_index([Calls()]), "it was not unpickled"),
    ("triples", with_index([(0, 24, 1)]), "it was not unpickled"),
    ("negative", changed(3, (-20, 4)), "expected offsets and lengths of at least 0, got -20"),
    ("first-offset", changed(0, (7, 12)), "expected its first document at offset 0, or that of its first token"),
    (
        "overlap",
        changed(3, (19, 4)),
        "expected document 3 at offset 20, where document 2 ends, got 19: the two overlap",
    ),
    ("torn", changed(3, (21, 3)), "expected document 3 to be whole tokens of 4 bytes, got 3 bytes"),
    ("falls", changed(3, (0, 4)), "document 3 at offset 20, where document 2 ends, got 0: the two overlap"),
    ("gap", changed(2, (16, 4)), "got 16: the bytes between belong to no document"),
    ("outside", changed(5, (24, 4)), "document 5 within the tokens, from offset 0 to 24, got 4 bytes at offset 24"),
    ("huge", changed(2, (12, 2**63 - 8)), "within the tokens, from offset 0 to 24, got 9223372036854775800 bytes"),
    (
        "last-gone",
        with_index(INDEX[:3]),
        "expected the last document to end at offset 24, where the tokens end, got 20",
    ),
    ("all-gone", with_index([]), "expected the last document to end at offset 24, where the tokens end, got 0"),
    ("low-by-8", with_index([*INDEX[:2], (4, 8), (12, 4), (16, 0), (16, 0)]), "ends, got 4: the two overlap"),
    ("low-by-12-and-less", with_index([*INDEX[:2], (0, 8)]), "ends, got 0: the two overlap"),
    ("low-once", changed(3, (8, 4)), "document 3 at offset 20, where document 2 ends, got 8: the two overlap"),
]


@pytest.mark.parametrize(("data", "sentence"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_damage_is_named(data, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    findings = findings_of(tmp_path / "a.pbin", data)
    assert sentence in findings[0]
    assert findings[0].startswith(f"{tmp_path}/a.pbin: ")
    assert findings[0].endswith("restore the file, or pack it again")
    assert len(findings) <= 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.pbin"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(WHOLE[:-3], "got one that is cut off"), (changed(0, (7, 12)), "document 0 at offset 0, where the tokens begin")],
)
def test_header_is_whole_where_only_the_index_is_damaged(data, sentence, tmp_path):
    """The manifest says the version, so that tokens can be looked at."""
    path = tmp_path / "a.pbin"
    path.write_bytes(data)
    header, findings = verify_pbin_header(str(path), version_name="current")
    assert (findings, header) == ([], PbinHeader(version=CURRENT_VERSION, token_bytes=4, data_bytes=24))
    assert header is not None
    counts, findings = verify_pbin_index(str(path), header)
    assert counts is None
    assert sentence in findings[0]


def test_other_era_than_the_manifest_says(tmp_path):
    [finding] = findings_of(tmp_path / "a.pbin", WHOLE, version_name="spec")
    assert "expected a .pbin of version spec as in the manifest, got version current" in finding
    nothing = pbin_bytes([], version="2024-04")  # the same bytes in two versions
    assert findings_of(tmp_path / "a.pbin", nothing, version_name="2024-04") == []
    header, _ = verify_pbin_header(str(tmp_path / "a.pbin"), version_name="2024-04")
    assert header.version is PBIN_VERSIONS["2024-04"]


@pytest.mark.parametrize(
    "bounds", [[(0, 6)], [(0, 2), (2, 5), (5, 6)], [(1, 1), (1, 3), (4, 5)], [(3, 9), (9, 12)], [(8, 9)]]
)
def test_runs_are_the_documents_of_the_index(bounds, tmp_path):
    path = write_pbin(tmp_path / "a.pbin", DOCUMENTS, version="2024-01-30")
    header = read_pbin_header(path)
    runs = list(read_runs(path, header, bounds))
    assert [run.first_document for run in runs] == [begin for begin, _ in bounds]
    for run, (begin, end) in zip(runs, bounds, strict=True):
        stored = PbinDocuments(path, header, run)
        wanted = DOCUMENTS[begin:end]
        documents = stored.read(begin, len(wanted))
        assert documents.sequence_lengths.tolist() == [len(document) for document in wanted]
        assert documents.tokens.tolist() == list(chain.from_iterable(wanted))
        assert stored.end == begin + len(wanted)


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_documents_without_eod_are_named(version, tmp_path):
    path = write_pbin(tmp_path / "a.pbin", [[1, 9], [], [9], [9, 1], [2]], version=version)
    run = DocumentRun(first_document=2, first_token=2, num_tokens=4, lengths=np.array([1, 2, 1]))
    piece = PbinEndsPiece(path=path, header=read_pbin_header(path), run=run, eod_id=9)
    findings = verify_pbin_ends(piece)
    assert len(findings) == 2
    assert "expected document 3 to end with EOD (9), got 1" in findings[0]
    assert "expected document 4 to end with EOD (9), got 2" in findings[1]


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_only_tokens_are_taken_for_tokens(version, tmp_path):
    """Header and index hold larger numbers, and their bytes, than the tokens do."""
    path = write_pbin(tmp_path / "a.pbin", [[1, 0], [2, 0], [300, 0]], version=version)
    header = read_pbin_header(path)
    options = {"token_bytes": (header.version.header_bytes, header.index_offset), "dtype": header.dtype.str}
    [piece] = plan_token_pieces(path, os.path.getsize(path), vocabulary_size=301, eod_id=0, **options)
    result = verify_tokens(piece)
    assert (result.findings, result.num_eod) == ((), 3)
    [piece] = plan_token_pieces(path, os.path.getsize(path), vocabulary_size=300, eod_id=None, **options)
    place = header.version.header_bytes + 4 * 4
    assert f"expected token ids from 0 to 299, got 300 at byte {place}" in verify_tokens(piece).findings[0]
