"""What `dsindex index` refuses, and how it says so."""

import pytest

from dsindex.errors import DsindexError, InputError, LimitError, OutputError
from dsindex.options.index import IndexConfig
from tests.jobs.index.index_jobs import index, indexed, options
from tests.support.datasets import write_dataset


@pytest.mark.parametrize("option", ["like", "tokenizer_identifiers"])
def test_json_that_nests_without_end_is_refused(folder, option):
    (folder / "deep.json").write_text("[" * 200_000)
    with pytest.raises(
        DsindexError, match=r"deep\.json: expected .*, got a file that is not JSON \((maximum recursion|Stack overflow)"
    ):
        indexed(**{"tokenizer_identifiers": None, option: "deep.json"})


REFUSED = {
    "no-file": ({"data_path": ["nowhere"]}, InputError,
     r"/nowhere.idx: no such file; use the prefix of a .bin and .idx"),
    "empty-part": ({"split": "1000000,1,1", "epochs": None, "num_samples": "9,9,9"}, LimitError,
     r"web, split valid: 9 samples were requested, but the part has no tokens"),
    "zero-weight": ({"data_path": ["0", "web", "1", "books"]}, LimitError, "positive weight for web, got 0"),
    "too-many": ({"data_path": ["web"] * 32767}, LimitError, "at most 32766 datasets"),
    "weighted-none": ({"data_path": ["1", "web", "1", "books"]}, LimitError,
     "split valid: a weighted blend needs a number of samples, got none"),
    "more-than-exist": ({"data_path": ["web", "books"], "epochs": None, "num_samples": "99999", "split": "1"},
     LimitError, r"split train: 99999 samples were requested and the datasets have 6\d\d, each drawn once"),
    "no-sample": ({"data_path": ["web", "books"], "epochs": None, "num_samples": "none", "split": "998,1,1"},
     LimitError, "web, split valid: expected at least one sample, got none, at which Megatron stops"),
    "memory": ({"epochs": None, "num_samples": str(10**11)}, LimitError,
     r"web, split train: the index takes \d+\.\d TiB of memory and .* are available; use a machine"),
    "epochs": ({"epochs": None, "num_samples": str(10**15)}, LimitError,
     "more than the 2147483647 that Megatron can count"),
    "split": ({"split": "no"}, InputError, "--split: expected one to three shares"),
    "paths": ({"dataset_path_as": ["a", "b"]}, InputError, r"expected a path for each of the 1 prefixes \(web\)"),
    "not-json": ({"tokenizer_identifiers": "web.idx"}, InputError,
     "web.idx: expected a JSON object, got a file that is not JSON"),
    "no-json": ({"tokenizer_identifiers": "none.json"}, InputError, "none.json: cannot be read"),
    "like": ({"tokenizer_identifiers": None, "like": "identifiers.json"}, DsindexError,
     "identifiers.json: expected the description of a GPTDataset or BlendedDataset"),
    "mixed": ({"data_path": ["1", "web", "books", "web"]}, InputError, "got 'books' instead of a weight"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refusal(folder, changes, error, message):
    with pytest.raises(error, match=message):
        indexed(**changes)
    assert not (folder / "cache").exists()


def test_caches_that_do_not_fit_on_the_disk_are_refused(folder, monkeypatch):
    monkeypatch.setattr("dsindex.jobs.index.free_bytes", lambda _: 1000)
    with pytest.raises(OutputError, match=r"cache: the caches need .* kB, but 1\.00 kB are free; make room, or choose"):
        indexed()
    assert not (folder / "cache").exists()


def test_blend_that_oversamples_a_dataset_is_refused_before_it_is_written(folder):
    write_dataset(folder / "tight", [[[1] * 121]])  # just the 4 samples that its weight asks for
    with pytest.raises(LimitError, match="draws 5 samples from tight, which has only 4; raise --mid-level-dataset-su"):
        indexed(
            data_path=["2", "web", "7", "tight", "2", "books"],
            epochs=None,
            num_samples="6",
            split="1",
            mid_level_dataset_surplus=0,
        )
    assert not list((folder / "cache").glob("*Blended*"))


@pytest.mark.parametrize(("changes", "message"), [
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
    ({"layout": "maxtext", "split": "9/1"}, "has a --split such as 99,1"),
    ({"layout": "maxtext", "epochs": None, "train_iters": 5, "global_batch_size": 2, "eval_interval": 1},
     "needs --num-samples TRAIN,EVAL"),
])  # fmt: skip
def test_options_that_make_no_sense_together(changes, message):
    with pytest.raises(ValueError, match=message):
        IndexConfig(**options(**changes))


def test_options_read_as_yaml_gives_them():
    config = IndexConfig(**options(data_path=[0.3, "web", 1, "books"], epochs=2.5, seed=0))
    assert config.data_path == ("0.3", "web", "1", "books")
    assert config.epochs == 2.5
    assert IndexConfig(**options(epochs=None, num_samples=[10, None])).num_samples == (10, None, None)


@pytest.mark.parametrize("paths", [
    {"data_path": ["1", "web", "1", "books"], "split": "1"},
    {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["1", "web"]},
    {"data_path": None, "train_data_path": ["web"], "valid_data_path": ["1", "web", "1", "books"]},
], ids=["together", "one", "several"])  # fmt: skip
def test_full_validation_of_weighted_datasets_is_refused_as_in_megatron(folder, paths):
    job = options(**paths, epochs=None, train_iters=4, global_batch_size=2, full_validation=True)
    with pytest.raises(LimitError, match="weighted"):
        index(**job)
    assert not (folder / "cache").exists()
