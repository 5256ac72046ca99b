"""Megatron's golden caches, byte for byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.jobs.index.index_jobs import index
from tests.support.golden import GOLDEN, SHARED_GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

    from dsindex.jobs.index import IndexResult


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
    monkeypatch.chdir(folder)  # dataset_path is the prefix as typed
    report = build_golden(folder, case, tmp_path, "local")
    assert written_to(tmp_path) == golden_files(folder, case)
    assert len(report.results) == len(report.tasks) > 0


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_other_executors_write_the_same_files(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = json.loads((GOLDEN / "gpt_index_cases.json").read_bytes())
    case = next(case for case in cases if "blend" in case["name"])
    monkeypatch.chdir(GOLDEN)
    build_golden(GOLDEN, case, tmp_path, executor)
    assert written_to(tmp_path) == golden_files(GOLDEN, case)


def build_golden(folder: Path, case: dict[str, Any], tmp_path: Path, executor: str) -> IndexResult:
    golden = folder / "cache" / case["name"]
    weights = case.get("weights")
    words = (
        [str(w) for pair in zip(weights, case["prefixes"], strict=True) for w in pair] if weights else case["prefixes"]
    )
    like = next(name for name in sorted(case["files"]) if name.endswith("description.txt"))
    return index(
        executor=executor, data_path=words, seq_length=case["sequence_length"],
        num_samples=["none" if count is None else count for count in case["num_samples"]], split=case["split"],
        seed=case["seed"], data_cache_path=str(tmp_path), like=str(golden / like),
        no_extra_token=not case.get("add_extra_token", True),
        keep_partial_validation=not case.get("drop_last_partial_validation_sequence", True),
    )  # fmt: skip


def written_to(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-dsindex.json")}


def golden_files(folder: Path, case: dict[str, Any]) -> dict[str, bytes]:
    return {name: (folder / "cache" / case["name"] / name).read_bytes() for name in case["files"]}
