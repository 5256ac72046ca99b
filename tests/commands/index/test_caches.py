"""The caches of a job, byte for byte: names, descriptions and records, for every release, program and kind of job."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.render import describe
from dsindex.errors import DsindexError, InputError
from tests.commands.index.index_jobs import index, indexed, options, read_descriptions
from tests.support.datasets import write_dataset
from tests.support.golden import golden_cases


@pytest.mark.parametrize("golden", golden_cases().values(), ids=golden_cases())
def test_golden_caches_come_out_byte_for_byte(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(golden.folder)  # dataset_path is the prefix as typed
    case = golden.case
    words = case["prefixes"]
    if case.get("weights"):
        words = [str(word) for pair in zip(case["weights"], words, strict=True) for word in pair]
    like = next(name for name in sorted(case["files"]) if name.endswith("description.txt"))
    index(
        data_path=words, seq_length=case["sequence_length"],
        num_samples=["none" if count is None else count for count in case["num_samples"]], split=case["split"],
        seed=case["seed"], data_cache_path=str(tmp_path), like=str(golden.cache / like),
        no_extra_token=not case.get("add_extra_token", True),
        keep_partial_validation=not case.get("drop_last_partial_validation_sequence", True),
    )  # fmt: skip
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-dsindex.json")}
    assert written == {name: (golden.cache / name).read_bytes() for name in case["files"]}


def test_blend_without_cache_folder_goes_beside_each_dataset_and_the_blend_is_not_written(folder):
    report = indexed(data_path=["web", "books"], epochs=None, num_samples="none", data_cache_path=None, split="1")
    for name in ("web", "books"):
        assert len(list((folder / name / "cache" / "GPTDataset_indices").glob("*.npy"))) == 3
    assert not list(folder.rglob("*Blended*"))
    assert any("caches blends only with --data-cache-path" in note for note in report.notes)


def test_paths_per_split_have_no_split_in_the_description(folder):
    paths = {"train_data_path": ["0.5", "web", "0.5", "books"], "valid_data_path": ["1", "books"]}
    indexed(data_path=None, **paths, epochs=None, num_samples="100,9")
    descriptions = read_descriptions(folder / "cache")
    # A single weighted prefix is no blend with a path for each split.
    assert Counter(d["class"] for d in descriptions) == {"GPTDataset": 3, "BlendedDataset": 1}
    assert all(d["split"] is d["split_matrix"] is None for d in descriptions if d["class"] == "GPTDataset")


def test_like_takes_settings_from_a_description_and_flags_win(folder):
    indexed(seed=7, split="3,1", epochs=None, num_samples="40,none,none")
    (like,) = (folder / "cache").glob("*train-description.txt")
    from_like = {"like": str(like), "seq_length": None, "tokenizer_identifiers": None}
    indexed(**from_like, seed=8, epochs=None, num_samples="40", data_cache_path="other")
    assert {d["random_seed"] for d in read_descriptions(folder / "other")} == {8}
    assert {d["sequence_length"] for d in read_descriptions(folder / "other")} == {30}


def test_same_job_again_leaves_its_caches_alone_until_the_lengths_change(folder):
    indexed(split="1")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "cache").iterdir()}
    assert all(result.reused for result in indexed(split="1").results)
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (folder / "cache").iterdir()} == before
    os.utime(folder / "web.idx")
    assert indexed(split="1", explain=True).ok, "the same lengths, only touched"
    write_dataset(folder / "web", [[[1] * length] for length in [50, 20, 60, 30, 100, 5] * 40])
    report = indexed(split="1", explain=True)
    assert not report.ok
    text = "\n".join(describe(report))
    assert "web.idx changed since the cache was built (its sequences 0 to 240 have other lengths" in text
    (result,) = indexed(split="1").results
    assert not result.reused, "the description, and so every name, is the same"
    changed = [n for n, (_, content) in before.items() if (folder / "cache" / n).read_bytes() != content]
    assert any("sample_index" in name for name in changed)


def test_caches_that_do_not_fit_into_memory_together_are_built_one_after_the_other(folder, monkeypatch):
    monkeypatch.setattr("dsindex.commands.index.available_memory", lambda: 200 << 20)
    assert len(indexed().results) == 3
    assert len(list((folder / "cache").glob("*description.txt"))) == 3


OF_JOB = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "gpt2"}
RELEASED = {"tokenizer_identifiers": None, "job_tokenizer": OF_JOB}


def test_flags_of_the_jobs_tokenizer_name_the_caches_of_its_release(folder):
    indexed(split="1", megatron_release="0.17", **RELEASED)
    (old,) = read_descriptions(folder / "cache")
    assert list(old["tokenizer"])[2] == "vocab_file"
    job = options(split="1", **RELEASED)
    report = index(**job, megatron_release="0.19", explain=True)
    [finding] = report.findings
    assert any("chat_template is absent in the cache" in sentence for sentence in finding.sentences)
    index(**job, megatron_release="0.19")
    assert index(**job, megatron_release="0.18", explain=True).ok, "0.18 and 0.19 have the same names"


def test_paths_are_read_from_the_files_that_megatron_reads(folder):
    (folder / "words.txt").write_text("0.9 web\n 0.1  books\n")
    together = options(data_path=None, data_args_path="words.txt", split="9,1", num_samples="100,10,0", epochs=None)
    written = {result.paths for result in index(**together).results}
    report = indexed(data_path=["0.9", "web", "0.1", "books"], split="9,1", num_samples="100,10,0", epochs=None)
    assert {result.paths for result in report.results} == written
    assert all(result.reused for result in report.results)
    splits = {"train": [0.5, "web", 0.5, "books"], "valid": "books", "test": None}
    (folder / "splits.json").write_text(json.dumps(splits))
    apart = options(data_path=None, per_split_data_args_path="splits.json", num_samples="100,10,0", epochs=None)
    written = {result.paths for result in index(**apart).results}
    flags = {"data_path": None, "train_data_path": [0.5, "web", 0.5, "books"], "valid_data_path": ["books"]}
    report = indexed(**flags, num_samples="100,10,0", epochs=None)
    assert {result.paths for result in report.results} == written


@pytest.mark.parametrize(("option", "content", "message"), [
    ("data_args_path", b" \n", "an empty file has no words"),
    ("data_args_path", b"\xff", "these are not the words of --data-path .*invalid start byte"),
    ("per_split_data_args_path", b'{"train": ["web"]}', ".*missing required field `valid`"),
    ("per_split_data_args_path", b'{"train": [[]], "valid": null, "test": null}', "Expected .*, got"),
])  # fmt: skip
def test_bad_file_of_paths_is_refused(folder, option, content, message):
    (folder / "given").write_bytes(content)
    split = {"split": "1"} if option == "data_args_path" else {}
    with pytest.raises(InputError, match=rf"^given: .*{message}"):
        indexed(data_path=None, **{option: "given"}, **split)


def test_several_validation_sets_stay_apart(folder):
    paths = {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["web", "books"]}
    job = options(**paths, epochs=None, train_iters=4, global_batch_size=2, multiple_validation_sets=True)
    index(**{**job, "full_validation": True, "data_cache_path": str(folder / "all")})
    assert [(d["index_split"], d["num_samples"]) for d in read_descriptions(folder / "all")].count(("valid", None)) == 2
    index(**{**job, "eval_interval": 2, "eval_iters": 1, "data_cache_path": str(folder / "some")})
    assert [(d["index_split"], d["num_samples"]) for d in read_descriptions(folder / "some")].count(("valid", 6)) == 2
    assert not list(folder.glob("*/*Blended*"))


def test_fim_job_has_the_same_arrays_under_another_name(folder):
    indexed()
    indexed(fim_data=True, data_cache_path=str(folder / "fim"))
    [ours] = (folder / "fim").glob("*-GPTFIMDataset-train-sample_index.npy")
    [plain] = (folder / "cache").glob("*-GPTDataset-train-sample_index.npy")
    assert ours.read_bytes() == plain.read_bytes()
    assert indexed(fim_data=True, data_cache_path=str(folder / "fim"), explain=True).ok
    assert not indexed(fim_data=True, explain=True).ok
    indexed(fim_data=True, data_cache_path=None)
    assert list(folder.glob("web/cache/GPTFIMDataset_indices/*-description.txt"))


def test_caches_for_maxtext_have_its_hash_and_the_fixed_names_of_its_blend(folder):
    write_dataset(folder / "books", [[[1] * 40, [2] * 9]] * 20)
    job = {"reader": "maxtext", "seq_length": 30, "data_cache_path": "cache"}
    report = index(**job, data_path=["2", "web", "1", "books"], num_samples=300)
    hashed = (
        '{\n    "class": "MegatronNpyDataSource",\n    "input_paths": [\n        "books"\n    ],\n'
        '    "num_epochs": 4,\n    "separate_final_epoch": true,\n    "seed": 0,\n    "sequence_length": 30,\n'
        '    "split": null,\n    "split_index": 0,\n    "add_extra_token": 1\n}'
    )
    stem = folder / "cache" / hashlib.md5(hashed.encode()).hexdigest()
    assert Path(f"{stem}-description.txt").read_text() == hashed
    assert sorted(np.load(f"{stem}-document_index.npy").tolist()) == sorted([*range(20)] * 4)  # documents
    assert len(np.load(folder / "cache" / "dataset_index.npy")) == 300
    assert [result.name for result in report.results][-1] == "blend of 2, split train"
    assert dsindex.inspect("cache").facts["samples"] == 300
    samples = dsindex.open("cache")
    parts = samples.trace(next(number for number in range(300) if samples.dataset_index[number] == 1)).parts
    assert sum(part.num_tokens for part in parts) == 31
    assert dsindex.verify("books", cache="cache").ok
    with pytest.raises(DsindexError, match="--reader and --megatron-release cannot be combined"):
        index(**job, data_path="web", num_samples=300, megatron_release="0.19", job_tokenizer={})
    with pytest.raises(DsindexError, match="MaxText needs a weight for each"):
        index(**job, data_path=["web", "books"], num_samples=300)


def test_counts_of_datasets_are_written_as_by_megatrons_script(folder):
    path = folder / "counts.json"
    flags = {"dataset_path_as": "=/lustre/", "per_dataset_sequences_path": str(path)}
    job = {"data_path": ["1", "web", "2", "books"], "num_samples": "9,0,0", "epochs": None, "split": "1"}
    assert indexed(**flags, **job).notes[-1].startswith(f"{path} has the counts")
    # Sequences, and boundaries of documents: what `_IndexReader.document_count` has.
    assert path.read_text() == '{"/lustre/web": [240, 241], "/lustre/books": [60, 61]}'
    assert indexed(**flags, **job, explain=True).ok
    write_dataset(folder / "books", [[[1] * 5]])
    assert "other counts" in indexed(**flags, **job, explain=True).findings[-1].sentences[0]
    with pytest.raises(DsindexError, match=r"counts\.json: exists already, with other content"):
        dsindex.mix({"books": "rest"}, per_dataset_sequences_path=path, seq_length=2, split="1")
    path.unlink()
    mixture = dsindex.mix({"books": "rest"}, per_dataset_sequences_path=path, seq_length=2, split="1")
    assert mixture.flags[-1] == f"--per-dataset-sequences-path {path}"
    assert path.read_text() == '{"books": [1, 2]}'
    write_dataset(folder / "books", [[[1] * 5]], dtype=np.int64)
    with pytest.raises(DsindexError, match="Megatron cannot read books with it: int64 tokens"):
        dsindex.mix({"books": "rest"}, per_dataset_sequences_path=folder / "b.json", seq_length=2, split="1")
