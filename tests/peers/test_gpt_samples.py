"""megatron-core's own datasets, started on the golden caches, give the samples that ours give, in the same order."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from dsindex.datasets import BlendedDataset, GPTDataset, IndexedDataset, SampleOptions
from tests.support.datasets import write_dataset
from tests.support.golden import golden_caches

CACHES = golden_caches("GPTDataset") + golden_caches("BlendedDataset")
OPTIONS = {
    "plain": {},
    "resets": {"reset_position_ids": True, "reset_attention_mask": True, "create_attention_mask": True},
    "no-loss-on-eod": {"eod_mask_loss": True, "create_attention_mask": True},
    "positions": {"reset_position_ids": True},
    "documents": {"inter_document_masking": True},
}
EOD = 13
"""Any token that is frequent in the golden texts will do."""


class Tokenizer:
    """What GPTDataset asks of a tokenizer."""

    vocab_size = None
    eod = EOD

    def __init__(self, unique_identifiers, pad=None):
        self.unique_identifiers = unique_identifiers
        if pad is not None:
            self.pad = pad


def megatron_config(case, tokenizer, cache, options):
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    if "inter_document_masking" in options and "inter_document_masking" not in GPTDatasetConfig.__annotations__:
        pytest.skip("megatron-core before 0.19 has no inter_document_masking")
    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings = {
        "random_seed": case["seed"],
        "sequence_length": case["sequence_length"],
        "blend": (case.get("prefixes"), case.get("weights")),
        "split": case["split"],
        "path_to_cache": None if cache is None else str(cache),
        "mid_level_dataset_surplus": 0.005,
        "add_extra_token_to_sequence": case.get("add_extra_token", True),
        "drop_last_partial_validation_sequence": case.get("drop_last_partial_validation_sequence", True),
    }
    return GPTDatasetConfig(tokenizer=tokenizer, **{**dict.fromkeys(masks, False), **settings, **options})


def build_datasets(config, sizes):
    """Build the datasets of the splits as a job does."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset as MegatronGPTDataset

    return list(BlendedMegatronDatasetBuilder(MegatronGPTDataset, list(sizes), lambda: True, config).build())


@contextlib.contextmanager
def unchanged(folder):
    """Check that a reader leaves a cache alone."""
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    yield
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def assert_same_samples(ours, theirs):
    assert len(ours) == len(theirs)
    # Reset masks are square: some samples from either end say as much as all.
    for index in [*range(min(len(ours), 40)), *range(-min(len(ours), 10), 0)]:
        sample = ours[index]
        try:
            expected = theirs[index]
        except RuntimeError:  # more parts, empty ones among them, than cu_seqlens has room for
            assert sample["cu_seqlens"][-1] == len(sample["tokens"])
            continue
        assert sample.keys() == expected.keys()
        for name, values in expected.items():
            numbers = values if name == "dataset_id" else values.numpy()
            assert sample[name].dtype == numbers.dtype
            assert np.array_equal(sample[name], numbers), (index, name)


@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_golden_cache_is_a_hit_and_gives_the_same_samples(tmp_path, monkeypatch, cache, options):
    monkeypatch.chdir(cache.folder)
    shutil.copytree(cache.description_path.parent, tmp_path / "cache")
    description = json.loads(cache.description_path.read_bytes())
    tokenizer = Tokenizer((description["datasets"][0] if "datasets" in description else description)["tokenizer"])
    config = megatron_config(cache.case, tokenizer, tmp_path / "cache", options)
    with unchanged(tmp_path / "cache"):
        splits = build_datasets(config, cache.case["num_samples"])
    opener = BlendedDataset if "datasets" in description else GPTDataset
    path, samples = tmp_path / "cache" / cache.description_path.name, SampleOptions(eod_token=EOD, **options)
    ours = opener.open_cache(path, add_extra_token=cache.add_extra_token, options=samples)
    assert_same_samples(ours, splits[["train", "valid", "test"].index(cache.split)])


@pytest.mark.parametrize("extra", [True, False], ids=["extra-token", "no-extra-token"])
@pytest.mark.parametrize("keep_partial", [True, False], ids=["partial", "whole"])
@pytest.mark.parametrize("pad", [None, 3], ids=["no-pad", "pad"])
@pytest.mark.parametrize("masks", ["resets", "documents"])
@pytest.mark.parametrize("seed", range(3))
def test_random_documents_give_the_same_samples(tmp_path, extra, keep_partial, pad, masks, seed):
    """Documents without tokens, one-token documents, long ones; several epochs; indices that megatron-core builds."""
    from megatron.core.datasets.gpt_dataset import GPTDataset as MegatronGPTDataset
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronDataset
    from megatron.core.datasets.utils import Split

    rng = np.random.default_rng(seed)
    # Megatron's own assertion fails where it keeps a partial sample and the last document drawn has no tokens.
    lengths = rng.choice([1 if keep_partial else 0, 1, 2, 5, 17, 60], 30)
    prefix = write_dataset(tmp_path / "d", [[rng.integers(0, 20, length).tolist()] for length in lengths])
    case = {
        "seed": seed,
        "sequence_length": max(2, int(rng.integers(1, 12))),  # at 1, Megatron's C++ ends the process
        "prefixes": [prefix],
        "split": "0,1,0",
        "add_extra_token": extra,
        "drop_last_partial_validation_sequence": not keep_partial,
    }
    options = OPTIONS[masks] | ({"eod_mask_loss": True} if masks == "documents" else OPTIONS["no-loss-on-eod"])
    config = megatron_config(case, Tokenizer({}, pad), tmp_path / "cache", options)
    num_samples = int(rng.integers(1, 3 * lengths.sum() // case["sequence_length"]))
    part = (np.arange(len(lengths)), num_samples, Split.valid)
    theirs = MegatronGPTDataset(MegatronDataset(prefix), prefix, *part, config)
    indices = (theirs.document_index, theirs.sample_index, theirs.shuffle_index)
    samples = {"sequence_length": case["sequence_length"], "add_extra_token": extra}
    samples["options"] = SampleOptions(eod_token=EOD, pad_token=pad, **options)
    ours = GPTDataset(IndexedDataset(prefix), *indices, **samples)
    assert_same_samples(ours, theirs)
    for index in range(len(ours)):
        text, sequences = theirs._query_document_sample_shuffle_indices(index)[:2]
        parts = ours.parts(index)
        pieces = [ours.dataset.get(part.sequence, part.offset, part.num_tokens) for part in parts]
        assert np.concatenate([*pieces, text[sum(map(len, pieces)) :]]).tolist() == text.tolist()
        # Megatron names sequences too that give no token.
        visited = iter(sequences.tolist())
        assert all(part.sequence in visited for part in parts)
