"""Readers of other trainers open the same data with their own code and return our tokens.

The golden data are all golden datasets, and one of them with tokens of 1, 4 and 8 bytes. The blend has weights 0.7 and
0.3 and takes two epochs of its second dataset. A reader without blends gets its two datasets by its own mixing, or one
after the other. `--junitxml` has how many documents and samples were compared.

Packages that are not installed are found in PYTHONPATH: checkouts or unpacked wheels.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import itertools
import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.datasets import BlendedDataset, GPTDataset, IndexedDataset
from dsindex.datasets.packed import PackedMemMapDatasetContinuous
from tests.peers.test_gpt_samples import Tokenizer, build_datasets, megatron_config, unchanged
from tests.support.datasets import write_dataset
from tests.support.golden import DATASETS, GOLDEN, dataset_name

LENGTH = 32
NUM_SAMPLES = 400
EOD = 0


@dataclass(frozen=True)
class Data:
    """One dataset, or a blend."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] = (1.0,)

    def words(self):
        """Return the words of `--data-path`."""
        pairs = zip(map(str, self.weights), self.prefixes, strict=True)
        return list(flat(pairs) if len(self.prefixes) > 1 else self.prefixes)

    def mixture(self):
        """Return what MaxText is given."""
        pairs = zip(self.prefixes, self.weights, strict=True)
        weighted = ";".join(f"{prefix},{weight}" for prefix, weight in pairs)
        return weighted if len(self.prefixes) > 1 else self.prefixes[0]

    def samples(self, cache):
        """Index the samples and open them with our classes."""
        named = cache.parent / "identifiers.json"
        named.write_text('{"class": "none"}')
        words = ["--data-path", *self.words(), "--seq-length", str(LENGTH), "--split", "1", "--executor", "local"]
        words += ["--num-samples", f"{NUM_SAMPLES},0,0", "--tokenizer-identifiers", str(named)]
        assert main(["index", *words, "--data-cache-path", str(cache)]) == 0
        kind = BlendedDataset if len(self.prefixes) > 1 else GPTDataset
        [description] = cache.glob(f"*-{kind.__name__}-train-description.txt")
        return kind.open_cache(description), json.loads(description.read_bytes())

    def windows(self):
        """Return the tokens of each dataset in file order, cut into pieces of one length."""
        return [cut(flat(sequences(prefix))) for prefix in self.prefixes]


def sequences(prefix):
    return [tokens.tolist() for tokens in IndexedDataset(prefix)]


def documents(prefix):
    dataset = IndexedDataset(prefix)
    return [dataset.document(number).tolist() for number in range(dataset.num_documents)]


def cut(tokens):
    return [tokens[begin : begin + LENGTH] for begin in range(0, len(tokens) - LENGTH + 1, LENGTH)]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def whole(samples):
    """Return all tokens of samples; the last one of each is only in its labels."""
    items = (samples[number] for number in range(len(samples)))
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in items]


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data_sets")
    for prefix in DATASETS:
        for suffix in ("bin", "idx"):
            shutil.copyfile(f"{prefix}.{suffix}", folder / f"{dataset_name(prefix)}.{suffix}")
    path = GOLDEN / "eod_text_document"
    for dtype in (np.uint8, np.int32, np.int64):
        lists = [[[token % (256 if dtype is np.uint8 else 1 << 16) for token in ids]] for ids in documents(path) if ids]
        write_dataset(folder / np.dtype(dtype).name, lists, dtype=dtype)
    prefixes = [str(path.with_suffix("")) for path in sorted(folder.glob("*.idx"))]
    blend = [str(folder / f"own-{name}_text_document") for name in ("bos", "fast")]
    return {"golden": [Data((prefix,)) for prefix in prefixes], "blend": [Data(tuple(blend), (0.7, 0.3))]}


class Empty(ModuleType):
    """A package of which only the names of classes are asked."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class EmptyPackages:
    """Finds packages that need a GPU, empty."""

    names = ("megatron.bridge.models", "megatron.bridge.peft", "megatron.energon", "torchaudio")
    names += ("torchtitan.components.loss",)

    def find_spec(self, name, _path=None, _target=None):
        is_empty = any(f"{name}.".startswith(f"{package}.") for package in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_empty else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def peer(name, *, without=()):
    """Import a module of a trainer, but not what the packages `without` import when they run; outer ones come first."""
    for package in without:
        if package not in sys.modules:
            outer = package.rpartition(".")[0]
            path = importlib.import_module(outer).__path__ if outer else None
            spec = importlib.machinery.PathFinder.find_spec(package, path)
            if spec is None:
                pytest.skip(f"{package} is neither installed nor in PYTHONPATH")
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = list(spec.submodule_search_locations or ())
    return pytest.importorskip(name, exc_type=ModuleNotFoundError)


def read_megatron(data, folder):
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronIndexed

    for prefix in data.prefixes:
        yield "sequences", [tokens.tolist() for tokens in MegatronIndexed(prefix)], sequences(prefix)
    ours, description = data.samples(folder)
    case = {"seed": 1234, "sequence_length": LENGTH, "split": "1", "prefixes": list(data.prefixes)}
    case["weights"] = list(data.weights) if len(data.prefixes) > 1 else None
    config = megatron_config(case, tokenizer_of(description), folder, {})
    with unchanged(folder):
        theirs = build_datasets(config, [NUM_SAMPLES, 0, 0])[0]
    yield "samples", whole(theirs), whole(ours)


def tokenizer_of(description):
    return Tokenizer((description["datasets"][0] if "datasets" in description else description)["tokenizer"])


def read_bridge(data, folder):
    bridge = "megatron.bridge"
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "meta_path", [EmptyPackages(), *sys.meta_path])
        module = peer(f"{bridge}.training.config", without=(bridge, f"{bridge}.data", f"{bridge}.training"))
        provider = peer(f"{bridge}.data.utils").get_dataset_provider
    ours, description = data.samples(folder)
    config = module.GPTDatasetConfig(
        seq_length=LENGTH,
        data_path=data.words(),
        split="1",
        random_seed=1234,
        path_to_cache=str(folder),
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False),
    )
    config.tokenizer = tokenizer_of(description)
    config.finalize()
    with unchanged(folder):
        theirs = provider(config)([NUM_SAMPLES, 0, 0], config)[0]
    yield "samples", whole(theirs), whole(ours)


def as_iterable(dataset, *_):
    """MaxText's transformations for one host."""
    return dataset.to_iter_dataset()


def read_maxtext_mmap(data, _folder):
    grain = pytest.importorskip("grain")
    maxtext = peer("maxtext.input_pipeline._mmap_datasource", without=("maxtext", "maxtext.input_pipeline"))
    is_filled = all(np.diff(IndexedDataset(prefix).document_indices).all() for prefix in data.prefixes)
    for has_sentences in (False, True)[: 1 + is_filled]:  # it counts an empty document as the sentence after it
        read = maxtext.get_mmap_dataset(
            data.mixture(), has_sentences, LENGTH, EOD, False, 0, 1, 0, 1, 1, 1, as_iterable
        )
        ours = [grain.MapDataset.source(windows).to_iter_dataset() for windows in data.windows()]
        theirs = [sample["text"].tolist() for sample in read]
        yield "windows", theirs, list(grain.IterDataset.mix(ours, data.weights))


def read_modalities(data, folder):
    """Datasets one after the other."""
    module = peer("modalities.dataloader.dataset")
    if IndexedDataset(data.prefixes[0]).dtype == np.int64:  # which a .pbin does not tell from uint64
        return
    read, ours = [], []
    for number, prefix in enumerate(data.prefixes):
        path = folder / f"{number}.pbin"
        dsindex.convert(prefix, path, flatten=True)
        theirs = module.PackedMemMapDatasetBase(path, "tokens")
        read_documents = [theirs[row]["tokens"].tolist() for row in range(len(theirs))]
        yield "documents", read_documents, documents(prefix)
        read.append(module.PackedMemMapDatasetContinuous(path, "tokens", LENGTH, True))
        ours += [tokens.tolist() for tokens in PackedMemMapDatasetContinuous(path, LENGTH, True)]
    combined = module.CombinedDataset(read)
    yield "windows", [combined[row]["tokens"].tolist() for row in range(len(combined))], ours


def read_torch(data, folder):
    """Pickled to spawned workers, which take seconds to start; the golden data are read by forked ones."""
    torch = pytest.importorskip("torch")
    samples, _ = data.samples(folder)
    start = "spawn" if len(data.prefixes) > 1 else "fork"
    loader = torch.utils.data.DataLoader(samples, batch_size=7, num_workers=2, multiprocessing_context=start)
    yield "samples", flat(map(batch_tokens, loader)), whole(samples)


def batch_tokens(batch):
    rows = zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True)
    return [[*tokens, labels[-1]] for tokens, labels in rows]


def read_torchtitan(data, folder):
    package = "torchtitan.components.data"
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "meta_path", [EmptyPackages(), *sys.meta_path])
        loader = peer(f"{package}.loader", without=("torchtitan", "torchtitan.components", package))
    module, (samples, _) = importlib.import_module(f"{package}.dataset"), data.samples(folder)

    class Source:  # as in docs/trainers.md
        def build(self, **_policy):
            return self

        def __len__(self):
            return len(samples)

        def __getitem__(self, number):
            sample = samples[number]
            return module.TextSequence(input_ids=sample["tokens"], labels=sample["labels"])

    source = module.SingleDatasetConfig(source=Source())
    config = loader.GrainDataLoader.Config(dataset=source, shuffle=False, repeat=False)
    sizes = {"max_context_length": LENGTH, "num_tokens_per_batch": LENGTH}
    read = loader.GrainDataLoader(config, dp_world_size=1, dp_rank=0, tokenizer=None, **sizes)
    theirs = [[*batch["input"].flatten().tolist(), int(labels.flatten()[-1])] for batch, labels in read]
    yield "samples", theirs, whole(samples)


READERS = {
    "Megatron-core": read_megatron, "Megatron-Bridge": read_bridge, "MaxText mmap": read_maxtext_mmap,
    "Modalities": read_modalities, "PyTorch": read_torch, "torchtitan": read_torchtitan,
}  # fmt: skip


@pytest.mark.parametrize("name", ["golden", "blend"])
@pytest.mark.parametrize("reader", READERS)
def test_reader_returns_our_tokens(reader, name, data_sets, tmp_path, record_property):
    compared = Counter()
    for number, data in enumerate(data_sets[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        with patch.dict(os.environ):  # some set variables when they are imported
            read = list(READERS[reader](data, folder))
        for unit, theirs, ours in read:
            assert theirs == ours, data
            compared[unit] += len(ours)
        compared["datasets"] += bool(read)
    assert compared
    record_property("compared", dict(compared))
