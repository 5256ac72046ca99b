"""A repair gives back what was there, as far as it is there, and says what is not."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.datasets.indexed import IndexedDataset
from dsindex.errors import FormatError
from dsindex.jobs import rescue_files as by_tokens
from dsindex.jobs.rescue_files import (
    RepairOutputs,
    document_lengths,
    examine_index,
    repair_by_eod,
    repair_by_index,
    repair_by_lengths,
)
from tests.support.datasets import write_dataset

DOCUMENTS = [[[1, 2, 0]], [], [[3], [4, 5, 0]], [[6, 0]], [], [[7, 8, 9, 0]]]
HEADER, SEQUENCES = 34, 5


def target_of(folder, *, index_only=False, **digests):
    return RepairOutputs(prefix=str(folder / "new"), index_only=index_only, digests=digests)


def repaired(prefix, folder, *, one_each=False):
    found = examine_index(prefix)
    return repair_by_index(found, target_of(folder), one_sequence_per_document=one_each)


def documents_of(folder):
    with IndexedDataset(folder / "new") as dataset:
        return [dataset.document(number).tolist() for number in range(len(dataset.document_indices) - 1)]


def flat(documents):
    return [[token for sequence in document for token in sequence] for document in documents]


def test_wrong_pointers_cost_nothing(tmp_path):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS)
    whole = (tmp_path / "d.idx").read_bytes()
    damaged = bytearray(whole)
    damaged[HEADER + 4 * SEQUENCES + 8 : HEADER + 4 * SEQUENCES + 16] = struct.pack("<q", -7)
    (tmp_path / "d.idx").write_bytes(damaged)
    report = repaired(prefix, tmp_path)
    assert report.lost == ()
    assert (tmp_path / "new.idx").read_bytes() == whole
    assert (tmp_path / "new.bin").read_bytes() == (tmp_path / "d.bin").read_bytes()


def test_shorter_bin_keeps_whole_documents(tmp_path):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS)
    tokens = (tmp_path / "d.bin").read_bytes()
    (tmp_path / "d.bin").write_bytes(tokens[: 2 * 8 + 1])  # in the middle of a token of document 3
    report = repaired(prefix, tmp_path)
    assert documents_of(tmp_path) == flat(DOCUMENTS[:3])
    assert "3 of 6 documents, from document 3 on" in report.lost[0]


def test_longer_bin_is_cut_to_what_the_index_says(tmp_path):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS)
    with (tmp_path / "d.bin").open("ab") as file:
        file.write(bytes(10))
    report = repaired(prefix, tmp_path)
    assert documents_of(tmp_path) == flat(DOCUMENTS)
    assert "10 bytes at the end" in report.lost[0]
    with pytest.raises(FormatError, match="leave out --index-only"):
        repair_by_index(
            examine_index(prefix),
            RepairOutputs(prefix=str(tmp_path / "other"), index_only=True, digests={}),
            one_sequence_per_document=False,
        )


@settings(max_examples=60)
@given(idx_cut=st.integers(0, 200), bin_cut=st.integers(0, 30))
def test_whatever_is_cut_off_leading_documents_come_back(idx_cut, bin_cut, tmp_path):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS)
    for suffix, cut in (("idx", idx_cut), ("bin", bin_cut)):
        path = tmp_path / f"d.{suffix}"
        path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - cut)])
    for path in tmp_path.glob("new.*"):
        path.unlink()
    try:
        report = repaired(prefix, tmp_path)
    except FormatError:
        assert idx_cut > 8 * 5 or bin_cut > 0  # fewer than two of seven boundaries are left
        assert not list(tmp_path.glob("new*"))
        return
    kept = documents_of(tmp_path)
    assert kept == flat(DOCUMENTS)[: report.num_documents]
    assert bool(report.lost) == (idx_cut > 0 or bin_cut > 0)


def test_lost_boundaries_do_not_matter_if_each_document_is_one_sequence(tmp_path):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS)
    path = tmp_path / "d.idx"
    path.write_bytes(path.read_bytes()[: HEADER + 4 * SEQUENCES])
    with pytest.raises(FormatError, match="at least one complete document"):
        repaired(prefix, tmp_path)
    report = repaired(prefix, tmp_path, one_each=True)
    assert report.num_documents == SEQUENCES
    assert "every sequence was treated as a document" in report.notes


def test_eod_cuts_documents_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(by_tokens, "CHUNK_BYTES", 4)
    path = tmp_path / "d.bin"
    path.write_bytes(np.array([1, 2, 3, 0, 0, 4, 0, 5], "<u2").tobytes() + b"x")
    lengths = np.concatenate(list(document_lengths(str(path), dtype=np.dtype("<u2"), eod_id=0)))
    assert lengths.tolist() == [4, 1, 2]


def test_repair_by_eod_wants_the_number_that_is_certain(tmp_path):
    path = tmp_path / "d.bin"
    path.write_bytes(np.array([1, 2, 0, 4, 0], "<u2").tobytes())
    with pytest.raises(FormatError, match="expected 3 documents that end with EOD"):
        repair_by_eod(str(path), target_of(tmp_path), dtype=np.dtype("<u2"), eod_id=0, num_documents=3)
    assert not list(tmp_path.glob("new*"))


def test_nothing_is_left_when_the_digest_is_another(tmp_path):
    path = tmp_path / "d.bin"
    path.write_bytes(np.array([1, 0], "<u2").tobytes())
    target = target_of(tmp_path, idx="0" * 32)
    with pytest.raises(FormatError, match=r"new\.idx: expected the digest 0000"):
        repair_by_eod(str(path), target, dtype=np.dtype("<u2"), eod_id=0, num_documents=1)
    assert not list(tmp_path.glob("new*"))


def test_lengths_must_add_up(tmp_path):
    path = tmp_path / "d.bin"
    path.write_bytes(bytes(10))
    batch = (np.array([2, 2], np.int32), np.array([1, 0, 1], np.int32))
    with pytest.raises(FormatError, match="expected 8 bytes"):
        repair_by_lengths(str(path), target_of(tmp_path), dtype=np.dtype("<u2"), batches=[batch])


def test_modes_are_kept(tmp_path):
    prefix = write_dataset(tmp_path / "d", DOCUMENTS, modes=[0, 1, 0, 1, 1])
    (tmp_path / "d.bin").write_bytes((tmp_path / "d.bin").read_bytes()[:-2])
    repaired(prefix, tmp_path)
    with IndexedDataset(tmp_path / "new") as dataset:
        assert dataset.sequence_modes.tolist() == [0, 1, 0, 1]
