"""The benchmarks at a tiny size: they compare outputs, and name the programs that are not there."""

import json
import subprocess
import sys

from tests.support.golden import OWN, ROOT


def test_benchmarks_compare_and_name_absent_programs(tmp_path):
    words = ["--only", "build", "merge", "--megabytes", "0.1", "--rounds", "1", "--tokenizer", OWN.plain_tokenizer]
    command = [sys.executable, "-m", "tests.benchmarks", *words, "--output", tmp_path / "results.json"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].endswith("against preprocess_data_fast.py: not measured, name a checkout with --megatron")
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["against"] for row in rows if row["ratio"]] == ["cat and sync"]


def test_scale_prints_the_hours_of_each_stage():
    command = [sys.executable, "-m", "tests.benchmarks.scale", "--executor", "local", "--shards", "200"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.count("read and encode 0.06") for line in lines] == [0, 0, 1, 1, 1]
