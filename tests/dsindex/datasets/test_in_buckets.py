"""Datasets in a bucket return what they return on disk, also in other processes, and say when an object is replaced."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")

from dsindex.datasets import BlendedDataset, GPTDataset, IndexedDataset, PackedInstructionDataset
from dsindex.datasets.opening import open as open_dataset
from dsindex.errors import FormatError, InputError
from tests.support.buckets import ENVIRONMENT, serving_buckets
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, golden_caches
from tests.support.pbin_files import write_pbin

LENGTHS = [3, 0, 40, 7, 1, 300, 0, 12, 9, 2000]
CACHE = golden_caches("GPTDataset")[0]

PROCESSES = """
import multiprocessing, pickle
from dsindex.datasets import IndexedDataset

def read(dataset, numbers):
    return [dataset[number].tolist() for number in numbers]

if __name__ == "__main__":
    dataset = IndexedDataset("s3://docs/d")
    expected = read(dataset, [9, 3])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(read, [(dataset, [9, 3])] * 4) == [expected] * 4
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            pool.apply(IndexedDataset, ("s3://docs/d",))
        except Exception as error:
            assert "start workers with spawn" in str(error)
        else:
            raise AssertionError
"""


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
    for address in ("s3://docs/d",):
        plain, remote = IndexedDataset(folder / "d"), IndexedDataset(address)
        assert repr(remote) == repr(plain).replace(str(folder / "d"), address)
        for number in (*range(len(plain)), -1):
            assert np.array_equal(remote[number], plain[number])
        numbers = [9, 2, 2, -3]
        pairs = [(remote.__getitems__(numbers), plain.__getitems__(numbers)), (remote[2:6], plain[2:6])]
        pairs += [(remote[::3], plain[::3]), (remote.take(numbers), plain.take(numbers))]
        for found, expected in pairs:
            assert all(map(np.array_equal, found, expected))
        assert np.array_equal(remote.get(9, 100, 50), plain.get(9, 100, 50))
        assert np.array_equal(remote.document(5), plain.document(5))
        with pytest.raises(IndexError, match="expected a sequence below 10, got 10"):
            remote.__getitems__([10])
        remote.close()
        with pytest.raises(ValueError, match="the dataset is closed"):
            remote[0]


@pytest.mark.parametrize("torch_like", [[0, 1, 2, 3], [3, -1, 0]], ids=["forwards", "anywhere"])
@pytest.mark.usefixtures("store")
def test_samples_are_those_on_disk(torch_like):
    prefix = CACHE.prefixes()[0]
    plain = GPTDataset.open_cache(CACHE.description_path, prefix=prefix, add_extra_token=CACHE.add_extra_token)
    remote = GPTDataset.open_cache(
        CACHE.description_path,
        prefix=f"s3://golden/{os.path.basename(prefix)}",
        add_extra_token=CACHE.add_extra_token,
    )
    assert np.array_equal(remote.batch(torch_like), plain.batch(torch_like))
    for number in (*range(len(plain)), -1):
        assert np.array_equal(remote.tokens(number), plain.tokens(number))
        assert np.array_equal(remote[number]["loss_mask"], plain[number]["loss_mask"])
    again = pickle.loads(pickle.dumps(remote))  # noqa: S301
    assert np.array_equal(again.batch(torch_like), plain.batch(torch_like))


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


@pytest.mark.usefixtures("store")
def test_spawned_processes_read_and_forked_ones_are_refused(tmp_path):
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr


def golden_blend(*, is_mixed=False):
    """A blend on disk, and the same in the store, or with one of its datasets on disk."""
    cache = golden_caches("BlendedDataset")[0]
    remote = [f"s3://golden/{os.path.basename(prefix)}" for prefix in cache.prefixes()]
    there = [cache.prefixes()[0], *remote[1:]] if is_mixed else remote
    plain, blend = (
        BlendedDataset.open_cache(cache.description_path, prefixes=prefixes, add_extra_token=cache.add_extra_token)
        for prefixes in (cache.prefixes(), there)
    )
    return plain, blend


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("is_mixed", [False, True], ids=["all there", "one on a disk"])
def test_blend_is_that_on_disk(is_mixed):
    plain, blend = golden_blend(is_mixed=is_mixed)
    for number in (*range(len(plain)), -1):
        assert np.array_equal(blend.tokens(number), plain.tokens(number))
    for found, expected in zip(blend.__getitems__([5, -2, 0]), plain.__getitems__([5, -2, 0]), strict=True):
        assert found["dataset_id"] == expected["dataset_id"]
        assert np.array_equal(found["labels"], expected["labels"])
    assert blend.batch([]).shape == plain.batch([]).shape
    assert np.array_equal(blend.batch(np.array([7, 1], np.uint64)), plain.batch([7, 1]))
    again = pickle.loads(pickle.dumps(blend))  # noqa: S301
    assert np.array_equal(again[3]["tokens"], plain[3]["tokens"])


def test_object_that_is_replaced_is_named(store):
    for suffix in ("idx", "bin"):
        store.put(f"docs/big.{suffix}", store.content(f"docs/d.{suffix}"))
    dataset = IndexedDataset("s3://docs/big")
    store.put("docs/big.bin", bytes(len(store.content("docs/d.bin"))))
    with pytest.raises(InputError, match=r"s3://docs/big.bin: expected the object that was looked at, got another"):
        dataset[5]


def test_files_that_do_not_belong_together_are_named(store):
    store.put("docs/cut.idx", store.content("docs/d.idx"))
    store.put("docs/cut.bin", b"12")
    with pytest.raises(FormatError, match=r"s3://docs/cut.idx: expected a .bin of 4744 bytes, got 2"):
        IndexedDataset("s3://docs/cut")


def test_signed_address_is_refused_and_not_shown():
    with pytest.raises(InputError, match="expected an address without a signature") as refused:
        IndexedDataset("https://example.com/d?sig=planted-9f86")
    assert "planted" not in str(refused.value)
