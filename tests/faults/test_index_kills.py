"""`dsindex index` killed at every call that changes what they write: nothing is ever half there."""

import shutil

import pytest

from tests.faults.zygote import Strike
from tests.support.datasets import write_dataset

SWEEP = pytest.mark.parametrize(
    "step", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.exhaustive)]
)
"""Calls from one kill to the next."""


def dataset(folder, lengths):
    write_dataset(folder / "web", [[[1] * length] for length in lengths])


def cache(folder):
    return {path.name: path.read_bytes() for path in folder.glob("cache/*") if "dsindex" not in path.name}


@SWEEP
def test_rebuild_killed_anywhere_leaves_no_mixture(step, zygote, tmp_path):
    """The dataset is written again with other lengths, so the name of its cache is the same and its arrays are not."""
    data = tmp_path / "data"
    data.mkdir()
    command = ["index", "--data-path", str(data / "web"), "--seq-length", "30", "--num-samples", "8", "--split", "1"]
    command += ["--data-cache-path", str(data / "cache"), "--executor", "local"]

    def run(strike=None):
        ended = zygote.run(tmp_path / "run", command, strike)
        assert ended.code == (-9 if strike is not None and strike.at is not None else 0), ended.errors
        return ended.calls

    dataset(data, [70, 9, 30, 100, 5, 44, 81])
    run()
    new = cache(data)
    dataset(data, [20, 50, 60, 30, 100, 5, 12])
    calls = run(Strike(place="-GPTDataset-train-"))
    old = cache(data)
    assert sum(old[name] != new[name] for name in new) > 1
    dataset(data, [70, 9, 30, 100, 5, 44, 81])
    before = tmp_path / "before"
    data.rename(before)
    for at in range(0, len(calls), step):
        shutil.copytree(before, data)
        run(Strike(at=at, place="-GPTDataset-train-"))
        found = cache(data)
        if found.keys() >= new.keys():  # a job takes them when all four are there
            assert {name: found[name] for name in new} in [old, new], f"call {at}: {calls[at]}"
        run()
        assert {name: content for name, content in cache(data).items() if not name.endswith(".tmp")} == new
        assert list(data.glob("cache/*-lock")) == []
        shutil.rmtree(data)


def written(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@SWEEP
def test_run_that_goes_on_is_whole_or_not_there(step, zygote, tmp_path):
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
    for at in range(0, len(counted.calls), 4 * step - 3):
        shutil.rmtree(out)
        assert zygote.run(tmp_path / "run", words, Strike(at=at, place=str(out))).code == -9
        left = written(out) if out.exists() else {}
        endings = (".tmp", "-lock", ".partial", ".commit", "-dsindex.json")
        whole = {name: content for name, content in left.items() if not name.endswith(endings)}
        assert whole.items() <= expected.items(), f"call {at}: {counted.calls[at]}"
        assert zygote.run(tmp_path / "run", words).code == 0
        assert written(out) == expected, f"call {at}: {counted.calls[at]}"
