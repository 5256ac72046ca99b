"""`dsindex index` killed at every call that changes its cache: what a training job would take is never a mixture."""

import shutil

import pytest

from tests.faults.zygote import Strike
from tests.support.datasets import write_dataset

LAYOUTS = {
    "megatron": ("--data-cache-path", "cache", "-GPTDataset-train-", "description.txt"),
    "bigscience": ("--layout", "bigscience", "_train_indexmap_8ns_30sl_1234s_", "shuffle_idx.npy"),
    "maxtext": ("--layout", "maxtext", "--data-cache-path", "cache", "_index.npy", "shuffle_index.npy"),
}


def dataset(folder, *, other):
    lengths = [70, 9, 30, 100, 5, 44, 81] if other else [20, 50, 60, 30, 100, 5]
    write_dataset(folder / "web", [[[1] * length] for length in lengths])


def cache(folder, middle):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if middle in path.name}


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rebuild_killed_anywhere_leaves_no_mixture(layout, zygote, tmp_path):
    """The dataset is written again with other lengths, so the name of its cache is the same and its arrays are not."""
    *more, middle, last = LAYOUTS[layout]
    data = tmp_path / "data"
    data.mkdir()
    if layout != "bigscience":
        more[-1] = str(data / "cache")
    command = ["index", "--data-path", str(data / "web"), "--seq-length", "30", "--num-samples", "8", "--split", "1"]
    command += [*more, "--executor", "local"]

    def run(strike=None):
        ended = zygote.run(tmp_path / "run", command, strike)
        assert ended.code == (-9 if strike is not None and strike.at is not None else 0), ended.errors
        return ended.calls

    def compared():
        """The files that a job reads; it takes them when all four (or three) are there."""
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
    for at in range(len(calls)):
        shutil.copytree(before, data)
        run(Strike(at=at, place=middle))
        found = compared()
        if found.keys() >= new.keys():
            assert {name: found[name] for name in new} in [old, new], f"call {at}: {calls[at]}"
        run()
        assert {name: content for name, content in compared().items() if not name.endswith(".tmp")} == new
        assert [name for name in cache(data, middle) if name.endswith(".lock")] == []
        shutil.rmtree(data)
