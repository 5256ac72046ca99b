"""MaxText's own reader and builder of `mmap_npy` against our caches: the same files, no rebuild, the same samples.

`DSINDEX_MAXTEXT_WHEEL=maxtext-0.2.5-py3-none-any.whl pytest -o addopts= tests/peers/test_maxtext.py`: its modules are
loaded from the wheel, with a stand-in for grain; jax is not needed.
"""

import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dsindex
from dsindex.datasets import IndexedDataset
from dsindex.errors import DsindexError
from tests.commands.index.index_jobs import index
from tests.peers.test_trainers import peer
from tests.support.datasets import write_dataset

WHEEL = Path(os.environ.get("DSINDEX_MAXTEXT_WHEEL", "/none"))
pytestmark = pytest.mark.skipif(not WHEEL.exists(), reason="DSINDEX_MAXTEXT_WHEEL names no wheel")


class MapDataset(list):
    """Grain's, as far as MaxText's sources are concerned."""

    source = classmethod(lambda cls, source: cls(source[number] for number in range(len(source))))
    repeat = to_iter_dataset = lambda self, *_, **__: self

    def __getitem__(self, index):
        return MapDataset(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)


@pytest.fixture
def maxtext(monkeypatch):
    monkeypatch.syspath_prepend(str(WHEEL))
    for name in [name for name in sys.modules if name.split(".")[0] in {"maxtext", "grain"}]:
        monkeypatch.delitem(sys.modules, name)
    grain = ModuleType("grain")
    grain.python = ModuleType("grain.python")
    grain.python.__dict__.update(RandomAccessDataSource=object, MapDataset=MapDataset, ReadOptions=dict)
    monkeypatch.setitem(sys.modules, "grain", grain)
    monkeypatch.setitem(sys.modules, "grain.python", grain.python)
    without = ("maxtext", "maxtext.input_pipeline")
    names = ("_mmap_datasource", "_mmap_index_utils", "_megatron_blending")
    loaded = {name: peer(f"maxtext.input_pipeline.{name}", without=without) for name in names}
    yield SimpleNamespace(**loaded)
    for name in [name for name in sys.modules if name.split(".")[0] == "maxtext"]:
        del sys.modules[name]


@dataclass
class Job:
    """A drawn job."""

    folder: Path
    prefixes: list[str]
    weights: list[float]
    length: int
    split: str | None
    sizes: list[int]
    has_sentences: bool
    order: str

    @property
    def splits(self):
        return ("train", "eval") if self.split else ("train",)

    @property
    def shared(self):
        return {"seq_length": self.length, "seed": 7, "split": self.split}

    def run(self, order):
        words = [str(word) for pair in zip(self.weights, self.prefixes, strict=True) for word in pair]
        return index(
            data_path=words if len(self.prefixes) > 1 else self.prefixes, reader="maxtext", num_samples=self.sizes,
            data_cache_path=str(self.folder / "ours"), document_order=order, **self.shared,
        )  # fmt: skip

    def blend_file(self, name, split):
        """Return the path of an array of a blend; the fixed names can be taken once."""
        stem = f"maxtext-BlendedDataset-{split}-" if self.split else ""
        return self.folder / "ours" / f"{stem}{name}.npy"


def draw_job(rng, folder):
    has_sentences = rng.random() < 0.5
    prefixes = [str(folder / f"p{number}") for number in range(rng.choice([1, 1, 2, 3]))]
    for prefix in prefixes:
        lists = [
            [[rng.randrange(1000) for _ in range(rng.choice([1, 5, 40, 90]))] for _ in range(count)]
            for count in (rng.randint(1, 3 if has_sentences else 1) for _ in range(rng.randint(60, 150)))
        ]
        write_dataset(Path(prefix), lists)
    return Job(
        folder=folder,
        prefixes=prefixes,
        weights=[rng.choice([0.3, 0.7, 1.0, 5.0]) for _ in prefixes],
        length=rng.choice([16, 30]),
        split=rng.choice([None, "99,1", "80,10,10", "3,1"]),
        sizes=[rng.choice([50, 400, 1500]), 20],
        has_sentences=has_sentences,
        order=rng.choice(["shuffled", "shuffled", "packed"]),
    )


def arrays(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.npy")}


def build_with_maxtext(job, utils):
    """Return the arrays that MaxText's own builder writes."""
    theirs = job.folder / "theirs"
    for number, split in enumerate(job.splits):
        shared = {"split_index": number, **job.shared}
        if len(job.prefixes) == 1:
            utils.convert(job.prefixes, str(theirs), num_samples=job.sizes[number], **shared)
            continue
        pairs = zip(job.prefixes, job.weights, strict=True)
        specs = [{"input": [prefix], "weight": weight, "output_dir": str(theirs)} for prefix, weight in pairs]
        blend = job.folder / f"blend-{split}"
        utils.convert_blend(specs, job.sizes[number], blend_index_output_dir=str(blend), **shared)
        for path in blend.iterdir():
            path.rename(theirs / job.blend_file(path.stem, split).name)
    return arrays(theirs)


def expected_samples(job, stem, prefix):
    """Return the samples of a dataset by their definition: its documents laid end to end in the order of the cache."""
    dataset = IndexedDataset(prefix)
    order, shuffled = (np.load(f"{stem}-{name}.npy") for name in ("document_index", "shuffle_index"))
    tokens = np.concatenate([dataset.document(number) for number in order]).tolist()
    return [tokens[job.length * row : job.length * (row + 1) + 1] for row in shuffled.tolist()]


def expected_blend(job, split, stems):
    parts = [expected_samples(job, *place) for place in zip(stems, job.prefixes, strict=True)]
    if len(parts) == 1:
        return parts[0]
    pair = [np.load(job.blend_file(name, split)) for name in ("dataset_index", "dataset_sample_index")]
    return [parts[dataset][sample] for dataset, sample in zip(*pair, strict=True)]


def refuse(*_, **__):
    raise AssertionError("MaxText builds what it should have found")


@pytest.mark.parametrize("seed", range(16))
def test_maxtext_finds_our_caches_and_builds_the_same(seed, maxtext, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = draw_job(random.Random(seed), tmp_path)
    result, ours, utils = job.run(job.order), arrays(tmp_path / "ours"), maxtext._mmap_index_utils
    if job.order == "shuffled":
        assert build_with_maxtext(job, utils) == ours
    monkeypatch.setattr(utils, "build_indices", refuse)
    monkeypatch.setattr(maxtext._megatron_blending, "build_blending_indices", refuse)
    [told] = [note for note in result.notes if note.startswith("tell MaxText ")]
    settings = dict(word.split("=", 1) for word in told.replace("'", "").split()[2:])
    stems = [cache.paths[0].removesuffix("-description.txt") for cache in result.results]
    for number, split in enumerate(job.splits):
        read = maxtext._mmap_datasource.get_mmap_npy_dataset(
            settings[f"grain_{split}_files"], job.has_sentences, job.length, 0, 1, 0, 1, 1, 1, None,
            settings.get("blend_index_dir"), split, lambda dataset, *_: dataset, num_samples=job.sizes[number], seed=7,
            split=job.split, split_index=number,
        )  # fmt: skip
        samples = [sample["text"].tolist() for sample in read]
        begin = number * len(job.prefixes)
        assert samples == expected_blend(job, split, stems[begin : begin + len(job.prefixes)])
        assert len(samples) == job.sizes[number] or len(job.prefixes) == 1
        opened = dsindex.open("ours", split=("train", "valid")[number])
        assert [opened.tokens(row).tolist() for row in range(len(opened))] == samples
    assert arrays(tmp_path / "ours") == ours
    for prefix in job.prefixes:
        assert dsindex.verify(prefix, cache="ours").ok
    with pytest.raises(DsindexError, match="document order"):
        job.run("shuffled" if job.order == "packed" else "packed")
