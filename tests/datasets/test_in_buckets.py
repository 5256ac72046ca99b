"""Datasets in a bucket return what they return on disk, and say when an object is replaced."""

import os
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")

from dsindex.datasets import GPTDataset
from dsindex.datasets.opening import open as open_dataset
from tests.datasets.test_batches import as_lists
from tests.support.buckets import ENVIRONMENT, serving_buckets
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, golden_caches
from tests.support.pbin_files import write_pbin

LENGTHS = [3, 0, 40, 7, 1, 300, 0, 12, 9, 2000]
CACHE = golden_caches("GPTDataset")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset `d`, its `.pbin`, and instruction data `chat` with a block layout for 64 tokens."""
    folder = tmp_path_factory.mktemp("served")
    ends = np.cumsum(LENGTHS).tolist()
    documents = [[list(range(end - length, end))] for end, length in zip(ends, LENGTHS, strict=True)]
    write_dataset(folder / "d", documents)
    write_pbin(folder / "d.pbin", [document[0] for document in documents])
    conversations = [[[number] * length] for number, length in enumerate((30, 20, 40, 10))]
    write_dataset(folder / "chat_text_document", conversations)
    write_dataset(folder / "chat_loss_mask", [[[1] * len(lengths[0])] for lengths in conversations], dtype=np.uint8)
    write_dataset(folder / "chat_packing_64", [[[0, 1, 3]], [[2]]], dtype=np.int32)
    return folder


@pytest.fixture(scope="module")
def store(folder):
    with serving_buckets() as server, patch.dict(os.environ, ENVIRONMENT, AWS_ENDPOINT_URL=server.url):
        server.put("docs", folder)
        server.put("golden", GOLDEN)
        yield server


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("name", "options"), [
    ("d", {}), ("d.bin", {}), ("d.pbin", {}), ("d.pbin", {"block_size": 100}), ("chat", {"sequence_length": 64}),
], ids=str)  # fmt: skip
def test_items_are_those_on_disk(folder, name, options):
    plain, remote = open_dataset(folder / name, **options), open_dataset(f"s3://docs/{name}", **options)
    assert repr(remote) == repr(plain).replace(str(folder), "s3://docs")
    numbers = [1, 0, 1, -1]
    assert list(map(as_lists, remote.__getitems__(numbers))) == list(map(as_lists, plain.__getitems__(numbers)))
    if name == "d":
        for arrays, expected in [(remote[2:6], plain[2:6]), (remote.take([9, 2, 2, -3]), plain.take([9, 2, 2, -3]))]:
            assert all(map(np.array_equal, arrays, expected))
        assert np.array_equal(remote.get(9, 100, 50), plain.get(9, 100, 50))


@pytest.mark.usefixtures("store")
def test_sample_is_that_on_disk():
    options = {"add_extra_token": CACHE.add_extra_token}
    [prefix] = CACHE.prefixes()
    plain = GPTDataset.open_cache(CACHE.description_path, prefix=prefix, **options)
    remote = GPTDataset.open_cache(CACHE.description_path, prefix=f"s3://golden/{os.path.basename(prefix)}", **options)
    assert np.array_equal(remote.tokens(1), plain.tokens(1))
    places = [[(part.sequence, part.offset) for part in dataset.parts(1)] for dataset in (remote, plain)]
    assert places[0] == places[1]
