"""Sampled and held-out documents under the one law, and what `verify` says of them."""

import contextlib
import json

import pyarrow.parquet as pq
import pytest

from dsindex.datasets import IndexedDataset
from dsindex.errors import InputError
from dsindex.options.build import BuildConfig
from tests.faults.corpus import BROKEN, write_corpus
from tests.support.jobs import config_of, run_config
from tests.support.published import published

FILES = {"a": 150, "b": 90, "c": 40}
"""Name and number of lines of each input."""


def build(folder, out, **options):
    defaults = {"json_keys": ("text", "title"), "append_eod": True, "on_bad_record": "quarantine"}
    defaults |= {"output_prefix": str(out / "x"), "shard_size": "4KiB"}
    out.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return run_config(config_of(BuildConfig, tuple(FILES), **{**defaults, **options}))


def documents(out, key="text"):
    dataset = IndexedDataset(str(out / f"x_{key}_document"))
    return [tuple(dataset.document(number).tolist()) for number in range(len(dataset.document_indices) - 1)]


def content(out, key="text"):
    return json.loads((out / f"x_{key}_document.manifest.json").read_bytes())["content"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, num_lines) in enumerate(FILES.items()):
        broken = {7: BROKEN["not JSON"], 20: BROKEN["null"]} if name == "b" else {}
        write_corpus(folder / name, num_lines=num_lines, broken=broken, seed=seed)
    return folder


def test_a_sample_keeps_the_same_records_everywhere(texts, tmp_path):
    build(texts, tmp_path / "all")
    build(texts, tmp_path / "out", sample="40%")
    build(texts, tmp_path / "small", sample=0.2, shard_size="1KiB")
    tables = [pq.read_table(tmp_path / name / "x_text_document.provenance.parquet") for name in ("all", "out", "small")]
    all_rows, sampled_rows, few_rows = ({(row["input"], row["line"]) for row in table.to_pylist()} for table in tables)
    assert few_rows < sampled_rows < all_rows
    assert 0.3 * len(all_rows) < len(sampled_rows) < 0.5 * len(all_rows)
    recorded = content(tmp_path / "out")
    assert recorded["options"]["sample"] == 0.4
    account = recorded["account"]
    assert (account["kept"], account["filtered"]) == (len(sampled_rows), len(all_rows) - len(sampled_rows))
    assert (account["lines"], account["quarantined"]) == (sum(FILES.values()), 2)
    assert account["records"] == account["kept"] + account["filtered"] + account["quarantined"]
    assert sum(file["filtered"] for file in recorded["inputs"]) == account["filtered"]
    assert "filtered" not in content(tmp_path / "all")["account"]


HELD_OUT = {
    "small shards": {"shard_size": "2KiB", "workers": 3},
    "one key": {"json_keys": ("text",), "no_provenance": True},
    "with a sample": {"sample": "80%", "executor": "processes"},
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", HELD_OUT.values(), ids=HELD_OUT)
def test_what_is_held_out_is_what_the_sample_has(texts, tmp_path, way):
    """The held-out dataset is that of a build of these records alone, manifest included; the other has the others."""
    build(texts, tmp_path / "out", hold_out="20%", **way)
    shared = {name: value for name, value in way.items() if name not in {"executor", "shard_size"}}
    build(texts, tmp_path / "all", **shared)
    build(texts, tmp_path / "valid", **{**shared, "sample": 0.2})
    valid = {name.replace("x_", "x_valid_"): data for name, data in published(tmp_path / "valid").items()}
    out = published(tmp_path / "out")
    assert valid.items() <= out.items()
    assert len(out) == 2 * len(valid)
    train, held_out, all_documents = (documents(tmp_path / name) for name in ("out", "valid", "all"))
    assert sorted(train + held_out) == sorted(all_documents)


def test_a_sample_without_records_is_refused(texts, tmp_path):
    with pytest.raises(InputError, match="no record is left: of 272, 2 are bad and 270 are left out"):
        build(texts, tmp_path / "out", sample=1e-12)
    assert not list((tmp_path / "out").glob("*.bin"))
