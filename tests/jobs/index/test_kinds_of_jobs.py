"""Caches of other releases, programs and kinds of jobs."""

import json

import numpy as np
import pytest

from dsindex.errors import InputError, OutputError
from tests.jobs.index.index_jobs import described, index, indexed, options
from tests.support.datasets import write_dataset


def test_bigscience_layout_writes_its_names_beside_the_data(folder):
    report = indexed(
        layout="bigscience", split="3,1,0", data_cache_path=None, tokenizer_identifiers=None, final_epoch_threshold=0.95
    )
    train, _ = report.tasks
    names = {path.name for path in folder.iterdir() if "indexmap" in path.name}
    count = (265 * 40 * 3 // 4 * 5 // 2 - 1) // 30
    one_epoch = (265 * 10 - 1) // 30
    endings = ("doc_idx.npy", "sample_idx.npy", "shuffle_idx.npy", "dsindex.json")
    assert names == {f"web_train_indexmap_{count}ns_30sl_1234s_{ending}" for ending in endings} | {
        f"web_valid_indexmap_{one_epoch}ns_30sl_1234s_{ending}" for ending in endings
    }
    assert train.rule.threshold == 0.95
    assert len(np.load(folder / f"web_valid_indexmap_{one_epoch}ns_30sl_1234s_shuffle_idx.npy")) == one_epoch


def test_bigscience_blend_asks_each_dataset_with_one_rounding(folder):
    indexed(layout="bigscience", data_path=["1", "web", "2", "books"], split="1", epochs=None, num_samples="100,0,0")
    assert {path.name for path in folder.glob("*_doc_idx.npy")} == {
        "web_train_indexmap_34ns_30sl_1234s_doc_idx.npy",
        "books_train_indexmap_67ns_30sl_1234s_doc_idx.npy",
    }


MAXTEXT = {"layout": "maxtext", "tokenizer_identifiers": None, "epochs": None}


def test_maxtext_layout_has_megatrons_arrays_under_its_names(folder):
    report = indexed(**MAXTEXT, split="3,1", num_samples="900,50", dataset_path_as=[f"{folder}=/there"])
    indexed(split="3,1", num_samples="900,50,0", epochs=None, data_cache_path="core")
    for task, split in zip(report.tasks, ("train", "valid"), strict=True):
        for path in task.array_paths:
            name = path.rpartition("-")[2]
            [core] = folder.glob(f"core/*-{split}-{name}")
            assert core.read_bytes() == (folder / path).read_bytes()
    assert "mmap_npy grain_train_files='cache|web' grain_eval_files='cache|web' mmap_npy_split='3,1'" in report.notes[0]
    again = indexed(**MAXTEXT, split="3,1", num_samples="880,50")
    assert [result.reused for result in again.results] == [True, True], "a hash covers epochs, not samples"
    assert not report.descriptions


def test_maxtext_blend_has_its_order_in_the_folder(folder):
    report = indexed(**MAXTEXT, data_path=["1", "web", "2", "books"], num_samples="100")
    assert len(report.tasks) == 3
    assert "grain_train_files='cache|web,1.0;cache|books,2.0' blend_cache_dir='cache'" in report.notes[0]
    assert len(np.load(next((folder / "cache").glob("*-dataset_index.npy")))) == 100


@pytest.mark.parametrize(("given", "message"), [
    ({"data_cache_path": None}, "needs --data-path and --data-cache-path"),
    ({"data_path": ["web", "books"]}, "a weight before each of several"),
    ({"data_path": ["1", "web", "1", "books"], "num_samples": "none"}, "expected --num-samples for the blend"),
])  # fmt: skip
def test_maxtext_layout_refuses_what_maxtext_cannot_read(folder, given, message):
    with pytest.raises(InputError, match=message):
        indexed(**{**MAXTEXT, "num_samples": "100", **given})
    assert not (folder / "cache").exists()


def test_maxtext_layout_needs_documents_of_one_sequence(folder):
    write_dataset(folder / "several", [[[1, 2]], [], [[3]]])
    with pytest.raises(InputError, match=r"one sequence each, got 3 documents of 2 sequences"):
        indexed(**MAXTEXT, data_path=["several"], num_samples="1")


RELEASED = {
    "tokenizer_identifiers": None,
    "job_tokenizer": {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "gpt2"},
}


def test_flags_of_the_jobs_tokenizer_name_the_caches_of_its_release(folder):
    indexed(split="1", megatron_release="0.17", **RELEASED)
    (old,) = described(folder / "cache")
    assert list(old["tokenizer"])[2] == "vocab_file"
    wanted = options(split="1", **RELEASED)
    report = index(**wanted, megatron_release="0.19", explain=True)
    [finding] = report.findings
    assert "tokenizer: written by 0.16 or 0.17; the job is 0.19: chat_template" in finding.sentences
    index(**wanted, megatron_release="0.19")
    assert index(**wanted, megatron_release="0.18", explain=True).ok, "0.18 and 0.19 have the same names"


def test_description_of_another_release_is_said_so(folder):
    indexed(split="1", megatron_release="0.17", **RELEASED)
    [like] = map(str, (folder / "cache").glob("*description.txt"))
    alone = options(split="1", tokenizer_identifiers=None, like=like)
    with pytest.raises(
        InputError, match=r"expected a description that Megatron main wrote .* got one of 0\.16 or 0\.17"
    ):
        index(**alone, megatron_release="main")
    assert index(**alone, megatron_release="0.16", explain=True).ok
    indexed(split="1", like=like, megatron_release="main", **RELEASED)
    assert {"use_gigatoken" in each["tokenizer"] for each in described(folder / "cache")} == {True, False}


@pytest.mark.parametrize(("content", "message"), [
    (b"[]", "expected a JSON object, got another"), (b"{", "is not JSON"), (b'{"model_type": 3}', "got 3"),
    (None, "cannot be"),
])  # fmt: skip
def test_bad_metadata_of_a_tokenizer_is_refused(folder, content, message):
    if content is not None:
        (folder / "metadata.json").write_bytes(content)
    job = {**RELEASED["job_tokenizer"], "tokenizer_metadata": "metadata.json"}  # type: ignore[dict-item]
    with pytest.raises(InputError, match=message):
        indexed(tokenizer_identifiers=None, job_tokenizer=job, megatron_release="0.19")


def test_paths_are_read_from_the_files_that_megatron_reads(folder):
    (folder / "words.txt").write_text("0.9 web\n 0.1  books\n")
    together = options(data_path=None, data_args_path="words.txt", split="9,1", num_samples="100,10,0", epochs=None)
    written = {result.paths for result in index(**together).results}
    again = indexed(data_path=["0.9", "web", "0.1", "books"], split="9,1", num_samples="100,10,0", epochs=None)
    assert {result.paths for result in again.results} == written
    assert all(result.reused for result in again.results)
    (folder / "splits.json").write_text(
        json.dumps({"train": [0.5, "web", 0.5, "books"], "valid": "books", "test": None})
    )
    apart = options(data_path=None, per_split_data_args_path="splits.json", num_samples="100,10,0", epochs=None)
    written = {result.paths for result in index(**apart).results}
    flags = {"data_path": None, "train_data_path": [0.5, "web", 0.5, "books"], "valid_data_path": ["books"]}
    again = indexed(**flags, num_samples="100,10,0", epochs=None)
    assert {result.paths for result in again.results} == written


@pytest.mark.parametrize(("option", "content", "message"), [
    ("data_args_path", b" \n", "got an empty file"),
    ("data_args_path", b"\xff", "in UTF-8, got invalid start byte at byte 0"),
    ("data_args_path", None, "cannot be read"),
    ("per_split_data_args_path", b'{"train": ["web"]}', "which Megatron reads, got none called valid"),
    ("per_split_data_args_path", b'{"train": [[]], "valid": null, "test": null}', r"expected paths of train .*got"),
    ("per_split_data_args_path", b'{"train": "", "valid": null, "test": null}', "expected paths of train .*got ''"),
    ("per_split_data_args_path", b"3", "expected a JSON object"),
])  # fmt: skip
def test_bad_file_of_paths_is_refused(folder, option, content, message):
    if content is not None:
        (folder / "given").write_bytes(content)
    split = {"split": "1"} if option == "data_args_path" else {}
    with pytest.raises(InputError, match=rf"^given: .*{message}"):
        indexed(data_path=None, **{option: "given"}, **split)


def test_several_validation_sets_stay_apart(folder):
    paths = {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["web", "books"]}
    job = options(**paths, epochs=None, train_iters=4, global_batch_size=2, multiple_validation_sets=True)
    index(**{**job, "full_validation": True, "data_cache_path": str(folder / "all")})
    assert [(d["index_split"], d["num_samples"]) for d in described(folder / "all")].count(("valid", None)) == 2
    index(**{**job, "eval_interval": 2, "eval_iters": 1, "data_cache_path": str(folder / "some")})
    assert [(d["index_split"], d["num_samples"]) for d in described(folder / "some")].count(("valid", 6)) == 2
    assert not list(folder.glob("*/*Blended*"))


def test_fim_job_has_the_same_arrays_under_another_name(folder):
    indexed()
    indexed(dataset_class="GPTFIMDataset", data_cache_path=str(folder / "fim"))
    [ours] = (folder / "fim").glob("*-GPTFIMDataset-train-sample_index.npy")
    [plain] = (folder / "cache").glob("*-GPTDataset-train-sample_index.npy")
    assert ours.read_bytes() == plain.read_bytes()
    assert indexed(dataset_class="GPTFIMDataset", data_cache_path=str(folder / "fim"), explain=True).ok
    assert not indexed(dataset_class="GPTFIMDataset", explain=True).ok
    indexed(dataset_class="GPTFIMDataset", data_cache_path=None)
    assert list(folder.glob("web/cache/GPTFIMDataset_indices/*-description.txt"))


def test_caches_of_all_phases_are_built(folder):
    job = options(epochs=None, split="1", train_samples=90, global_batch_size=10, full_validation=True)
    index(**job, phase_transition_iterations="2,4")
    assert sorted(d["num_samples"] for d in described(folder / "cache")) == [20, 50]


def test_sequences_of_the_datasets_are_written_for_the_jobs_start(folder):
    job = options(data_path=["1", "web", "1", "books"], num_samples="9,0,0", epochs=None, split="1")
    job |= {
        "per_dataset_sequences_path": "cache/sequences.json",
        "dataset_path_as": [f"{name}=/x/{name}" for name in ("web", "books")],
    }
    assert index(**job, explain=True).findings[-1].sentences == (
        "there is no such file; leave out --explain to write it",
    )
    index(**job)
    written = json.loads((folder / "cache/sequences.json").read_text())
    assert written == {"/x/web": [240, 241], "/x/books": [60, 61]}
    assert index(**job, explain=True).ok
    assert any("already" in note for note in index(**job).notes)
    (folder / "cache/sequences.json").write_text('{"/x/web": [1, 2]}')
    [*_, finding] = index(**job, explain=True).findings
    assert finding.sentences == (
        "/x/web has [1, 2] and should have [240, 241]",
        "/x/books is missing, spelled as the job types it",
    )
    with pytest.raises(OutputError, match=r"should have \[240, 241\]; .* the file was not replaced"):
        index(**job)
    (folder / "cache/sequences.json").write_text("mine")
    with pytest.raises(OutputError, match="it was not replaced: move it away"):
        index(**job)
    assert (folder / "cache/sequences.json").read_text() == "mine"


@pytest.mark.parametrize(("release", "size", "dtype", "read"), [
    ("0.19", 65_500, "<i4", "uint16"), ("0.19", 65_536, "<i4", "uint16"), ("0.19", 65_537, "<i4", None),
    ("0.17", 65_536, "<i4", None), ("0.19", 65_499, "<u2", None), ("0.19", 70_000, "<u2", "int32"),
])  # fmt: skip
def test_vocabulary_whose_tokens_a_fast_start_misreads_is_refused(folder, release, size, dtype, read):
    """From 65,500 tokens on Megatron writes int32; up to 65,536 a job with the file reads uint16."""
    write_dataset(folder / "wide", [[[1] * 500]], dtype=np.dtype(dtype))
    job = options(data_path=["wide"], split="1", tokenizer_identifiers=None, megatron_release=release)
    job |= {
        "job_tokenizer": {"tokenizer_type": "NullTokenizer", "vocab_size": size},
        "per_dataset_sequences_path": "s.json",
    }
    if read is None:
        index(**job)
        assert (folder / "s.json").exists()
        return
    with pytest.raises(InputError, match=rf"wide: its tokens are \w+, and a job .* reads them as {read}, as its toke"):
        index(**job)
    assert f"reads them as {read}" in index(**job, explain=True).findings[-1].sentences[0]
    assert not (folder / "s.json").exists()


def test_vocabulary_is_known_from_the_manifest(folder):
    write_dataset(folder / "wide", [[[1] * 500]], dtype=np.dtype("<i4"))
    job = options(data_path=["wide"], split="1", per_dataset_sequences_path="s.json")
    (folder / "wide.manifest.json").write_text('{"tokenizer": {"vocabulary_size": 65510}}')
    with pytest.raises(InputError, match="as its tokenizer has 65510 tokens"):
        index(**job)
    (folder / "wide.manifest.json").write_text("{")
    index(**job)


def test_caches_of_nemo_automodel_have_the_tokenizers_name(folder):
    job = options(data_path=["1", "web", "1", "books"], num_samples="9,0,0", epochs=None, split="1")
    job |= {"tokenizer_identifiers": None, "megatron_release": "nemo-automodel"}
    index(**job, job_tokenizer={"tokenizer_model": "openai-community/gpt2"})
    [blend] = [each for each in described(folder / "cache") if each["class"] == "BlendedDataset"]
    assert list(blend.items())[-1] == ("tokenizer", "openai-community/gpt2")
    keys = ["class", "dataset_path", "num_samples", "index_split", "tokenizer", "random_seed", "sequence_length"]
    assert [list(each) for each in blend["datasets"]] == [[*keys, "split", "split_matrix"]] * 2
    [like] = map(str, (folder / "cache").glob("*Blended*description.txt"))
    assert index(**{**job, "megatron_release": None, "like": like, "explain": True}).ok
    alone = {"explain": True, "like": like, "data_cache_path": "cache", "seq_length": None}
    assert index(**alone).ok
    changed = index(**{**job, "megatron_release": None, "explain": True, "tokenizer_identifiers": "identifiers.json"})
    assert any("tokenizer is 'openai-community/gpt2'" in text for f in changed.findings for text in f.sentences)
    with pytest.raises(InputError, match="needs --tokenizer-model, the tokenizer's name_or_path"):
        index(**job, job_tokenizer={"tokenizer_type": "x"})


def test_single_weighted_dataset_is_no_blend_for_nemo_automodel(folder):
    job = options(data_path=["0.5", "web"], split="9,1", num_samples="9,none", epochs=None, tokenizer_identifiers=None)
    index(**job, megatron_release="nemo-automodel", job_tokenizer={"tokenizer_model": "openai-community/gpt2"})
    found = {(each["class"], each["num_samples"]) for each in described(folder / "cache")}
    assert found == {("GPTDataset", 9), ("GPTDataset", None)}
