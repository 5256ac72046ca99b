"""The caches of a job: their names, descriptions and records, and when they are built again."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dsindex.errors import OutputError
from tests.jobs.index.index_jobs import IDENTIFIERS, described, index, indexed, options
from tests.support.datasets import write_dataset


def test_epochs_become_a_number_of_samples_in_the_description(folder):
    report = indexed(split="1")
    (description,) = described(folder / "cache")
    assert description["num_samples"] == (265 * 40 * 5 // 2 - 1) // 30
    assert description["tokenizer"] == IDENTIFIERS
    (result,) = report.results
    assert result.num_epochs == 3
    assert all(map(os.path.isfile, result.paths))
    assert Path(result.paths[0]).name.endswith("-GPTDataset-train-description.txt")


def test_default_split_is_megatrons_and_valid_and_test_get_one_epoch(folder):
    indexed()
    descriptions = {d["index_split"]: d for d in described(folder / "cache")}
    assert descriptions["valid"]["num_samples"] is descriptions["test"]["num_samples"] is None
    assert descriptions["train"]["split"] == "969, 30, 1"
    assert descriptions["train"]["random_seed"] == 1234


def test_blend_without_cache_folder_goes_beside_each_dataset_and_the_blend_is_not_written(folder):
    report = indexed(data_path=["web", "books"], epochs=None, num_samples="none", data_cache_path=None, split="1")
    for name in ("web", "books"):
        assert len(list((folder / name / "cache" / "GPTDataset_indices").glob("*.npy"))) == 3
    assert not list(folder.rglob("*Blended*"))
    assert any("caches blends only with --data-cache-path" in note for note in report.notes)


def test_paths_per_split_have_no_split_in_the_description(folder):
    indexed(
        data_path=None,
        train_data_path=["0.5", "web", "0.5", "books"],
        valid_data_path=["1", "books"],
        epochs=None,
        num_samples="100,9",
    )
    descriptions = described(folder / "cache")
    # A single weighted prefix is no blend with a path for each split.
    assert Counter(d["class"] for d in descriptions) == {"GPTDataset": 3, "BlendedDataset": 1}
    assert all(d["split"] is d["split_matrix"] is None for d in descriptions if d["class"] == "GPTDataset")


def test_training_length_is_counted_by_megatrons_rule(folder):
    indexed(epochs=None, train_iters=50, global_batch_size=4, eval_interval=25, eval_iters=2, split="8,1,1")
    counts = {d["index_split"]: d["num_samples"] for d in described(folder / "cache")}
    assert counts == {"train": 200, "valid": 24, "test": 8}


@pytest.mark.parametrize(("given", "expected"), [
    (["/lustre/web", "/lustre/books"], {"/lustre/web", "/lustre/books"}),
    (["we=/scratch/we"], {"/scratch/web", "books"}),
    (["web=/a/w", "books=/b"], {"/a/w", "/b"}),
], ids=["one-each", "beginning", "mapping"])  # fmt: skip
def test_dataset_path_as_is_what_the_job_types(folder, given, expected):
    indexed(data_path=["1", "web", "1", "books"], dataset_path_as=given, epochs=None, num_samples="50", split="1")
    paths = {d["dataset_path"] for d in described(folder / "cache") if d["class"] == "GPTDataset"}
    assert paths == expected


def test_without_identifiers_plain_names_are_written_and_said(folder):
    report = indexed(tokenizer_identifiers=None, split="9,1")
    names = {path.name for path in (folder / "cache").iterdir()}
    assert {
        f"web-GPTDataset-{split}-{array}_index.npy"
        for split in ("train", "valid")
        for array in ("document", "sample", "shuffle")
    } < names
    assert any("a job will not find these caches" in note for note in report.notes)


def test_instruction_data_is_indexed_with_a_note_about_its_mask(tmp_path):
    notes = []
    for name in ("chat_loss_mask", "chat_text_document", "web_text_document"):
        write_dataset(tmp_path / name, [[[1, 2, 3], [4, 5, 6]]])
        own = {"data_path": (str(tmp_path / name),), "data_cache_path": str(tmp_path / "cache")}
        report = index(**own, seq_length=2, split="1,0,0", epochs=1)
        notes += [note for note in report.notes if "instruction data" in note]
    assert [note.partition(" is ")[0] for note in notes] == [str(tmp_path / "chat_text_document")]
    assert "not read chat_loss_mask" in notes[0]


def test_like_takes_settings_from_a_description_and_flags_win(folder):
    indexed(seed=7, split="3,1", epochs=None, num_samples="40,none,none")
    (like,) = (folder / "cache").glob("*train-description.txt")
    indexed(
        like=str(like), seq_length=None, tokenizer_identifiers=None, epochs=None, num_samples="40,none,none",
        data_cache_path="again",
    )  # fmt: skip
    assert sorted(p.name for p in (folder / "again").iterdir()) == sorted(p.name for p in (folder / "cache").iterdir())
    indexed(
        like=str(like), seq_length=None, seed=8, tokenizer_identifiers=None, epochs=None, num_samples="40",
        data_cache_path="other",
    )  # fmt: skip
    assert {d["random_seed"] for d in described(folder / "other")} == {8}
    assert {d["sequence_length"] for d in described(folder / "other")} == {30}


def test_same_job_again_leaves_its_caches_alone_until_the_lengths_change(folder):
    indexed(split="1")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "cache").iterdir()}
    assert all(result.reused for result in indexed(split="1").results)
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (folder / "cache").iterdir()} == before
    write_dataset(folder / "web", [[[1] * length] for length in [50, 20, 60, 30, 100, 5] * 40])
    (result,) = indexed(split="1").results
    assert not result.reused, "the description, and so every name, is the same"
    changed = [n for n, (_, content) in before.items() if (folder / "cache" / n).read_bytes() != content]
    assert any("sample_index" in name for name in changed)


@pytest.mark.usefixtures("folder")
def test_cache_with_other_unhashed_options_is_built_again():
    indexed(split="1")
    (result,) = indexed(
        split="1", no_extra_token=True, epochs=None, num_samples=str((265 * 40 * 5 // 2 - 1) // 30)
    ).results
    assert not result.reused


@pytest.mark.usefixtures("folder")
def test_file_that_dsindex_did_not_write_is_named_and_the_cache_built_again_without_it():
    (first,) = indexed(split="1").results
    sample_index = Path(first.paths[-2])
    sample_index.write_bytes(b"short")
    with pytest.raises(OutputError, match=r"sample_index.npy: expected no file or one that dsindex wrote.*move it aw"):
        indexed(split="1")
    assert sample_index.read_bytes() == b"short"
    sample_index.unlink()
    (second,) = indexed(split="1").results
    assert not second.reused
    assert len(np.load(second.paths[-1])) == second.num_samples


def test_concurrent_builders_of_one_cache_do_no_harm(folder):
    wanted = options(data_path=["0.5", "web", "0.5", "books"], epochs=None, num_samples="90,9,9", split="8,1,1")
    index(**{**wanted, "data_cache_path": "alone"})
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: index(**wanted), range(8)))
    assert all(len(report.results) == 9 for report in reports)
    alone = {path.name: path.read_bytes() for path in (folder / "alone").iterdir()}
    assert {path.name: path.read_bytes() for path in (folder / "cache").iterdir()} == alone


def test_check_shows_sizes_and_writes_nothing(folder):
    report = indexed(check=True)
    assert not (folder / "cache").exists()
    assert not report.results
    shown = "\n".join(report.lines())
    assert "web, split train: " in shown
    assert "of memory" in shown
    task = report.tasks[0]
    built = indexed()
    assert built.tasks[0].file_bytes == task.file_bytes == sum(map(os.path.getsize, built.tasks[0].array_paths))
