"""The benchmark harness at a tiny size: that it measures what it says, compares outputs, and names absent peers."""

import json

import pytest

from dsindex.demo.run import write_demo_jsonl
from tests.benchmarks.__main__ import main
from tests.benchmarks.afternoon import main as afternoon
from tests.benchmarks.driver import build, plan
from tests.benchmarks.processes import ROOT
from tests.support.golden import OWN


def test_driver_is_driven_to_the_end_by_an_imagined_cluster(tmp_path):
    found = build(
        str(OWN.docs), shards=40, slots=7, tokenizer=str(OWN.plain_tokenizer), output_prefix=str(tmp_path / "out")
    )
    assert 35 <= found["shards"] <= 40
    assert 0 < found["first_task_seconds"] < found["seconds"]
    assert plan(str(OWN.docs))["shards"] == 1


@pytest.mark.exhaustive
def test_harness_measures_and_reports(tmp_path):
    arguments = ["--only", "build", "merge", "caches", "--rounds", "1", "--megabytes", "0.2", "--scale", "0.005"]
    arguments += ["--tokenizer", str(OWN.plain_tokenizer), "--peers-python", str(tmp_path / "none")]
    arguments += ["--datatrove-python", str(tmp_path / "none")]
    assert main([*arguments, "--output", str(tmp_path / "out"), "--temporary", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    rows = {(row["group"], row["against"]): row for row in results["rows"]}
    assert rows["build", "preprocess_data_fast.py"]["note"] == "not measured: give a checkout with --megatron PATH"
    assert rows["build", "preprocess_data_fast.py"]["is_met"] is None
    assert rows["caches", "prepare_cache.py"]["note"] == "not measured: give a checkout with --megatron PATH"
    assert rows["merge", "cp + fsync"]["ratios"][0] > 0
    assert results["machine"]["cores"] >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # inputs and outputs are gone


@pytest.mark.exhaustive
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the commits of a clone")
@pytest.mark.parametrize("commit", ["HEAD", "no-such-commit"])
def test_a_build_is_measured_against_an_earlier_commit(tmp_path, commit):
    arguments = ["--only", "self", "--against", commit, "--megabytes", "0.1", "--tokenizer", str(OWN.plain_tokenizer)]
    assert main([*arguments, "--output", str(tmp_path / "out"), "--temporary", str(tmp_path)]) == 0
    [row] = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["rows"]
    assert row["note"] == ("" if commit == "HEAD" else "not measured: there is no commit no-such-commit")
    assert len(row["ratios"]) == (5 if commit == "HEAD" else 0)


@pytest.mark.exhaustive
def test_an_afternoon_ends_with_a_delivery_that_is_proven_and_traced(tmp_path, capsys):
    (tmp_path / "corpus").mkdir()
    for path in write_demo_jsonl(tmp_path / "demo", num_documents=600, num_files=3):
        records = [json.loads(line) | {"meta": {"source": path.stem}} for line in path.read_text().splitlines()]
        (tmp_path / "corpus" / path.name).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    words = [str(tmp_path / "corpus"), str(OWN.plain_tokenizer), "--output", str(tmp_path / "out")]
    assert afternoon([*words, "--hold-out", "20%"]) == 0
    assert "\nall " in capsys.readouterr().out
    done = {each["step"]: each["said"] for each in json.loads((tmp_path / "out" / "afternoon.json").read_bytes())}
    assert "DAMAGED" in done["verify after a byte changed"]
    assert "\nintact   there/delivery.yaml " in done["verify where it arrives"]
    assert done["trace a step"].startswith("step 1: 8 samples, ")
    assert (tmp_path / "out" / "there" / "report.html").stat().st_size > 10_000
