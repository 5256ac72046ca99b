"""`dsindex index`: Megatron's golden caches byte for byte, the records beside them, refusals, explanations."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsindex.errors import DsindexError, InputError, LimitError, OutputError
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, SHARED_GOLDEN
from workflows.execution.choice import make_executor
from workflows.jobs.index import IndexReport, describe_index, run_index
from workflows.options.index import IndexConfig


def index(**options: Any) -> IndexReport:
    config = IndexConfig(**{"executor": "local", "workers": 2, **options})
    executor = make_executor(config)
    try:
        return run_index(config, executor=executor)
    finally:
        executor.close()


def golden_cases() -> list[Any]:
    cases = []
    for folder in (GOLDEN, SHARED_GOLDEN):
        path = folder / "gpt_index_cases.json"
        owner = "own" if folder == GOLDEN else "shared"
        found = json.loads(path.read_bytes()) if path.exists() else []
        cases += [pytest.param(folder, case, id=f"{owner}-{case['name']}") for case in found]
    return cases


@pytest.mark.parametrize(("folder", "case"), golden_cases())
def test_golden_caches_come_out_byte_for_byte(
    folder: Path, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_and_compare(folder, case, tmp_path, monkeypatch, "local")


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_other_executors_write_the_same_files(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_instance")
    cases = json.loads((GOLDEN / "gpt_index_cases.json").read_bytes())
    case = next(case for case in cases if "blend" in case["name"])
    build_and_compare(GOLDEN, case, tmp_path, monkeypatch, executor)


def build_and_compare(
    folder: Path, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    monkeypatch.chdir(folder)  # dataset_path is the prefix as typed
    golden = folder / "cache" / case["name"]
    weights = case.get("weights")
    words = (
        [str(w) for pair in zip(weights, case["prefixes"], strict=True) for w in pair] if weights else case["prefixes"]
    )
    like = next(name for name in sorted(case["files"]) if name.endswith("description.txt"))
    report = index(
        executor=executor,
        data_path=words,
        seq_length=case["sequence_length"],
        num_samples=["none" if count is None else count for count in case["num_samples"]],
        split=case["split"],
        seed=case["seed"],
        data_cache_path=str(tmp_path),
        like=str(golden / like),
        no_extra_token=not case.get("add_extra_token", True),
        keep_partial_validation=not case.get("drop_last_partial_validation_sequence", True),
    )
    written = sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith("-dsindex.json"))
    assert written == sorted(case["files"])
    for name in written:
        assert (tmp_path / name).read_bytes() == (golden / name).read_bytes(), name
    assert len(report.results) == len(report.tasks) > 0


IDENTIFIERS = {"class": "tests.Tokenizer", "tokenizer_path": ["gpt2"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two datasets `web` and `books`, and a tokenizer's identifiers, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "web", [[[1] * length] for length in [20, 50, 60, 30, 100, 5] * 40])
    write_dataset(tmp_path / "books", [[[1] * length] for length in [500, 0, 1] * 20])
    (tmp_path / "identifiers.json").write_text(json.dumps(IDENTIFIERS))
    return tmp_path


@pytest.mark.parametrize("option", ["like", "tokenizer_identifiers"])
def test_json_that_nests_without_end_is_refused(folder: Path, option: str) -> None:
    (folder / "deep.json").write_text("[" * 200_000)
    with pytest.raises(DsindexError, match=r"deep\.json: expected .*, got a file that is not JSON \(maximum recursion"):
        index(**options(**{"tokenizer_identifiers": None, option: "deep.json"}))


def options(**changes: Any) -> dict[str, Any]:
    """Options of a small job; a change to None leaves an option out."""
    chosen = {
        "data_path": ["web"],
        "seq_length": 30,
        "epochs": "2.5",
        "data_cache_path": "cache",
        "tokenizer_identifiers": "identifiers.json",
        **changes,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def described(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*description.txt"))]


def test_epochs_become_a_number_of_samples_in_the_description(folder: Path) -> None:
    report = index(**options(split="1"))
    (description,) = described(folder / "cache")
    assert description["num_samples"] == (265 * 40 * 5 // 2 - 1) // 30
    assert description["tokenizer"] == IDENTIFIERS
    (result,) = report.results
    assert result.num_epochs == 3
    assert all(map(os.path.isfile, result.paths))
    assert Path(result.paths[0]).name.endswith("-GPTDataset-train-description.txt")


def test_default_split_is_megatrons_and_valid_and_test_get_one_epoch(folder: Path) -> None:
    index(**options())
    descriptions = {d["index_split"]: d for d in described(folder / "cache")}
    assert descriptions["valid"]["num_samples"] is descriptions["test"]["num_samples"] is None
    assert descriptions["train"]["split"] == "969, 30, 1"
    assert descriptions["train"]["random_seed"] == 1234


def test_blend_without_cache_folder_goes_beside_each_dataset_and_the_blend_is_not_written(folder: Path) -> None:
    report = index(
        **options(data_path=["web", "books"], epochs=None, num_samples="none", data_cache_path=None, split="1")
    )
    for name in ("web", "books"):
        assert len(list((folder / name / "cache" / "GPTDataset_indices").glob("*.npy"))) == 3
    assert not list(folder.rglob("*Blended*"))
    assert any("caches blends only with --data-cache-path" in note for note in report.notes)


def test_paths_per_split_have_no_split_in_the_description(folder: Path) -> None:
    index(
        **options(
            data_path=None,
            train_data_path=["0.5", "web", "0.5", "books"],
            valid_data_path=["1", "books"],
            epochs=None,
            num_samples="100,9",
        )
    )
    descriptions = described(folder / "cache")
    # A single weighted prefix is no blend with a path for each split.
    assert Counter(d["class"] for d in descriptions) == {"GPTDataset": 3, "BlendedDataset": 1}
    assert all(d["split"] is d["split_matrix"] is None for d in descriptions if d["class"] == "GPTDataset")


def test_training_length_is_counted_by_megatrons_rule(folder: Path) -> None:
    index(**options(epochs=None, train_iters=50, global_batch_size=4, eval_interval=25, eval_iters=2, split="8,1,1"))
    counts = {d["index_split"]: d["num_samples"] for d in described(folder / "cache")}
    assert counts == {"train": 200, "valid": 24, "test": 8}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["/lustre/web", "/lustre/books"], {"/lustre/web", "/lustre/books"}),
        (["we=/scratch/we"], {"/scratch/web", "books"}),
        (["web=/a/w", "books=/b"], {"/a/w", "/b"}),
    ],
    ids=["one-each", "beginning", "mapping"],
)
def test_dataset_path_as_is_what_the_job_types(folder: Path, given: list[str], expected: set[str]) -> None:
    index(
        **options(data_path=["1", "web", "1", "books"], dataset_path_as=given, epochs=None, num_samples="50", split="1")
    )
    paths = {d["dataset_path"] for d in described(folder / "cache") if d["class"] == "GPTDataset"}
    assert paths == expected


def test_without_identifiers_plain_names_are_written_and_said(folder: Path) -> None:
    report = index(**options(tokenizer_identifiers=None, split="9,1"))
    names = {path.name for path in (folder / "cache").iterdir()}
    assert {
        f"web-GPTDataset-{split}-{array}_index.npy"
        for split in ("train", "valid")
        for array in ("document", "sample", "shuffle")
    } < names
    assert any("a job will not find these caches" in note for note in report.notes)


def test_instruction_data_is_indexed_with_a_note_about_its_mask(tmp_path: Path) -> None:
    notes = []
    for name in ("chat_loss_mask", "chat_text_document", "web_text_document"):
        write_dataset(tmp_path / name, [[[1, 2, 3], [4, 5, 6]]])
        own = {"data_path": (str(tmp_path / name),), "data_cache_path": str(tmp_path / "cache")}
        report = index(**own, seq_length=2, split="1,0,0", epochs=1)
        notes += [note for note in report.notes if "instruction data" in note]
    assert [note.partition(" is ")[0] for note in notes] == [str(tmp_path / "chat_text_document")]
    assert "not read chat_loss_mask" in notes[0]


def test_like_takes_settings_from_a_description_and_flags_win(folder: Path) -> None:
    index(**options(seed=7, split="3,1", epochs=None, num_samples="40,none,none"))
    (like,) = (folder / "cache").glob("*train-description.txt")
    index(
        **options(
            like=str(like),
            seq_length=None,
            tokenizer_identifiers=None,
            epochs=None,
            num_samples="40,none,none",
            data_cache_path="again",
        )
    )
    assert sorted(p.name for p in (folder / "again").iterdir()) == sorted(p.name for p in (folder / "cache").iterdir())
    index(
        **options(
            like=str(like),
            seq_length=None,
            seed=8,
            tokenizer_identifiers=None,
            epochs=None,
            num_samples="40",
            data_cache_path="other",
        )
    )
    assert {d["random_seed"] for d in described(folder / "other")} == {8}
    assert {d["sequence_length"] for d in described(folder / "other")} == {30}


def test_same_job_again_leaves_its_caches_alone_until_the_lengths_change(folder: Path) -> None:
    index(**options(split="1"))
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "cache").iterdir()}
    assert all(result.reused for result in index(**options(split="1")).results)
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (folder / "cache").iterdir()} == before
    write_dataset(folder / "web", [[[1] * length] for length in [50, 20, 60, 30, 100, 5] * 40])
    (result,) = index(**options(split="1")).results
    assert not result.reused, "the description, and so every name, is the same"
    changed = [n for n, (_, content) in before.items() if (folder / "cache" / n).read_bytes() != content]
    assert any("sample_index" in name for name in changed)


@pytest.mark.usefixtures("folder")
def test_cache_with_other_unhashed_options_is_built_again() -> None:
    index(**options(split="1"))
    (result,) = index(
        **options(split="1", no_extra_token=True, epochs=None, num_samples=str((265 * 40 * 5 // 2 - 1) // 30))
    ).results
    assert not result.reused


@pytest.mark.usefixtures("folder")
def test_file_that_dsindex_did_not_write_is_named_and_the_cache_built_again_without_it() -> None:
    (first,) = index(**options(split="1")).results
    sample_index = Path(first.paths[-2])
    sample_index.write_bytes(b"short")
    with pytest.raises(
        OutputError, match=r"sample_index.npy: expected no file or one that dsindex wrote.*move it away"
    ):
        index(**options(split="1"))
    assert sample_index.read_bytes() == b"short"
    sample_index.unlink()
    (second,) = index(**options(split="1")).results
    assert not second.reused
    assert len(np.load(second.paths[-1])) == second.num_samples


def test_concurrent_builders_of_one_cache_do_no_harm(folder: Path) -> None:
    wanted = options(data_path=["0.5", "web", "0.5", "books"], epochs=None, num_samples="90,9,9", split="8,1,1")
    index(**{**wanted, "data_cache_path": "alone"})
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: index(**wanted), range(8)))
    assert all(len(report.results) == 9 for report in reports)
    alone = {path.name: path.read_bytes() for path in (folder / "alone").iterdir()}
    assert {path.name: path.read_bytes() for path in (folder / "cache").iterdir()} == alone


def test_no_temporary_file_is_left(folder: Path) -> None:
    index(**options(data_path=["0.5", "web", "0.5", "books"], epochs=None, num_samples="90,9,9", split="8,1,1"))
    assert all(path.suffix in {".npy", ".txt", ".json"} for path in (folder / "cache").iterdir())


def test_check_shows_sizes_and_writes_nothing(folder: Path) -> None:
    report = index(**options(check=True))
    assert not (folder / "cache").exists()
    assert not report.results
    shown = describe_index(report)
    assert "web, split train: " in shown
    assert "of memory" in shown
    task = report.tasks[0]
    built = index(**options())
    assert built.tasks[0].file_bytes == task.file_bytes == sum(map(os.path.getsize, built.tasks[0].array_paths))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data_path": ["nowhere"]}, InputError, r"/nowhere.idx: no such file; use the prefix of a .bin and .idx"),
        (
            {"split": "1000000,1,1", "epochs": None, "num_samples": "9,9,9"},
            LimitError,
            r"web, split valid: 9 samples were requested, but the part has no tokens",
        ),
        ({"data_path": ["0", "web", "1", "books"]}, LimitError, "positive weight for web, got 0"),
        ({"data_path": ["web"] * 32767}, LimitError, "at most 32766 datasets"),
        (
            {"data_path": ["1", "web", "1", "books"]},
            LimitError,
            "split valid: a weighted blend needs a number of samples, got none",
        ),
        (
            {"data_path": ["web", "books"], "epochs": None, "num_samples": "99999", "split": "1"},
            LimitError,
            r"split train: 99999 samples were requested and the datasets have 6\d\d, each drawn once",
        ),
        (
            {"data_path": ["web", "books"], "epochs": None, "num_samples": "none", "split": "998,1,1"},
            LimitError,
            "web, split valid: expected at least one sample, got none, at which Megatron stops",
        ),
        (
            {"epochs": None, "num_samples": str(10**11)},
            LimitError,
            r"web, split train: the index takes \d+\.\d TiB of memory and .* are available; use a machine",
        ),
        ({"epochs": None, "num_samples": str(10**15)}, LimitError, "more than the 2147483647 that Megatron can count"),
        ({"split": "no"}, InputError, "--split: expected one to three shares"),
        ({"dataset_path_as": ["a", "b"]}, InputError, r"expected a path for each of the 1 prefixes \(web\)"),
        (
            {"tokenizer_identifiers": "web.idx"},
            InputError,
            "web.idx: expected a JSON object, got a file that is not JSON",
        ),
        ({"tokenizer_identifiers": "none.json"}, InputError, "none.json: cannot be read"),
        (
            {"tokenizer_identifiers": None, "like": "identifiers.json"},
            DsindexError,
            "identifiers.json: expected the description of a GPTDataset or BlendedDataset",
        ),
        ({"data_path": ["1", "web", "books", "web"]}, InputError, "got 'books' instead of a weight"),
    ],
    ids=[
        "no-file",
        "empty-part",
        "zero-weight",
        "too-many",
        "weighted-none",
        "more-than-exist",
        "no-sample",
        "memory",
        "epochs",
        "split",
        "paths",
        "not-json",
        "no-json",
        "like",
        "mixed",
    ],
)
def test_refusal(folder: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        index(**options(**changes))
    assert not (folder / "cache").exists()


def test_caches_that_do_not_fit_on_the_disk_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.jobs.index.free_bytes", lambda _: 1000)
    with pytest.raises(
        OutputError, match=r"cache: the caches need .* KiB, but 1000 bytes are free; make room, or choose"
    ):
        index(**options())
    assert not (folder / "cache").exists()


def test_blend_that_oversamples_a_dataset_is_refused_before_it_is_written(folder: Path) -> None:
    write_dataset(folder / "tight", [[[1] * 121]])  # just the 4 samples that its weight asks for
    with pytest.raises(
        LimitError, match="draws 5 samples from tight, which has only 4; raise --mid-level-dataset-surplus"
    ):
        index(
            **options(
                data_path=["2", "web", "7", "tight", "2", "books"],
                epochs=None,
                num_samples="6",
                split="1",
                mid_level_dataset_surplus=0,
            )
        )
    assert not list((folder / "cache").glob("*Blended*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_path": None}, "give --data-path"),
        ({"train_data_path": ["web"]}, "not both"),
        ({"num_samples": "5"}, "give one of --epochs"),
        ({"epochs": None}, "give one of --epochs"),
        ({"epochs": None, "train_iters": 5}, "--global-batch-size"),
        ({"epochs": None, "train_iters": 5, "global_batch_size": 1}, "--eval-interval"),
        ({"seq_length": None}, "--seq-length"),
        ({"data_path": None, "train_data_path": ["web"], "split": "1"}, "--split does not go"),
        ({"epochs": "zero"}, "positive number of epochs"),
        ({"epochs": "0"}, "positive number of epochs"),
        ({"epochs": None, "num_samples": "1,2,3,4"}, "one to three numbers of samples"),
        ({"epochs": None, "num_samples": "-1"}, "one to three numbers of samples"),
        ({"like": "x"}, "not both"),
        ({"layout": "bigscience", "no_extra_token": True}, "always has the extra token"),
    ],
)
def test_options_that_make_no_sense_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IndexConfig(**options(**changes))


def test_options_read_as_yaml_gives_them() -> None:
    config = IndexConfig(**options(data_path=[0.3, "web", 1, "books"], epochs=2.5, seed=0))
    assert config.data_path == ("0.3", "web", "1", "books")
    assert config.epochs == 2.5
    assert IndexConfig(**options(epochs=None, num_samples=[10, None])).num_samples == (10, None, None)


def explained(**changes: Any) -> list[str]:
    report = index(**options(explain=True, **changes))
    return [describe_index(report), *(sentence for finding in report.findings for sentence in finding.sentences)]


@pytest.mark.usefixtures("folder")
def test_explain_finds_what_was_built() -> None:
    index(**options())
    report = index(**options(explain=True))
    assert report.ok
    assert "the job finds this cache and builds nothing" in describe_index(report)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 1}, "random_seed is 1234 in the cache and 1 in the job: --seed"),
        ({"split": "969,30,1"}, "split is '969, 30, 1' in the cache and '969,30,1' in the job: --split, as typed"),
        ({"seq_length": 31}, "sequence_length is 30 in the cache and 31 in the job"),
        ({"epochs": "1"}, "num_samples is 860 in the cache and 344 in the job"),
        ({"dataset_path_as": ["/lustre/web"]}, "dataset_path is 'web' in the cache and '/lustre/web' in the job"),
    ],
)
def test_explain_names_the_settings_that_differ(changes: dict[str, Any], sentence: str) -> None:
    index(**options(epochs="2.5"))
    shown, *sentences = explained(**changes)
    assert "NOT found" in shown
    assert any(sentence in said for said in sentences), sentences


def test_explain_tells_that_the_data_changed(folder: Path) -> None:
    index(**options(split="1"))
    os.utime(folder / "web.idx")
    assert index(**options(split="1", explain=True)).ok, "the same lengths, only touched"
    write_dataset(folder / "web", [[[1] * length] for length in [50, 20, 60, 30, 100, 5] * 40])
    report = index(**options(split="1", explain=True))
    assert not report.ok
    assert "web.idx changed since the cache was built (its sequences 0 to 240 have other lengths" in describe_index(
        report
    )


def test_explain_tells_that_the_data_grew(folder: Path) -> None:
    index(**options(split="1"))
    write_dataset(folder / "web", [[[1] * length] for length in [20, 50, 60, 30, 100, 5] * 40 + [7]])
    shown, *_ = explained(split="1", epochs=None, num_samples=str((265 * 40 * 5 // 2 - 1) // 30))
    assert "web.idx changed since the cache was built (it has " in shown
    assert "web.bin changed since the cache was built (it has 21214 bytes and had 21200)" in shown
    (folder / "web.idx").unlink()
    with pytest.raises(InputError, match="no such file"):
        explained(split="1")


@pytest.mark.usefixtures("folder")
def test_explain_tells_of_options_that_the_hash_does_not_cover() -> None:
    index(**options(split="1", epochs=None, num_samples="50"))
    shown, *_ = explained(split="1", epochs=None, num_samples="50", no_extra_token=True)
    assert "add_extra_token_to_sequence (--no-extra-token) was True when it was built and is False now" in shown


def test_explain_tells_of_missing_files_and_edited_descriptions(folder: Path) -> None:
    (result,) = index(**options(split="1")).results
    description, *_, shuffle = result.paths
    os.unlink(shuffle)
    assert (
        f"the cache is incomplete, so the job builds it again: {Path(shuffle).name} is missing"
        in explained(split="1")[0]
    )
    shutil.rmtree(folder / "cache")
    assert "there is no folder " in explained(split="1")[0]
    (folder / "cache").mkdir()
    assert "contains no cache of a GPTDataset for split train" in explained(split="1")[0]
    assert description


def test_explain_compares_a_jobs_description_with_the_folder(folder: Path) -> None:
    index(**options(data_path=["1", "web", "1", "books"], split="1", epochs=None, num_samples="50"))
    index(
        **options(
            data_path=["2", "web", "1", "books"],
            split="1",
            seed=5,
            epochs=None,
            num_samples="50",
            data_cache_path="job",
        )
    )
    (like,) = (folder / "job").glob("*Blended*description.txt")
    report = index(explain=True, like=str(like), data_cache_path="cache")
    shown = describe_index(report)
    assert "weights is [0.5, 0.5] in the cache and [0.66" in shown
    assert "in every dataset, random_seed is 1234 in the cache and 5 in the job" in shown
    assert index(explain=True, like=str(like), data_cache_path="job").ok


@pytest.mark.usefixtures("folder")
def test_explain_without_identifiers_says_that_there_is_no_hash() -> None:
    index(**options(tokenizer_identifiers=None))
    report = index(**options(tokenizer_identifiers=None, explain=True))
    assert not report.ok
    assert "so no hash is known" in describe_index(report)


def test_bigscience_layout_writes_its_names_beside_the_data(folder: Path) -> None:
    report = index(
        **options(
            layout="bigscience",
            split="3,1,0",
            data_cache_path=None,
            tokenizer_identifiers=None,
            final_epoch_threshold=0.95,
        )
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


def test_bigscience_blend_asks_each_dataset_with_one_rounding(folder: Path) -> None:
    index(
        **options(
            layout="bigscience", data_path=["1", "web", "2", "books"], split="1", epochs=None, num_samples="100,0,0"
        )
    )
    assert {path.name for path in folder.glob("*_doc_idx.npy")} == {
        "web_train_indexmap_34ns_30sl_1234s_doc_idx.npy",
        "books_train_indexmap_67ns_30sl_1234s_doc_idx.npy",
    }


RELEASED = {
    "tokenizer_identifiers": None,
    "job_tokenizer": {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "gpt2"},
}


def test_flags_of_the_jobs_tokenizer_name_the_caches_of_its_release(folder: Path) -> None:
    index(**options(split="1", megatron_release="0.17", **RELEASED))
    (old,) = described(folder / "cache")
    assert list(old["tokenizer"])[2] == "vocab_file"
    wanted = options(split="1", **RELEASED)
    report = index(**wanted, megatron_release="0.19", explain=True)
    [finding] = report.findings
    assert "tokenizer: written by 0.16 or 0.17; the job is 0.19: chat_template" in finding.sentences
    index(**wanted, megatron_release="0.19")
    assert index(**wanted, megatron_release="0.18", explain=True).ok, "0.18 and 0.19 have the same names"


def test_description_of_another_release_is_said_so(folder: Path) -> None:
    index(**options(split="1", megatron_release="0.17", **RELEASED))
    [like] = map(str, (folder / "cache").glob("*description.txt"))
    alone = options(split="1", tokenizer_identifiers=None, like=like)
    with pytest.raises(
        InputError, match=r"expected a description that Megatron main wrote .* got one of 0\.16 or 0\.17"
    ):
        index(**alone, megatron_release="main")
    assert index(**alone, megatron_release="0.16", explain=True).ok
    index(**options(split="1", like=like, megatron_release="main", **RELEASED))
    assert {"use_gigatoken" in each["tokenizer"] for each in described(folder / "cache")} == {True, False}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "expected a JSON object, got another"),
        (b"{", "is not JSON"),
        (b'{"model_type": 3}', "got 3"),
        (None, "cannot be"),
    ],
)
def test_bad_metadata_of_a_tokenizer_is_refused(folder: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (folder / "metadata.json").write_bytes(content)
    job = {**RELEASED["job_tokenizer"], "tokenizer_metadata": "metadata.json"}  # type: ignore[dict-item]
    with pytest.raises(InputError, match=message):
        index(**options(tokenizer_identifiers=None, job_tokenizer=job, megatron_release="0.19"))


def test_paths_are_read_from_the_files_that_megatron_reads(folder: Path) -> None:
    (folder / "words.txt").write_text("0.9 web\n 0.1  books\n")
    together = options(data_path=None, data_args_path="words.txt", split="9,1", num_samples="100,10,0", epochs=None)
    written = {result.paths for result in index(**together).results}
    again = index(**options(data_path=["0.9", "web", "0.1", "books"], split="9,1", num_samples="100,10,0", epochs=None))
    assert {result.paths for result in again.results} == written
    assert all(result.reused for result in again.results)
    (folder / "splits.json").write_text(
        json.dumps({"train": [0.5, "web", 0.5, "books"], "valid": "books", "test": None})
    )
    apart = options(data_path=None, per_split_data_args_path="splits.json", num_samples="100,10,0", epochs=None)
    written = {result.paths for result in index(**apart).results}
    flags = {"data_path": None, "train_data_path": [0.5, "web", 0.5, "books"], "valid_data_path": ["books"]}
    again = index(**options(**flags, num_samples="100,10,0", epochs=None))
    assert {result.paths for result in again.results} == written


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("data_args_path", b" \n", "got an empty file"),
        ("data_args_path", b"\xff", "in UTF-8, got invalid start byte at byte 0"),
        ("data_args_path", None, "cannot be read"),
        ("per_split_data_args_path", b'{"train": ["web"]}', "which Megatron reads, got none called valid"),
        (
            "per_split_data_args_path",
            b'{"train": [[]], "valid": null, "test": null}',
            r"expected paths of train .*got \[\[",
        ),
        ("per_split_data_args_path", b'{"train": "", "valid": null, "test": null}', "expected paths of train .*got ''"),
        ("per_split_data_args_path", b"3", "expected a JSON object"),
    ],
)
def test_bad_file_of_paths_is_refused(folder: Path, option: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (folder / "given").write_bytes(content)
    split = {"split": "1"} if option == "data_args_path" else {}
    with pytest.raises(InputError, match=rf"^given: .*{message}"):
        index(**options(data_path=None, **{option: "given"}, **split))


def test_several_validation_sets_stay_apart(folder: Path) -> None:
    paths = {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["web", "books"]}
    job = options(**paths, epochs=None, train_iters=4, global_batch_size=2, multiple_validation_sets=True)
    index(**{**job, "full_validation": True, "data_cache_path": str(folder / "all")})
    assert [(d["index_split"], d["num_samples"]) for d in described(folder / "all")].count(("valid", None)) == 2
    index(**{**job, "eval_interval": 2, "eval_iters": 1, "data_cache_path": str(folder / "some")})
    assert [(d["index_split"], d["num_samples"]) for d in described(folder / "some")].count(("valid", 6)) == 2
    assert not list(folder.glob("*/*Blended*"))


def test_fim_job_has_the_same_arrays_under_another_name(folder: Path) -> None:
    index(**options())
    index(**options(dataset_class="GPTFIMDataset", data_cache_path=str(folder / "fim")))
    [ours] = (folder / "fim").glob("*-GPTFIMDataset-train-sample_index.npy")
    [plain] = (folder / "cache").glob("*-GPTDataset-train-sample_index.npy")
    assert ours.read_bytes() == plain.read_bytes()
    assert index(**options(dataset_class="GPTFIMDataset", data_cache_path=str(folder / "fim")), explain=True).ok
    assert not index(**options(dataset_class="GPTFIMDataset"), explain=True).ok
    index(**options(dataset_class="GPTFIMDataset", data_cache_path=None))
    assert list(folder.glob("web/cache/GPTFIMDataset_indices/*-description.txt"))


def test_caches_of_all_phases_are_built(folder: Path) -> None:
    job = options(epochs=None, split="1", train_samples=90, global_batch_size=10, full_validation=True)
    index(**job, phase_transition_iterations="2,4")
    assert sorted(d["num_samples"] for d in described(folder / "cache")) == [20, 50]


def test_sequences_of_the_datasets_are_written_for_the_jobs_start(folder: Path) -> None:
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


@pytest.mark.parametrize(
    ("release", "size", "dtype", "read"),
    [
        ("0.19", 65_500, "<i4", "uint16"),
        ("0.19", 65_536, "<i4", "uint16"),
        ("0.19", 65_537, "<i4", None),
        ("0.17", 65_536, "<i4", None),
        ("0.19", 65_499, "<u2", None),
        ("0.19", 70_000, "<u2", "int32"),
    ],
)
def test_vocabulary_whose_tokens_a_fast_start_misreads_is_refused(
    folder: Path, release: str, size: int, dtype: str, read: str | None
) -> None:
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
    with pytest.raises(
        InputError, match=rf"wide: its tokens are \w+, and a job .* reads them as {read}, as its tokenizer"
    ):
        index(**job)
    assert f"reads them as {read}" in index(**job, explain=True).findings[-1].sentences[0]
    assert not (folder / "s.json").exists()


def test_vocabulary_is_known_from_the_manifest(folder: Path) -> None:
    write_dataset(folder / "wide", [[[1] * 500]], dtype=np.dtype("<i4"))
    job = options(data_path=["wide"], split="1", per_dataset_sequences_path="s.json")
    (folder / "wide.manifest.json").write_text('{"tokenizer": {"vocabulary_size": 65510}}')
    with pytest.raises(InputError, match="as its tokenizer has 65510 tokens"):
        index(**job)
    (folder / "wide.manifest.json").write_text("{")
    index(**job)


def test_caches_of_nemo_automodel_have_the_tokenizers_name(folder: Path) -> None:
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


def test_single_weighted_dataset_is_no_blend_for_nemo_automodel(folder: Path) -> None:
    job = options(data_path=["0.5", "web"], split="9,1", num_samples="9,none", epochs=None, tokenizer_identifiers=None)
    index(**job, megatron_release="nemo-automodel", job_tokenizer={"tokenizer_model": "openai-community/gpt2"})
    found = {(each["class"], each["num_samples"]) for each in described(folder / "cache")}
    assert found == {("GPTDataset", 9), ("GPTDataset", None)}


@pytest.mark.parametrize(
    "paths",
    [
        {"data_path": ["1", "web", "1", "books"], "split": "1"},
        {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["1", "web"]},
        {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["1", "web", "1", "books"]},
    ],
    ids=["together", "one", "several"],
)
def test_full_validation_of_weighted_datasets_is_refused_as_in_megatron(folder: Path, paths: dict[str, Any]) -> None:
    job = options(**paths, epochs=None, train_iters=4, global_batch_size=2, full_validation=True)
    with pytest.raises(LimitError, match="weighted"):
        index(**job)
    assert not (folder / "cache").exists()
