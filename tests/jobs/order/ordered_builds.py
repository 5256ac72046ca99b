"""Builds of three small files in another order, and what they hold."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from dsindex.api.verify import verify
from dsindex.datasets import IndexedDataset
from dsindex.options.build import BuildConfig
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config

if TYPE_CHECKING:
    from pathlib import Path

SEED = 3

FILES = {"a": 150, "b": 90, "c": 40}
"""Name and number of lines of each input."""


def build(folder: Path, out: Path, **options: Any) -> Any:
    own: dict[str, Any] = {"json_keys": ("text", "title"), "append_eod": True, "on_bad_record": "quarantine"}
    own |= {"output_prefix": str(out / "x"), "shard_size": "4KiB"}
    out.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return run_config(config_of(BuildConfig, tuple(FILES), **{**own, **options}))


def documents(out: Path, key: str = "text") -> list[list[int]]:
    dataset = IndexedDataset(str(out / f"x_{key}_document"))
    return [dataset.document(number).tolist() for number in range(len(dataset.document_indices) - 1)]


def origins(out: Path, key: str = "text") -> list[tuple[int, int, int]]:
    rows = pq.read_table(out / f"x_{key}_document.provenance.parquet").to_pylist()
    return [(row["input"], row["offset"], row["line"]) for row in rows]


def content(out: Path, key: str = "text") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"x_{key}_document.manifest.json").read_bytes())["content"]
    return found


def require_whole(out: Path, folder: Path, **options: Any) -> None:
    with contextlib.chdir(folder):
        for key in ("text", "title"):
            report = verify(out / f"x_{key}_document", against_source=True, tokenizer=OWN.plain_tokenizer, **options)
            assert report.is_whole, report.findings
            assert "against the source" in str(report)
