"""What `dsindex trace` says of samples and steps is what megatron-core's datasets and Megatron's loader give.

The golden texts are built anew, so that every document has a line. Each traced run of tokens is compared twice: with
the tokens that Megatron yields, and with that line, tokenized by the tokenizer's own library.

Megatron's sampler is not in the package of megatron-core. Its test needs the environment variable `MEGATRON_LM`, the
path of a checkout of Megatron-LM.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tokenizers

import dsindex
from dsindex.cli.main import main
from tests.peers.test_gpt_samples import OPTIONS, Tokenizer, megatron_config
from tests.support.golden import GOLDEN, GOLDEN_SETS, golden_caches

CACHES = golden_caches("GPTDataset") + golden_caches("BlendedDataset")
NUM_STEPS = int(os.environ.get("DSINDEX_PEER_STEPS", "300"))
CHECKOUT = os.environ.get("MEGATRON_LM", "")
SAMPLERS = ("megatron/training/datasets/data_samplers.py", "megatron/legacy/data/data_samplers.py")
"""Where the sampler is, in recent releases and in older ones."""
SPLITS = ("train", "valid", "test")
ALL_TOKENS = 1 << 30


def golden_set_of(cache):
    return GOLDEN_SETS[0] if cache.folder == GOLDEN else GOLDEN_SETS[1]


def run_of(golden, dataset):
    """The run and the key that a golden dataset comes from."""
    return next((run, key) for run in golden.runs for key, prefix in run.prefixes.items() if prefix.name == dataset)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds a golden dataset anew, which leaves a manifest and provenance beside it."""
    folder = tmp_path_factory.mktemp("built")

    @functools.cache
    def build_once(golden_name, dataset):
        golden = next(each for each in GOLDEN_SETS if each.name == golden_name)
        run, key = run_of(golden, dataset)
        dsindex.build(
            [str(run.input)],
            tokenizer=str(run.tokenizer),
            append_eod=run.append_eod,
            json_keys=list(run.json_keys),
            output_prefix=str(folder / golden_name / run.name),
        )
        prefix = folder / golden_name / dataset
        assert Path(f"{prefix}.bin").read_bytes() == Path(f"{run.prefixes[key]}.bin").read_bytes()
        return str(prefix)

    return lambda golden, dataset: build_once(golden.name, dataset)


def megatron_samples(cache, folder):
    """Let megatron-core open a copy of a golden cache; the working folder is that of its datasets."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset as MegatronGPTDataset

    shutil.copytree(cache.description_path.parent, folder)
    description = json.loads(cache.description_path.read_bytes())
    tokenizer = Tokenizer((description["datasets"][0] if "datasets" in description else description)["tokenizer"])
    config = megatron_config(cache.case, tokenizer, folder, OPTIONS["plain"])
    sizes = list(cache.case["num_samples"])
    splits = BlendedMegatronDatasetBuilder(MegatronGPTDataset, sizes, lambda: True, config).build()
    return splits[SPLITS.index(cache.split)]


class Lines:
    """Tokens of the lines of inputs, by the library of the tokenizer."""

    def __init__(self, golden):
        self._golden = golden
        self._tokenizers = {}
        self._lines = {}
        self._encoded = {}

    def tokenizer(self, folder):
        if folder not in self._tokenizers:
            self._tokenizers[folder] = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        return self._tokenizers[folder]

    def decode(self, prefix, tokens):
        run, _ = run_of(self._golden, Path(prefix).name)
        return str(self.tokenizer(run.tokenizer).decode(tokens, skip_special_tokens=False))

    def document(self, prefix, path, line):
        """All tokens that a line should have become."""
        if (prefix, line) not in self._encoded:
            run, key = run_of(self._golden, Path(prefix).name)
            tokenizer = self.tokenizer(run.tokenizer)
            if path not in self._lines:
                self._lines[path] = Path(path).read_bytes().splitlines()
            value = json.loads(self._lines[path][line - 1])[key]
            texts = [value] if isinstance(value, str) else value
            ids = [token for text in texts for token in tokenizer.encode(text).ids]
            end = tokenizer.token_to_id("<|endoftext|>")
            self._encoded[prefix, line] = [*ids, end] if run.append_eod and ids else ids
        return self._encoded[prefix, line]


def assert_traced(shown, expected, loss_mask, lines):
    """Compare what is shown of a sample with the tokens that Megatron gives for it."""
    place = 0
    for part in shown["parts"]:
        size = part["end"] - part["begin"]
        given = expected[place : place + size]
        source = part["origin"]["source"]
        assert list(part["tokens"]) == given
        assert lines.document(part["prefix"], source["path"], source["line"])[part["begin"] : part["end"]] == given
        assert part["text"] == lines.decode(part["prefix"], given)
        place += size
    assert place > 0
    # A partial last sample is padded, and no loss is taken from there.
    assert not np.asarray(loss_mask)[max(0, place - 1) : len(expected) - 1].any()


def tokens_of(sample, *, extra):
    """All tokens of a sample; the last one is only in its labels."""
    tokens = sample["tokens"].tolist()
    return [*tokens, int(sample["labels"][-1])] if extra else tokens


@pytest.fixture
def sampler(monkeypatch):
    """Megatron's MegatronPretrainingSampler; what its file imports for other things is left empty."""
    path = next((Path(CHECKOUT) / name for name in SAMPLERS if (Path(CHECKOUT) / name).is_file()), None)
    if not CHECKOUT or path is None:
        pytest.skip("MEGATRON_LM is not the path of a checkout of Megatron-LM")
    for name, empty in (
        ("megatron.training", "get_args"),
        ("megatron.training.dist_signal_handler", "DistributedSignalHandler"),
    ):
        module = ModuleType(name)
        setattr(module, empty, None)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("data_samplers", path)
    samplers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(samplers)
    return samplers.MegatronPretrainingSampler


def draw_steps(num_samples, rng, number):
    """Yield step, micro batch, micro batches per step, data-parallel size and rank."""
    for _ in range(number):
        while True:
            micro, rounds, size = (int(rng.integers(1, 5)) for _ in range(3))
            last = num_samples // (micro * rounds * size)
            if last:
                break
        yield int(rng.integers(1, last + 1)), micro, rounds, size, int(rng.integers(size))


STEPPED = [cache for cache in CACHES if cache.add_extra_token]
"""Megatron's own caches do not say whether they were built with the extra token; the command takes its default."""


@pytest.mark.parametrize("number", range(len(STEPPED)), ids=lambda number: str(STEPPED[number]))
def test_steps_have_what_the_loader_gives(tmp_path, monkeypatch, capsys, number, build, sampler):
    """The training starts at an earlier step, as it does after a checkpoint, and reads up to the one that is traced."""
    from torch.utils.data import DataLoader

    cache = STEPPED[number]
    monkeypatch.chdir(cache.folder)
    golden = golden_set_of(cache)
    prefixes = [build(golden, dataset) for dataset in cache.case["prefixes"]]
    theirs = megatron_samples(cache, tmp_path / "cache")
    lines = Lines(golden)
    rng = np.random.default_rng(number)
    share = len(range(number, NUM_STEPS, len(STEPPED)))
    for step, micro, rounds, size, rank in draw_steps(len(theirs), rng, share):
        batch = micro * rounds * size
        resumed = int(rng.integers(max(1, step - 2), step + 1))
        batches = sampler(len(theirs), (resumed - 1) * batch, micro, rank, size)
        loader = iter(DataLoader(theirs, batch_sampler=batches))
        for _ in range((step - resumed) * rounds):
            next(loader)
        given = [next(loader) for _ in range(rounds)]
        samples = [{name: values[row] for name, values in each.items()} for each in given for row in range(micro)]
        words = ["--step", step, "--global-batch-size", batch, "--micro-batch-size", micro]
        words += ["--data-parallel-size", size, "--data-parallel-rank", rank, "--text-tokens", ALL_TOKENS]
        command = ["trace", cache.description_path, "--prefix", *prefixes, *words, "--json"]
        assert main(list(map(str, command))) == 0
        report = json.loads(capsys.readouterr().out)
        assert len(report["samples"]) == len(samples)
        for shown, sample in zip(report["samples"], samples, strict=True):
            assert (shown["step"], shown["rank"]) == (step, rank)
            assert_traced(shown, tokens_of(sample, extra=True), sample["loss_mask"], lines)
