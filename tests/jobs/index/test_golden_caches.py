"""Megatron's golden caches, byte for byte."""

import json

import pytest

from tests.jobs.index.index_jobs import index
from tests.support.golden import GOLDEN, SHARED_GOLDEN


def golden_cases():
    cases = []
    for folder in (GOLDEN, SHARED_GOLDEN):
        path = folder / "gpt_index_cases.json"
        owner = "own" if folder == GOLDEN else "shared"
        found = json.loads(path.read_bytes()) if path.exists() else []
        cases += [pytest.param(folder, case, id=f"{owner}-{case['name']}") for case in found]
    return cases


@pytest.mark.parametrize(("folder", "case"), golden_cases())
def test_golden_caches_come_out_byte_for_byte(folder, case, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)  # dataset_path is the prefix as typed
    report = build_golden(folder, case, tmp_path, "local")
    assert written_to(tmp_path) == golden_files(folder, case)
    assert len(report.results) == len(report.tasks) > 0


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_other_executors_write_the_same_files(executor, tmp_path, monkeypatch):
    cases = json.loads((GOLDEN / "gpt_index_cases.json").read_bytes())
    case = next(case for case in cases if "blend" in case["name"])
    monkeypatch.chdir(GOLDEN)
    build_golden(GOLDEN, case, tmp_path, executor)
    assert written_to(tmp_path) == golden_files(GOLDEN, case)


def build_golden(folder, case, tmp_path, executor):
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


def written_to(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-dsindex.json")}


def golden_files(folder, case):
    return {name: (folder / "cache" / case["name"] / name).read_bytes() for name in case["files"]}
