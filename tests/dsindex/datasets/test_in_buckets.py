"""Datasets in a bucket return what they return on disk, also in other processes, and say when an object is replaced."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("obstore")

from dsindex.datasets import BlendedDataset, GPTDataset, IndexedDataset, PackedInstructionDataset
from dsindex.datasets.opening import open_dataset
from dsindex.errors import FormatError, InputError
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, golden_caches
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, serving_objects
from tests.support.pbin_files import write_pbin

LENGTHS = [3, 0, 40, 7, 1, 300, 0, 12, 9, 2000]
CACHE = golden_caches("GPTDataset")[0]

PROCESSES = """
import multiprocessing, os, pickle, sys
from dsindex.datasets import IndexedDataset

def read(dataset, numbers):
    return [dataset[number].tolist() for number in numbers]

if __name__ == "__main__":
    dataset = IndexedDataset("s3://b/d")
    expected = read(dataset, [9, 3])
    for kind in ("fork", "spawn"):
        with multiprocessing.get_context(kind).Pool(2) as pool:
            assert pool.starmap(read, [(dataset, [9, 3])] * 4) == [expected] * 4, kind
    assert read(dataset, [5]) == [list(range(51, 351))]  # the parent goes on
    if os.fork() == 0:  # a fork that inherits what is read, and then another one
        if os.fork() == 0:
            os._exit(read(dataset, [9, 3]) != expected)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]) or read(dataset, [9, 3]) != expected)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

LOST_RELAYS = """
import glob, multiprocessing, os, signal, sys
from dsindex.datasets import IndexedDataset
from dsindex.errors import InputError

def kill_relay():
    [relay] = "".join(open(path).read() for path in glob.glob("/proc/self/task/*/children")).split()
    os.kill(int(relay), signal.SIGKILL)

def read(dataset, program):
    expected = list(range(372, 2372))
    assert dataset[9].tolist() == expected
    kill_relay()
    assert IndexedDataset("s3://b/d")[9].tolist() == expected  # by another one
    sys.executable = program  # says what nobody understands, and goes on
    kill_relay()
    try:
        IndexedDataset("s3://b/d")
    except InputError as error:
        assert "the process that reads for a forked one ends" in str(error)
    else:
        raise AssertionError

if __name__ == "__main__":
    dataset = IndexedDataset("s3://b/d")
    process = multiprocessing.get_context("fork").Process(target=read, args=(dataset, sys.argv[1]))
    process.start()
    process.join()
    sys.exit(process.exitcode)
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


@pytest.fixture
def store(folder, tmp_path, monkeypatch):
    with serving_objects(public={"open"}) as server:
        server.put("b", folder)
        server.put("golden", GOLDEN)
        server.put("open", folder)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield server


def test_sequences_are_those_on_disk(folder, store):
    for address in ("s3://b/d", f"{store.url}/open/d"):
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
    assert isinstance(open_dataset("s3://b/d.bin"), IndexedDataset)
    packed = open_dataset("s3://b/d.pbin")
    assert all(map(np.array_equal, packed.__getitems__([9, 2]), open_dataset(folder / "d.pbin").__getitems__([9, 2])))
    blocks, plain = (open_dataset(path, block_size=100) for path in ("s3://b/d.pbin", folder / "d.pbin"))
    assert all(map(np.array_equal, blocks.__getitems__([7, 0]), plain.__getitems__([7, 0])))
    chat = open_dataset("s3://b/chat", sequence_length=64)
    assert isinstance(chat, PackedInstructionDataset)
    own = PackedInstructionDataset(folder / "chat", sequence_length=64, pad_id=0)
    assert chat.plan.block(0).tolist() == own.plan.block(0).tolist() == [0, 1, 3]
    for found, expected in zip(chat.__getitems__([1, 0]), own.__getitems__([1, 0]), strict=True):
        assert np.array_equal(found.tokens, expected.tokens)
        assert np.array_equal(found.loss_mask, expected.loss_mask)


@pytest.mark.usefixtures("store")
def test_forked_and_spawned_processes_read(tmp_path):
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.usefixtures("store")
def test_lost_process_of_a_forked_one_is_replaced_or_named(tmp_path):
    script, program = tmp_path / "lost.py", tmp_path / "program"
    script.write_text(LOST_RELAYS)
    program.write_text("#!/bin/sh\nprintf '\\377nonsense\\n'; exec sleep 100\n")
    program.chmod(0o755)
    words = [sys.executable, script, program]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
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
    store.objects["b/big.idx"], store.objects["b/big.bin"] = store.objects["b/d.idx"], store.objects["b/d.bin"]
    dataset = IndexedDataset("s3://b/big")
    store.objects["b/big.bin"] = bytes(len(store.objects["b/d.bin"].read_bytes()))
    with pytest.raises(InputError, match=r"s3://b/big.bin: expected the object that was opened, got another"):
        dataset[5]


def test_files_that_do_not_belong_together_are_named(store):
    store.objects["b/cut.idx"], store.objects["b/cut.bin"] = store.objects["b/d.idx"], b"12"
    with pytest.raises(FormatError, match=r"s3://b/cut.idx: expected a .bin of 4744 bytes, got 2"):
        IndexedDataset("s3://b/cut")


def test_signature_is_neither_shown_nor_pickled(store):
    for suffix in ("idx", "bin"):
        store.signatures[f"open/d.{suffix}"] = "sig=planted-9f86"
    dataset = IndexedDataset(f"{store.url}/open/d?sig=planted-9f86")
    assert dataset[5].tolist() == list(range(51, 351))
    assert "planted" not in repr(dataset)
    with pytest.raises(TypeError, match="expected an address without a signature to pickle") as refused:
        pickle.dumps(dataset)
    assert "planted" not in str(refused.value)
    with pytest.raises(InputError) as denied:
        IndexedDataset(f"{store.url}/open/d?sig=planted-wrong")
    assert "planted" not in str(denied.value)
