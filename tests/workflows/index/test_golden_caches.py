"""Megatron's golden caches, byte for byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.golden import GOLDEN, SHARED_GOLDEN
from tests.workflows.index.index_jobs import index

if TYPE_CHECKING:
    from pathlib import Path


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
