"""Sequences and documents of a dataset, alone and in ranges."""

import pickle

import numpy as np
import pytest

from dsindex.datasets import IndexedDataset
from dsindex.errors import FormatError
from dsindex.formats.dtypes import TOKEN_DTYPES
from tests.support.datasets import write_dataset
from tests.support.golden import DATASETS, dataset_name

DOCUMENTS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9]], [[10]]]
SEQUENCES = [sequence for document in DOCUMENTS for sequence in document]


@pytest.fixture
def dataset(tmp_path):
    return IndexedDataset(write_dataset(tmp_path / "d", DOCUMENTS))


@pytest.mark.parametrize("dtype", TOKEN_DTYPES.values(), ids=str)
def test_dataset_has_the_type_and_the_modes_of_its_file(dtype, tmp_path):
    dataset = IndexedDataset(write_dataset(tmp_path / "d", DOCUMENTS, dtype=dtype, modes=[0, 1, 0, -2]))
    assert (dataset[0].dtype, dataset.sequence_modes.tolist()) == (dtype, [0, 1, 0, -2])


def test_sequence_is_the_same_by_any_integer(dataset):
    for index in (2, -2, np.int64(2), np.uint8(2), np.int32(-2)):
        assert dataset[index].tolist() == [8, 9]
        assert dataset.get(index).tolist() == [8, 9]
        assert dataset.take([index])[0].tolist() == [8, 9]


def test_arrays_cannot_be_written_to(dataset):
    for array in (dataset[0], dataset[0:2][1], dataset.get(0, 1), dataset.document(2), dataset.sequence_lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_get_gives_parts_that_exist_and_no_other(dataset):
    assert dataset.get(1, 1, 2).tolist() == [5, 6]
    assert dataset.get(1, 4).tolist() == []
    for offset, length in ((1, 3), (-1, 1), (0, -1), (4, None)):
        with pytest.raises(IndexError, match="sequence 0 has 3 tokens; a part of"):
            dataset.get(0, offset, length)


def test_documents_are_runs_of_sequences(dataset):
    assert [dataset.document(number).tolist() for number in range(4)] == [[1, 2, 3], [], [4, 5, 6, 7, 8, 9], [10]]
    assert dataset.document(-2).tolist() == [4, 5, 6, 7, 8, 9]
    assert list(dataset.document_sequences(np.int64(2))) == [1, 2]
    assert [dataset.document_of(index) for index in range(4)] == [0, 2, 2, 3]
    assert dataset.document_of(-1) == 3
    assert dataset.document_indices.tolist() == [0, 1, 1, 3, 4]


@pytest.mark.parametrize("index", [4, -5, 1 << 70])
def test_index_out_of_range_is_named(dataset, index):
    for read in (dataset.__getitem__, dataset.get, dataset.document_of):
        with pytest.raises(IndexError, match=f"d: there is no sequence {index}; it has 4"):
            read(index)
    with pytest.raises(IndexError, match=f"there is no document {index}; it has 4"):
        dataset.document(index)
    if index < 1 << 63:
        with pytest.raises(IndexError, match=f"there is no sequence {index}; it has 4"):
            dataset.take([0, index])


@pytest.mark.parametrize("documents", [[], [[[]], [[], []]]], ids=["none", "of-empty-sequences"])
def test_bin_of_no_bytes_opens(tmp_path, documents):
    dataset = IndexedDataset(write_dataset(tmp_path / "d", documents))
    assert (dataset.num_tokens, dataset.num_documents) == (0, len(documents))
    assert [dataset.document(number).tolist() for number in range(len(documents))] == [[] for _ in documents]
    values, offsets = dataset.take(range(len(dataset)))
    assert (len(values), offsets.tolist()) == (0, [0] * (len(dataset) + 1))


@pytest.mark.parametrize("prefix", DATASETS, ids=dataset_name)
def test_golden_dataset_reads_the_same_every_way(prefix):
    dataset = IndexedDataset(prefix)
    tokens = np.fromfile(f"{prefix}.bin", dataset.dtype)
    assert np.array_equal(np.concatenate([np.empty(0, dataset.dtype), *dataset]), tokens)
    assert np.array_equal(np.concatenate(dataset[:]), tokens)
    assert np.array_equal(np.concatenate([dataset.document(j) for j in range(dataset.num_documents)]), tokens)
    order = np.random.default_rng(0).permutation(len(dataset))
    values, offsets = dataset.take(order)
    assert np.array_equal(values, np.concatenate([dataset[index] for index in order]))
    assert np.array_equal(np.diff(offsets), dataset.sequence_lengths[order])


@pytest.mark.parametrize(("pointer", "length"), [
    (6, 8), (6, -1), (-2, 1), (-2, 0), ((1 << 63) - 2, 4), (-(1 << 63), 1),
])  # fmt: skip
def test_sequence_outside_the_bin_is_a_format_error(tmp_path, pointer, length):
    """Of four sequences the second lies about where it is; its ends are sound."""
    prefix = write_dataset(tmp_path / "d", DOCUMENTS)
    content = bytearray((tmp_path / "d.idx").read_bytes())
    content[34 + 4 : 34 + 8] = length.to_bytes(4, "little", signed=True)
    content[34 + 16 + 8 : 34 + 16 + 16] = pointer.to_bytes(8, "little", signed=True)
    (tmp_path / "d.idx").write_bytes(content)
    dataset = IndexedDataset(prefix, check=False)
    reads = [("__getitem__", 1), ("__getitem__", -3), ("__getitem__", slice(1, 2))]
    for read, argument in [*reads, *([("get", 1), ("take", [0, 1])] if length >= 0 else [])]:
        with pytest.raises(FormatError, match=r"d\.idx: sequence -?[13] is outside the \.bin"):
            getattr(dataset, read)(argument)
    assert dataset[0].tolist() == [1, 2, 3]


def test_pickle_of_a_relative_path_is_read_in_any_folder(tmp_path, monkeypatch):
    write_dataset(tmp_path / "d", DOCUMENTS)
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(IndexedDataset("d"))
    monkeypatch.chdir(tmp_path.parent)
    assert [sequence.tolist() for sequence in pickle.loads(pickled)] == SEQUENCES  # noqa: S301
