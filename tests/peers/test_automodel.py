"""NeMo Automodel finds caches that dsindex made: its own classes open them, write nothing, and give the same samples.

It needs torch, transformers, datasets, torchdata, a compiler and ninja, and NeMo Automodel installed or in PYTHONPATH.
"""

import hashlib
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest

from dsindex.cli.main import main
from dsindex.datasets import BlendedDataset, GPTDataset
from tests.peers.three_datasets import NAMES

JOBS = int(os.environ.get("DSINDEX_PEER_JOBS", "150"))
TOKENIZER = SimpleNamespace(name_or_path="openai-community/gpt2", pad_token_id=0, eos_token_id=0)
SPLITS = {"train": "train", "validation": "valid", "test": "test"}


@pytest.fixture(scope="module")
def pretraining():
    name = "nemo_automodel.components.datasets.llm.megatron_dataset"
    return pytest.importorskip(name, exc_type=ModuleNotFoundError).MegatronPretraining


def draw_paths(rng):
    names = rng.sample(NAMES, rng.randrange(1, 4))
    return [word for name in names for word in (str(rng.choice([3, 0.5, 7])), name)] if rng.random() < 0.6 else names


def draw_job(rng):
    """Draw a job, as its own settings and as our flags."""
    train, valid, length, seed = rng.randrange(5, 200), rng.randrange(1, 9), rng.choice([16, 30]), rng.randrange(99)
    job = {"seq_length": length, "seed": seed, "num_train_samples": train, "num_val_samples": valid}
    job["num_test_samples"] = 3
    flags = ["--seq-length", str(length), "--seed", str(seed), "--num-samples", f"{train},{valid},3"]
    if rng.random() < 0.3:
        # One dataset for a split: at several it stops, as its configuration lacks an attribute that it asks for.
        apart = {name: [*rng.choice([[], ["0.5"]]), rng.choice(NAMES)] for name in SPLITS}
        for name, words in apart.items():
            flags += [f"--{SPLITS[name]}-data-path", *words]
        return {**job, "paths": apart}, flags
    words, split = draw_paths(rng), rng.choice(["900,50,50", "0.9, 0.05, 0.05", "8,1,1", "98,2,0"])
    return {**job, "paths": words, "split": split}, [*flags, "--data-path", *words, "--split", split]


def digests(dataset):
    first = [dataset[number] for number in range(min(8, len(dataset)))]
    tokens = [np.asarray(sample.get("input_ids", sample.get("tokens"))).astype(np.int64) for sample in first]
    return [hashlib.md5(each.tobytes(), usedforsecurity=False).hexdigest() for each in tokens]


def our_samples(cache, split):
    found = [BlendedDataset.open_cache(each) for each in cache.glob(f"*Blended*-{split}-description.txt")]
    found += [GPTDataset.open_cache(each) for each in cache.glob(f"*-GPTDataset-{split}-description.txt")]
    return [digests(each) for each in found]


def test_jobs_find_caches_made_ahead(pretraining, data, tmp_path, monkeypatch, capsys):
    rng = random.Random(os.environ.get("DSINDEX_PEER_SEED", "7"))
    monkeypatch.chdir(data)
    refused = 0
    for number in range(JOBS):
        cache = tmp_path / str(number)
        cache.mkdir()
        job, flags = draw_job(rng)
        ours = ["--megatron-release", "nemo-automodel", "--tokenizer-model", TOKENIZER.name_or_path]
        code = main(["index", *flags, *ours, "--executor", "local", "--data-cache-path", str(cache)])
        shown = capsys.readouterr().err
        started = pretraining(tokenizer=TOKENIZER, index_mapping_dir=str(cache), **job)
        if code != 0:
            refused += 1
            if "would loop forever" not in shown:
                with pytest.raises((AssertionError, ValueError, IndexError)):
                    started.build()
            continue
        before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
        started.build()
        assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before, flags
        for name, split in SPLITS.items():
            if getattr(started, f"_{name}_ds") is not None:
                theirs = digests(started.get_dataset(name))  # as many as were asked for; ours ends with its epoch
                assert theirs in [each[: len(theirs)] for each in our_samples(cache, split)], (flags, name)
    assert refused < JOBS / 3
