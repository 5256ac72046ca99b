"""Datasets in a bucket return what they return on disk, and say when an object is replaced."""

import os

import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")

from dsindex.datasets import GPTDataset, IndexedDataset, PackedInstructionDataset
from dsindex.datasets.opening import open as open_dataset
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
    write_dataset(folder / "chat_loss_mask", [[[1] * len(each[0])] for each in conversations], dtype=np.uint8)
    write_dataset(folder / "chat_packing_64", [[[0, 1, 3]], [[2]]], dtype=np.int32)
    return folder


@pytest.fixture(scope="module")
def store(folder):
    with serving_buckets() as server, pytest.MonkeyPatch.context() as patched:
        server.put("docs", folder)
        server.put("golden", GOLDEN)
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
            patched.setenv(name, value)
        yield server


@pytest.mark.usefixtures("store")
def test_sequences_are_those_on_disk(folder):
    plain, remote = IndexedDataset(folder / "d"), IndexedDataset("s3://docs/d")
    assert repr(remote) == repr(plain).replace(str(folder / "d"), "s3://docs/d")
    for number in (2, -1):
        assert np.array_equal(remote[number], plain[number])
    numbers = [9, 2, 2, -3]
    for found, expected in [(remote[2:6], plain[2:6]), (remote.take(numbers), plain.take(numbers))]:
        assert all(map(np.array_equal, found, expected))
    assert np.array_equal(remote.get(9, 100, 50), plain.get(9, 100, 50))


@pytest.mark.usefixtures("store")
def test_sample_is_that_on_disk():
    prefix, options = CACHE.prefixes()[0], {"add_extra_token": CACHE.add_extra_token}
    plain = GPTDataset.open_cache(CACHE.description_path, prefix=prefix, **options)
    remote = GPTDataset.open_cache(CACHE.description_path, prefix=f"s3://golden/{os.path.basename(prefix)}", **options)
    assert np.array_equal(remote.tokens(1), plain.tokens(1))
    assert [(part.sequence, part.offset) for part in remote.parts(1)] == [
        (part.sequence, part.offset) for part in plain.parts(1)
    ]


@pytest.mark.usefixtures("store")
def test_what_is_opened_is_told_by_the_objects(folder):
    assert isinstance(open_dataset("s3://docs/d.bin"), IndexedDataset)
    packed = open_dataset("s3://docs/d.pbin")
    assert all(map(np.array_equal, packed.__getitems__([9, 2]), open_dataset(folder / "d.pbin").__getitems__([9, 2])))
    blocks, plain = (open_dataset(path, block_size=100) for path in ("s3://docs/d.pbin", folder / "d.pbin"))
    assert all(map(np.array_equal, blocks.__getitems__([7, 0]), plain.__getitems__([7, 0])))
    chat = open_dataset("s3://docs/chat", sequence_length=64)
    assert isinstance(chat, PackedInstructionDataset)
    own = PackedInstructionDataset(folder / "chat", sequence_length=64, pad_id=0)
    assert chat.plan.block(0).tolist() == own.plan.block(0).tolist() == [0, 1, 3]
    for found, expected in zip(chat.__getitems__([1, 0]), own.__getitems__([1, 0]), strict=True):
        assert np.array_equal(found.tokens, expected.tokens)
        assert np.array_equal(found.loss_mask, expected.loss_mask)
