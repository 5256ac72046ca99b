"""`dsindex index` killed at every call that changes what they write: nothing is ever half there."""

import os
import shutil

import pytest

from tests.faults.zygote import Strike
from tests.support.datasets import write_dataset

LAYOUTS = {
    "megatron": ("--data-cache-path", "cache", "-GPTDataset-train-", "description.txt"),
    "packed": ("--document-order", "packed", "--data-cache-path", "cache", "-GPTDataset-train-", "description.txt"),
}


def dataset(folder, *, other):
    lengths = [70, 9, 30, 100, 5, 44, 81] if other else [20, 50, 60, 30, 100, 5, 12]
    write_dataset(folder / "web", [[[1] * length] for length in lengths])


def cache(folder, middle):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if middle in path.name}


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rebuild_killed_anywhere_leaves_no_mixture(layout, zygote, tmp_path, is_long):
    """The dataset is written again with other lengths, so the name of its cache is the same and its arrays are not."""
    *more, middle, last = LAYOUTS[layout]
    data = tmp_path / "data"
    data.mkdir()
    more[-1] = str(data / "cache")
    command = ["index", "--data-path", str(data / "web"), "--seq-length", "30", "--num-samples", "8", "--split", "1"]
    command += [*more, "--executor", "local"]

    def run(strike=None):
        ended = zygote.run(tmp_path / "run", command, strike)
        assert ended.code == (-9 if strike is not None and strike.at is not None else 0), ended.errors
        return ended.calls

    def compared():
        """The files that a job reads; it takes them when all four are there."""
        return {name: content for name, content in cache(data, middle).items() if "dsindex" not in name}

    dataset(data, other=True)
    run()
    new = compared()
    dataset(data, other=False)
    calls = run(Strike(place=middle))
    old = compared()
    assert sum(old[name] != new[name] for name in new) > 1
    assert any(name.endswith(last) for name in old)
    assert len(calls) > 9
    dataset(data, other=True)
    before = tmp_path / "before"
    data.rename(before)
    for at in range(0, len(calls), 1 if is_long else 3):
        shutil.copytree(before, data)
        run(Strike(at=at, place=middle))
        found = compared()
        if found.keys() >= new.keys():
            assert {name: found[name] for name in new} in [old, new], f"call {at}: {calls[at]}"
        run()
        assert {name: content for name, content in compared().items() if not name.endswith(".tmp")} == new
        assert [name for name in cache(data, middle) if name.endswith(".lock")] == []
        shutil.rmtree(data)


def written(folder):
    """Every file of a folder, links as their targets."""
    return {
        path.name: os.readlink(path).encode() if path.is_symlink() else path.read_bytes() for path in folder.iterdir()
    }


@pytest.mark.quick(1)
def test_run_that_goes_on_is_whole_or_not_there(zygote, tmp_path, is_long):
    for name, lengths in {"web": [20, 50, 60, 30, 100, 5], "books": [400, 3]}.items():
        write_dataset(tmp_path / name, [[[1] * length] for length in lengths * 9])
    first, out = tmp_path / "first", tmp_path / "out"
    blend = ["--data-path", "6", tmp_path / "web", "4", tmp_path / "books", "--seq-length", "30", "--split", "1"]
    blend += ["--executor", "local", "--workers", "1", "--document-order", "packed"]
    assert zygote.run(tmp_path / "run", ["index", *blend, "--num-samples", "90", "--data-cache-path", first]).code == 0
    words = ["index", *blend, "--num-samples", "200", "--continue-from", first, "--data-cache-path", out]
    words += ["--consumed-samples", "40", "--global-batch-size", "8"]
    counted = zygote.run(tmp_path / "run", words, Strike(place=str(out)))
    assert counted.code == 0, counted.errors
    expected = written(out)
    assert len(expected) == 14
    for at in range(0, len(counted.calls), 1 if is_long else 12):
        shutil.rmtree(out)
        assert zygote.run(tmp_path / "run", words, Strike(at=at, place=str(out))).code == -9
        left = written(out) if out.exists() else {}
        whole = {
            name: content for name, content in left.items() if not name.endswith((".tmp", ".lock", "-dsindex.json"))
        }
        assert whole.items() <= expected.items(), f"call {at}: {counted.calls[at]}"
        assert zygote.run(tmp_path / "run", words).code == 0
        assert written(out) == expected, f"call {at}: {counted.calls[at]}"
