"""`dsindex index --explain`: why a job would not find its caches."""

import os
import shutil
from pathlib import Path

import pytest

from dsindex.errors import InputError
from tests.jobs.index.index_jobs import index, indexed
from tests.support.datasets import write_dataset


def explained(**changes):
    report = indexed(explain=True, **changes)
    return ["\n".join(report.lines()), *(sentence for finding in report.findings for sentence in finding.sentences)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("changes", "sentence"), [
    ({"seed": 1}, "random_seed is 1234 in the cache and 1 in the job: --seed"),
    ({"split": "969,30,1"}, "split is '969, 30, 1' in the cache and '969,30,1' in the job: --split, as typed"),
    ({"seq_length": 31}, "sequence_length is 30 in the cache and 31 in the job"),
    ({"epochs": "1"}, "num_samples is 860 in the cache and 344 in the job"),
    ({"dataset_path_as": ["/lustre/web"]}, "dataset_path is 'web' in the cache and '/lustre/web' in the job"),
])  # fmt: skip
def test_explain_names_the_settings_that_differ(changes, sentence):
    indexed(epochs="2.5")
    shown, *sentences = explained(**changes)
    assert "NOT found" in shown
    assert any(sentence in said for said in sentences), sentences


def test_explain_tells_that_the_data_changed(folder):
    indexed(split="1")
    os.utime(folder / "web.idx")
    assert indexed(split="1", explain=True).ok, "the same lengths, only touched"
    write_dataset(folder / "web", [[[1] * length] for length in [50, 20, 60, 30, 100, 5] * 40])
    report = indexed(split="1", explain=True)
    assert not report.ok
    shown = "\n".join(report.lines())
    assert "web.idx changed since the cache was built (its sequences 0 to 240 have other lengths" in shown


def test_explain_tells_that_the_data_grew(folder):
    indexed(split="1")
    write_dataset(folder / "web", [[[1] * length] for length in [20, 50, 60, 30, 100, 5] * 40 + [7]])
    shown, *_ = explained(split="1", epochs=None, num_samples=str((265 * 40 * 5 // 2 - 1) // 30))
    assert "web.idx changed since the cache was built (it has " in shown
    assert "web.bin changed since the cache was built (it has 21214 bytes and had 21200)" in shown
    (folder / "web.idx").unlink()
    with pytest.raises(InputError, match="no such file"):
        explained(split="1")


@pytest.mark.usefixtures("folder")
def test_explain_tells_of_options_that_the_hash_does_not_cover():
    indexed(split="1", epochs=None, num_samples="50")
    shown, *_ = explained(split="1", epochs=None, num_samples="50", no_extra_token=True)
    assert "add_extra_token_to_sequence (--no-extra-token) was True when it was built and is False now" in shown


def test_explain_tells_of_missing_files_and_edited_descriptions(folder):
    (result,) = indexed(split="1").results
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


def test_explain_compares_a_jobs_description_with_the_folder(folder):
    indexed(data_path=["1", "web", "1", "books"], split="1", epochs=None, num_samples="50")
    indexed(
        data_path=["2", "web", "1", "books"], split="1", seed=5, epochs=None, num_samples="50", data_cache_path="job"
    )
    (like,) = (folder / "job").glob("*Blended*description.txt")
    report = index(explain=True, like=str(like), data_cache_path="cache")
    shown = "\n".join(report.lines())
    assert "weights is [0.5, 0.5] in the cache and [0.66" in shown
    assert "in every dataset, random_seed is 1234 in the cache and 5 in the job" in shown
    assert index(explain=True, like=str(like), data_cache_path="job").ok


@pytest.mark.usefixtures("folder")
def test_explain_without_identifiers_says_that_there_is_no_hash():
    indexed(tokenizer_identifiers=None)
    report = indexed(tokenizer_identifiers=None, explain=True)
    assert not report.ok
    assert "so no hash is known" in "\n".join(report.lines())
