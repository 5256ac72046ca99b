"""The benchmark harness at a tiny size: that it measures what it says, compares outputs, and names absent peers."""

import collections
import json
import subprocess
import sys

import pytest

from dsindex.cli.main import main as dsindex
from tests.benchmarks.__main__ import main
from tests.benchmarks.driver import build, plan
from tests.benchmarks.processes import ROOT, Run, RunError, measure
from tests.benchmarks.rows import Row, compare_runs
from tests.benchmarks.setting import check_same
from tests.benchmarks.texts import write_text
from tests.support.golden import GOLDEN, OWN

MIB = 1 << 20


def run_of(seconds, *, cpu_seconds=1.0, digest=None):
    return Run(seconds=seconds, cpu_seconds=cpu_seconds, peak_bytes=0, digest=digest)


def test_text_is_natural_and_a_function_of_its_arguments(tmp_path):
    first, again, other = (write_text(tmp_path / name, MIB, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert MIB <= first.stat().st_size < 1.1 * MIB
    texts = [json.loads(line)["text"] for line in first.read_text(encoding="utf-8").splitlines()]
    assert len(texts) > 500
    assert all(texts)
    assert len(set(texts)) > 0.99 * len(texts)
    counts = collections.Counter(word for text in texts for word in text.split())
    assert counts["the"] > 20 * counts["unless"] > 0
    assert sum(count == 1 for count in counts.values()) > 3_000  # new words go on turning up


def test_measure_counts_children_and_orphans():
    burn = "sum(range(30_000_000))"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{burn}'])"
    alone, with_orphan = (measure([sys.executable, "-c", code]) for code in ("pass", orphan))
    assert with_orphan.cpu_seconds > alone.cpu_seconds + 0.1


@pytest.mark.exhaustive
def test_measure_gives_the_peak_over_all_processes():
    hold = f"held = bytearray({40 * MIB}); held[::4096] = b'x' * len(held[::4096])"
    child = f"import sys; {hold}; print(flush=True); sys.stdin.read()"
    both = (
        "import subprocess, sys, time; pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE};"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], **pipes); {hold};"
        "child.stdout.readline(); time.sleep(2); child.communicate()"
    )
    assert 80 * MIB < measure([sys.executable, "-c", both]).peak_bytes < 130 * MIB


def test_measure_says_why_a_program_failed():
    with pytest.raises(RunError, match=r"failed with 3:\nwhat it said"):
        measure([sys.executable, "-c", "import sys; print('what it said'); sys.exit(3)"])


def test_rows_pair_rounds_and_judge_the_median():
    row = compare_runs(
        "group", "name", "peer", ours=[run_of(1), run_of(2), run_of(4)], peer=[run_of(8), run_of(6)], target=3.0
    )
    assert row.ratios == (8, 3, 1.5)
    assert row.is_met
    assert not Row(group="g", name="n", ours=(1.0, 3.0, 9.0), target=2.0, judged="ours at most").is_met
    assert Row(group="g", name="n", target=2.0).is_met is None
    assert Row.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_different_outputs_are_an_error():
    check_same("builds", [run_of(1, digest="a"), run_of(2, digest="a")])
    with pytest.raises(RunError, match="builds: outputs differ"):
        check_same("builds", [run_of(1, digest="a"), run_of(2, digest="b")])


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


@pytest.mark.parametrize("flag", ["--temporary", "--corpus", "--tokenizer", "--megatron"])
def test_harness_names_what_is_not_there(tmp_path, capsys, flag):
    with pytest.raises(SystemExit, match="2"):
        main([flag, str(tmp_path / "nowhere"), "--output", str(tmp_path / "out")])
    assert f"argument {flag}: expected a fol" in (shown := capsys.readouterr().err) or "expected a file" in shown
    assert "nowhere" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_loader_reads_the_same_with_any_workers(tmp_path):
    words = ["index", "--data-path", str(GOLDEN / "eod_text_document"), "--seq-length", "16", "--epochs", "1"]
    assert dsindex([*words, "--data-cache-path", str(tmp_path)]) == 0
    command = [sys.executable, "-m", "tests.benchmarks.loader", str(tmp_path), "--batches", "20", "--batch-size", "3"]
    runs = [
        json.loads(measure([*command, "--workers", workers, *more], cwd=ROOT).output)
        for workers, more in (("1", []), ("3", []), ("2", ["--rate", "100000"]))
    ]
    assert len({run["digest"] for run in runs}) == 1
    assert all(run["tokens_per_second"] > 0 and run["gets_per_sample"] == 0 for run in runs)
    with pytest.raises(RunError, match="expected more than 6 batches for each worker"):
        measure([*command, "--workers", "4"], cwd=ROOT)


@pytest.mark.exhaustive
@pytest.mark.ray
def test_warm_workers_of_ray_and_threads_make_the_same_shards(tmp_path):
    command = ["-m", "tests.benchmarks.warm", str(OWN.docs), "--tokenizer", str(OWN.plain_tokenizer)]
    shown = subprocess.check_output([sys.executable, *command, "--folder", str(tmp_path / "w"), "--rounds", "1"])
    found = json.loads(shown.splitlines()[-1])
    assert found["shards"] == 1
    assert len(found["ray"]) == len(found["local"]) == len(found["empty"]) == 1
    assert found["empty"][0] > 0
