"""Builds of three small files in another order, and what they hold."""

import contextlib
import json

import pyarrow.parquet as pq

from dsindex.api.verify import verify
from dsindex.datasets import IndexedDataset
from dsindex.options.build import BuildConfig
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config

SEED = 3

FILES = {"a": 150, "b": 90, "c": 40}
"""Name and number of lines of each input."""


def build(folder, out, **options):
    own = {"json_keys": ("text", "title"), "append_eod": True, "on_bad_record": "quarantine"}
    own |= {"output_prefix": str(out / "x"), "shard_size": "4KiB"}
    out.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return run_config(config_of(BuildConfig, tuple(FILES), **{**own, **options}))


def documents(out, key="text"):
    dataset = IndexedDataset(str(out / f"x_{key}_document"))
    return [dataset.document(number).tolist() for number in range(len(dataset.document_indices) - 1)]


def origins(out, key="text"):
    rows = pq.read_table(out / f"x_{key}_document.provenance.parquet").to_pylist()
    return [(row["input"], row["offset"], row["line"]) for row in rows]


def content(out, key="text"):
    return json.loads((out / f"x_{key}_document.manifest.json").read_bytes())["content"]


def require_whole(out, folder, **options):
    with contextlib.chdir(folder):
        for key in ("text", "title"):
            report = verify(out / f"x_{key}_document", against_source=True, tokenizer=OWN.plain_tokenizer, **options)
            assert report.is_whole, report.findings
            assert "against the source" in str(report)
