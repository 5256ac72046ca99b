"""Samples by the description of a cache, and in other processes."""

import hashlib
import json
import multiprocessing
import pickle

import numpy as np
import pytest

from dsindex.datasets import GPTDataset, SampleOptions
from dsindex.errors import FormatError
from tests.dsindex.datasets.gpt_samples import DOCUMENT_INDEX, EOD, small

DESCRIPTION = {
    "class": "GPTDataset",
    "dataset_path": "d",
    "index_split": "train",
    "random_seed": 1,
    "sequence_length": 4,
    "tokenizer": {},
}


def cache_of(folder, description):
    small(folder)
    text = json.dumps(description, indent=4)
    base = f"{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}-GPTDataset-train"
    (folder / f"{base}-description.txt").write_text(text)
    np.save(folder / f"{base}-document_index.npy", DOCUMENT_INDEX)
    np.save(folder / f"{base}-sample_index.npy", np.array([[0, 0], [1, 0], [3, 1], [4, 2]], np.int32))
    np.save(folder / f"{base}-shuffle_index.npy", np.array([2, 0, 1], np.uint32))
    return folder / f"{base}-description.txt"


def test_cache_opens_by_its_description(tmp_path, monkeypatch):
    path = cache_of(tmp_path, DESCRIPTION)
    monkeypatch.chdir(tmp_path)
    assert GPTDataset.open_cache(path).tokens(1).tolist() == [4, 5, 6, 9, 1]
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(FormatError, match=r"d\.idx: cannot be read"):
        GPTDataset.open_cache(path)
    dataset = GPTDataset.open_cache(path, prefix=tmp_path / "d")
    assert dataset.tokens(1).tolist() == [4, 5, 6, 9, 1]
    assert isinstance(dataset.document_index.base, np.memmap)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class": "BERTDataset"}, "expected the description of a GPTDataset"),
        ({"sequence_length": "4"}, "expected `sequence_length` to be an integer of at least 1, got '4'"),
        ({"dataset_path": 1}, "with its dataset_path and sequence_length, got a GPTDataset with 1 and 4"),
        ({"class": "BlendedDataset", "split": "train", "datasets": [DESCRIPTION]}, "got a BlendedDataset with"),
    ],
    ids=["class", "length", "path", "blend"],
)
def test_other_descriptions_are_refused(tmp_path, changes, message):
    with pytest.raises(FormatError, match=message):
        GPTDataset.open_cache(cache_of(tmp_path, {**DESCRIPTION, **changes}))


def read_all(dataset):
    return [sample["tokens"].tolist() for sample in dataset]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_read_the_same(tmp_path, method):
    path = cache_of(tmp_path, DESCRIPTION)
    dataset = GPTDataset.open_cache(path, prefix=tmp_path / "d", options=SampleOptions(eod_token=EOD))
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(read_all, (dataset,)).get(60) == [[9, 7, 8, 9], [4, 5, 6, 9], [1, 2, 9, 3]]


def test_pickle_holds_paths_and_settings(tmp_path):
    path = cache_of(tmp_path, DESCRIPTION)
    options = SampleOptions(eod_token=EOD, reset_position_ids=True)
    pickled = pickle.dumps(GPTDataset.open_cache(path, prefix=tmp_path / "d", options=options))
    assert b"description" not in pickled
    assert len(pickled) < 1500
    again = pickle.loads(pickled)  # noqa: S301
    assert again.options == options
    assert again[1]["position_ids"].tolist() == [0, 1, 2, 3]
    from_arrays = pickle.loads(pickle.dumps(small(tmp_path)))  # noqa: S301
    assert from_arrays.tokens(1).tolist() == [4, 5, 6, 9, 1]
