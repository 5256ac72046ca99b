"""Where the golden files are: the project's own, and those beside the checkout where they are present."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
SHARED_GOLDEN = ROOT.parent / "shared" / "golden" / "megatron"

DATASETS = [idx.with_suffix("") for folder in (GOLDEN, SHARED_GOLDEN) for idx in sorted(folder.glob("*.idx"))]
"""Prefixes of datasets that Megatron-LM wrote."""


def dataset_name(prefix: Path) -> str:
    return f"{'own' if prefix.is_relative_to(GOLDEN) else 'shared'}-{prefix.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCache:
    """The cache of one split that megatron-core wrote, and what it was asked for."""

    folder: Path
    """Where the datasets are."""
    description_path: Path
    case: dict[str, Any]
    """The entry of gpt_index_cases.json."""

    @property
    def split(self) -> str:
        return self.description_path.name.split("-")[2]

    @property
    def add_extra_token(self) -> bool:
        return bool(self.case.get("add_extra_token", True))

    @property
    def num_samples(self) -> int:
        return int(self.case["lengths"][["train", "valid", "test"].index(self.split)])

    def prefixes(self) -> list[str]:
        return [str(self.folder / prefix) for prefix in self.case["prefixes"]]

    def __str__(self) -> str:
        return f"{'own' if self.folder == GOLDEN else 'shared'}-{self.case['name']}-{self.split}"


def golden_caches(class_name: str) -> list[GoldenCache]:
    """Return the caches of single datasets (GPTDataset) or of blends (BlendedDataset)."""
    caches = []
    for folder in (GOLDEN, SHARED_GOLDEN):
        cases_path = folder / "gpt_index_cases.json"
        for case in json.loads(cases_path.read_bytes()) if cases_path.exists() else []:
            blends = any("BlendedDataset" in name for name in case["files"])
            caches += [
                GoldenCache(folder=folder, description_path=folder / "cache" / case["name"] / name, case=case)
                for name in case["files"]
                if name.endswith("description.txt") and class_name in name and blends == (class_name != "GPTDataset")
            ]
    return caches
