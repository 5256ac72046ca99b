"""Readers of other trainers open our datasets and exports with their own code and return our tokens.

Grain, datatrove (which nanotron reads with) and OLMo-core are packages; MAXTEXT and TORCHTITAN name checkouts.
"""

from __future__ import annotations

import importlib
import os
import pickle
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.datasets import BlendedDataset, GPTDataset, IndexedDataset
from tests.peers.three_datasets import NAMES, write_three_datasets
from tests.support.datasets import write_dataset
from tests.support.golden import DATASETS

MAXTEXT = Path(os.environ.get("MAXTEXT", "/none")) / "src" / "maxtext"
JOBS = int(os.environ.get("DSINDEX_PEER_JOBS", "60"))


@pytest.fixture(scope="module")
def maxtext():
    """MaxText's reader, without the rest of the package, which needs JAX."""
    pytest.importorskip("grain")
    if not (MAXTEXT / "input_pipeline" / "_mmap_datasource.py").is_file():
        pytest.skip("MAXTEXT names no checkout of MaxText with Megatron's datasets")
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in (("maxtext", MAXTEXT), ("maxtext.input_pipeline", MAXTEXT / "input_pipeline")):
            package = ModuleType(name)
            package.__path__ = [str(folder)]
            patch.setitem(sys.modules, name, package)
        yield importlib.import_module("maxtext.input_pipeline._mmap_datasource")


def keep_all(dataset, *_):
    """MaxText's transformations for one host."""
    return dataset


def draw_job(rng):
    names = rng.sample(NAMES, rng.randrange(1, 4))
    return {
        "names": names,
        "weights": [rng.choice([3.0, 0.5, 7.0]) for _ in names],
        "split": rng.choice([None, "90, 10", "0.8,0.2", "9,1", "7"]),
        "sizes": (rng.randrange(5, 400), rng.randrange(1, 9)),
        "length": rng.choice([16, 30]),
        "seed": rng.randrange(99),
    }


def test_maxtext_finds_caches_made_ahead(maxtext, data, tmp_path, capsys):
    rng = random.Random(os.environ.get("DSINDEX_PEER_SEED", "7"))
    for number in range(JOBS):
        job, cache = draw_job(rng), tmp_path / str(number)
        prefixes = [str(data / name) for name in job["names"]]
        words = [word for pair in zip(map(str, job["weights"]), prefixes, strict=True) for word in pair]
        flags = ["--data-path", *(words if len(prefixes) > 1 else prefixes), "--data-cache-path", str(cache)]
        flags += ["--seed", str(job["seed"]), "--seq-length", str(job["length"]), "--executor", "local"]
        flags += [] if job["split"] is None else ["--split", job["split"]]
        assert main(["index", "--layout", "maxtext", *flags, "--num-samples", ",".join(map(str, job["sizes"]))]) == 0
        assert "grain_file_type=mmap_npy" in capsys.readouterr().out
        spec = ";".join(f"{cache}|{p},{w}" for p, w in zip(prefixes, job["weights"], strict=True))
        before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
        for split in range(2 if job["split"] and "," in job["split"] else 1):
            read = maxtext.get_mmap_npy_dataset(
                spec if len(prefixes) > 1 else f"{cache}|{prefixes[0]}",
                split_sentences=False, seq_length=job["length"], eod_id=0, num_epoch=1, host_index=0, host_count=1,
                num_threads=1, prefetch_buffer_size=1, blend_cache_dir=str(cache), blend_index_dir=None,
                blend_split=("train", "eval")[split], apply_transforms=keep_all, num_samples=job["sizes"][split],
                seed=job["seed"], split=job["split"], split_index=split,
            )  # fmt: skip
            assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before, job
            ours = megatron_samples(
                words if len(prefixes) > 1 else prefixes, job, split, tmp_path / f"{number}-{split}"
            )
            theirs = [each["text"].tolist() for each in read] if len(prefixes) > 1 else [
                read[at]["text"].tolist() for at in range(len(read))
            ]  # fmt: skip
            assert len(theirs) == (job["sizes"][split] if len(prefixes) > 1 else len(ours))
            assert theirs == ours[: len(theirs)]


def megatron_samples(paths, job, split, cache):
    """What dsindex reads from Megatron's caches for the same job."""
    sizes = ["0", "0", "0"]
    sizes[split] = str(job["sizes"][split])
    flags = ["--data-path", *paths, "--seq-length", str(job["length"]), "--seed", str(job["seed"])]
    flags += ["--split", job["split"] or "1", "--num-samples", ",".join(sizes), "--data-cache-path", str(cache)]
    assert main(["index", *flags, "--executor", "local"]) == 0
    name = ("train", "valid")[split]
    samples: Any
    if len(paths) > 1:
        [description] = cache.glob(f"*-BlendedDataset-{name}-description.txt")
        samples = BlendedDataset.open_cache(description)
    else:
        [description] = cache.glob(f"*-{name}-description.txt")
        samples = GPTDataset.open_cache(description)
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in samples]


@pytest.mark.parametrize("several", [False, True])
def test_maxtext_maps_the_files_as_they_are(maxtext, tmp_path, several):
    documents = [[[1, 2], [3]] if several else [[1, 2, 3]], [[4, 5]], [[6, 7, 8, 9]]]
    prefix = write_dataset(tmp_path / "x", documents)
    source = maxtext.create_mmap_source(prefix, several, 3, 0)
    assert [each["text"].tolist() for each in source] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_maxtext_refuses_what_index_refuses(maxtext, tmp_path, capsys):
    prefix = write_dataset(tmp_path / "x", [[[1, 2, 3]], [], [[4, 5]]])
    flags = ["--data-path", prefix, "--seq-length", "2", "--num-samples", "2", "--data-cache-path", str(tmp_path / "c")]
    assert main(["index", "--layout", "maxtext", *flags, "--executor", "local"]) == 1
    assert "expected documents of one sequence each, got 3 documents of 2 sequences" in capsys.readouterr().err
    with pytest.raises((ValueError, IndexError)):
        maxtext.create_mmap_npy_source(f"{tmp_path}|{prefix}", 0, 2, False, num_samples=2)


def test_grain_reads_our_classes_in_workers(tmp_path):
    grain = pytest.importorskip("grain")
    write_three_datasets(tmp_path)
    documents = IndexedDataset(tmp_path / "web")
    read = grain.MapDataset.source(documents).map(np.ndarray.tolist)
    assert list(read) == [tokens.tolist() for tokens in documents]
    main(["index", "--data-path", str(tmp_path / "web"), "--seq-length", "16", "--num-samples", "50", "--split", "1",
          "--data-cache-path", str(tmp_path / "c"), "--executor", "local"])  # fmt: skip
    [description] = (tmp_path / "c").glob("*-train-description.txt")
    samples = GPTDataset.open_cache(description)
    wanted = sorted(sample["tokens"].tolist() for sample in samples)
    sampler = grain.samplers.IndexSampler(len(samples), num_epochs=1, shuffle=True, seed=3)
    loader = grain.DataLoader(data_source=samples, sampler=sampler, worker_count=2)
    assert sorted(sample["tokens"].tolist() for sample in loader) == wanted
    assert pickle.loads(pickle.dumps(samples))[3]["tokens"].tolist() == samples[3]["tokens"].tolist()  # noqa: S301
    shuffled = (
        grain.MapDataset.source(samples)
        .shuffle(seed=1)
        .to_iter_dataset()
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    )
    assert sorted(sample["tokens"].tolist() for sample in shuffled) == wanted


@pytest.mark.parametrize("kind", ["documents", "samples", "blend"])
def test_torchtitan_reads_our_classes_as_a_source(tmp_path, kind):
    """Its ranks share the samples, each in its own order, which is Grain's."""
    grain = pytest.importorskip("grain")
    folder = Path(os.environ.get("TORCHTITAN", "/none")) / "torchtitan"
    if not (folder / "components" / "data" / "dataset.py").is_file():
        pytest.skip("TORCHTITAN names no checkout of torchtitan with Grain's datasets")
    write_three_datasets(tmp_path)
    paths = ["3", str(tmp_path / "web"), "1", str(tmp_path / "books")] if kind == "blend" else [str(tmp_path / "web")]
    source: Any = IndexedDataset(tmp_path / "web")
    if kind != "documents":
        assert main(["index", "--data-path", *paths, "--seq-length", "16", "--num-samples", "50", "--split", "1",
                     "--data-cache-path", str(tmp_path / "c"), "--executor", "local"]) == 0  # fmt: skip
        pattern = "*-BlendedDataset-train-description.txt" if kind == "blend" else "*-train-description.txt"
        [description] = (tmp_path / "c").glob(pattern)
        source = (BlendedDataset if kind == "blend" else GPTDataset).open_cache(description)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder.parent))
        name = "torchtitan.components.data"  # without the rest of the package, which needs its trainer
        package = ModuleType(name)
        package.__path__ = [str(folder / "components" / "data")]
        patch.setitem(sys.modules, name, package)
        module = importlib.import_module(f"{name}.dataset")
        types = importlib.import_module(f"{name}.types")

    class Source:
        def build(self, **_):
            return source

    context = types.DatasetBuildContext(
        tokenizer=None, max_context_length=16, num_tokens_per_batch=16, read_options=grain.ReadOptions()
    )
    read = []
    for rank in range(2):
        policy = types.DatasetIterationPolicy(
            seed=1, shuffle=False, repeat=False, dp_rank=rank, dp_world_size=2, streaming_shuffle_buffer_size=1
        )
        read += list(
            module.SingleDatasetConfig(source=Source()).build(context=context, dataset_iteration_policy=policy)
        )
    assert list(map(tokens_of, read)) == [tokens_of(source[number]) for number in range(len(source))]


def tokens_of(sample):
    return (sample["tokens"] if isinstance(sample, dict) else sample).tolist()


@pytest.fixture(scope="module")
def olmo():
    """Modules of OLMo-core, which sets variables of this process."""
    pytest.importorskip("torch")
    data = pytest.importorskip("olmo_core.data")
    importlib.import_module("olmo_core.data.composable.numpy_document_source")
    return data


EOD_SETS = [prefix for prefix in DATASETS if prefix.name in {"eod_text_document", "sentences_text_document", "merged"}]
TYPES = [np.uint8, np.uint16, np.int32, np.int64]


def exported(folder, prefix, trainer, dtype=None):
    """Export a copy of a dataset that Megatron-LM wrote; give its prefix, documents with tokens, and settings."""
    source = IndexedDataset(prefix)
    limit = 256 if dtype is np.uint8 else 1 << 31
    documents = [
        [[token % limit for token in source[at].tolist()] for at in source.document_sequences(number)]
        for number in range(source.num_documents)
    ]
    there = Path(write_dataset(folder / "copy", documents, dtype=dtype or source.dtype))
    result = dsindex.export(there, trainer=trainer)
    flat = [[token for sequence in document for token in sequence] for document in documents]
    return there, [document for document in flat if document], result


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("prefix", DATASETS, ids=str)
def test_olmo_core_reads_tokens_and_borders(olmo, tmp_path, prefix, dtype):
    utils = olmo.utils
    there, documents, result = exported(tmp_path, prefix, "olmo", dtype)
    kind = getattr(np, olmo.NumpyDatasetDType(result.settings[0].rpartition(".")[2]))
    path = f"{there}.npy"
    borders = list(utils.iter_document_indices(path, use_array_if_local=False, dtype=kind))
    assert [utils.load_array_slice(path, *border, kind).tolist() for border in borders] == documents
    flat = [token for document in documents for token in document]
    read = olmo.NumpyFSLDataset(path, sequence_length=8, pad_token_id=0, eos_token_id=0, vocab_size=1 << 17, dtype=kind)
    read.work_dir = tmp_path / "work"
    assert [token for each in range(len(read)) for token in read[each]["input_ids"].tolist()] == flat[: len(read) * 8]
    assert len(read) == len(flat) // 8


@pytest.mark.parametrize("prefix", EOD_SETS, ids=str)
def test_composable_sources_of_olmo_core_read_the_documents(olmo, tmp_path, prefix):
    """They take every end-of-document token for an end, also one within a text."""
    there, documents, _ = exported(tmp_path, prefix, "olmo")
    flat = [token for document in documents for token in document]
    eod = flat[-1]
    assert {document[-1] for document in documents} == {eod}
    config = olmo.TokenizerConfig(vocab_size=1 << 16, eos_token_id=eod, pad_token_id=eod)
    kind = np.uint16 if IndexedDataset(there).dtype == np.uint16 else np.uint32
    source = olmo.composable.numpy_document_source.NumpyDocumentSource(
        source_paths=[f"{there}.npy"], dtype=kind, work_dir=tmp_path, tokenizer=config
    )
    offsets = list(source.get_document_offsets())
    assert [token for each in offsets for token in source.get_token_range(*each)["input_ids"].tolist()] == flat
    assert [end - 1 for _, end in offsets] == [place for place, token in enumerate(flat) if token == eod]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("prefix", DATASETS, ids=str)
def test_datatrove_reads_tokens_and_positions_for_nanotron(tmp_path, prefix, dtype):
    pytest.importorskip("torch")
    reading = pytest.importorskip("datatrove.utils.dataset")
    there, documents, result = exported(tmp_path, prefix, "nanotron", dtype)
    read = reading.DatatroveFolderDataset(
        f"{there}_nanotron",
        seq_len=8,
        filename_pattern="*.ds",
        recursive=False,
        token_size=int(result.settings[1].split()[1]),
        shuffle=True,
        return_positions=True,
    )
    flat = [token for document in documents for token in document]
    positions = [place for document in documents for place in range(len(document))]
    assert len(read) == len(flat) // 9
    for number in range(len(read)):
        window = slice(number * 9, number * 9 + 9)
        assert read[number]["input_ids"].tolist() == flat[window]
        begin = positions[window].index(0) if 0 in positions[window] else 9
        wanted = [*range(begin), *positions[window][begin:]]  # datatrove counts from the window's begin
        assert read[number]["positions"].tolist() == wanted
