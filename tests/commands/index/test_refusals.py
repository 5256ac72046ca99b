"""What `dsindex index` refuses, and why a job would not find its caches."""

import shutil
from pathlib import Path

import pytest

from dsindex.cli.render import describe
from dsindex.errors import DsindexError, InputError, LimitError, UsageError
from tests.commands.index.index_jobs import index, indexed

REFUSED = {
    "no-file": ({"data_path": ["nowhere"]}, InputError,
     r"/nowhere.idx: no such file\nhint: give the prefix of a .bin and .idx"),
    "not-utf-8": ({"data_path": ["a\udcff"]}, InputError, "a path in a cache has to be UTF-8\nhint: rename"),
    "no-length": ({"epochs": None}, UsageError, "give one of --epochs, --num-samples"),
    "weight-alone": ({"data_path": ["0.5", "web", "books"]}, InputError,
     r"/0.5.idx: no such file\nhint: give the prefix of a .bin and .idx, after each weight"),
    "empty-part": ({"split": "1000000,1,1", "epochs": None, "num_samples": "9,9,9"}, LimitError,
     r"web, split valid: 9 samples were requested, but the part has no tokens"),
    "weighted-none": ({"data_path": ["1", "web", "1", "books"]}, LimitError,
     "split valid: a weighted blend needs a number of samples"),
    "more-than-exist": ({"data_path": ["web", "books"], "epochs": None, "num_samples": "99999", "split": "1"},
     LimitError, r"split train: 99999 samples were requested, but the datasets have 6\d\d, so the job"),
    "no-sample": ({"data_path": ["web", "books"], "epochs": None, "num_samples": "none", "split": "998,1,1"},
     LimitError, "web, split valid has no sample, so Megatron would stop"),
    "memory": ({"epochs": None, "num_samples": str(10**11)}, LimitError,
     r"web, split train: the index takes \d+\.\d TB of memory and .* are available\nhint: use a machine"),
    "split": ({"split": "no"}, InputError, "--split: 'no' is not one to three shares"),
    "paths": ({"dataset_path_as": ["a"]}, InputError, "--dataset-path-as: a has no equals sign"),
    "not-json": ({"tokenizer_identifiers": "web.idx"}, InputError,
     "web.idx: not valid JSON, where a JSON object is needed"),
    "no-json": ({"tokenizer_identifiers": "none.json"}, InputError, "none.json: cannot be read"),
    "like": ({"tokenizer_identifiers": None, "like": "identifiers.json"}, DsindexError,
     "identifiers.json is not the description of a GPTDataset or BlendedDataset"),
    "no-command": ({"command": []}, InputError, "the command after -- has no flags of pretrain_gpt.py"),
    "no-batch": ({"continue_from": "c", "consumed_samples": 8}, UsageError,
     "--consumed-samples needs --global-batch-size or"),
    "two-splits": ({"data_path": None, "train_data_path": ["web"], "split": "1"}, UsageError,
     "--split and --train-data-path cannot be combined"),
    "no-epochs": ({"epochs": "zero"}, UsageError, "'zero' is not a number of epochs"),
    "four-numbers": ({"epochs": None, "num_samples": "1,2,3,4"}, UsageError, "one to three numbers of samples"),
    "order": ({"document_order": "sorted"}, UsageError, "'sorted' is not shuffled, packed, length, or a .npy"),
    "order-in-bucket": ({"document_order": "s3://b/order.npy"}, UsageError, "s3://b/order.npy"),
    "order-of-two": ({"document_order": "o.npy", "document_order_splits": ["train", "valid"]}, UsageError,
     "orders the documents of one split"),
    "order-of-fim": ({"document_order": "packed", "fim_data": True}, UsageError,
     "--fim-data and --document-order cannot be combined"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refusal(folder, changes, error, message):
    with pytest.raises(error, match=message):
        indexed(**changes)
    assert not (folder / "cache").exists()


def explain(**changes):
    report = indexed(explain=True, **changes)
    return ["\n".join(describe(report)), *(sentence for finding in report.findings for sentence in finding.sentences)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("changes", "sentence"), [
    ({"seed": 1}, "random_seed is 1234 in the cache and 1 in the job: --seed"),
    ({"split": "969,30,1"}, "split is '969, 30, 1' in the cache and '969,30,1' in the job: --split, as typed"),
    ({"dataset_path_as": ["web=/lustre/web"]}, "dataset_path is 'web' in the cache and '/lustre/web' in the job"),
])  # fmt: skip
def test_explain_names_the_settings_that_differ(changes, sentence):
    indexed(epochs="2.5")
    output, *sentences = explain(**changes)
    assert "NOT found" in output
    assert any(sentence in text for text in sentences), sentences


def test_explain_tells_of_missing_files_and_edited_descriptions(folder):
    (result,) = indexed(split="1").results
    shuffle = Path(result.paths[-1])
    shuffle.unlink()
    sentence = f"the cache is incomplete, so the job builds it again: {shuffle.name} is missing"
    assert sentence in explain(split="1")[0]
    shutil.rmtree(folder / "cache")
    assert "there is no folder " in explain(split="1")[0]
    (folder / "cache").mkdir()
    assert "contains no cache of a GPTDataset for split train" in explain(split="1")[0]


def test_explain_compares_a_jobs_description_with_the_folder(folder):
    blend = {"split": "1", "epochs": None, "num_samples": "50"}
    indexed(**blend, data_path=["1", "web", "1", "books"])
    indexed(**blend, data_path=["2", "web", "1", "books"], seed=5, data_cache_path="job")
    (like,) = (folder / "job").glob("*Blended*description.txt")
    report = index(explain=True, like=str(like), data_cache_path="cache")
    output = "\n".join(describe(report))
    assert "weights is [0.5, 0.5] in the cache and [0.66" in output
    assert "in every dataset, random_seed is 1234 in the cache and 5 in the job" in output
    assert index(explain=True, like=str(like), data_cache_path="job").ok
