"""Trust no file: damaged files give our own errors or findings, within bounds of time and memory (fuzzing.py)."""

import json
import os
import subprocess
import sys

import pytest

from tests.formats.fuzzing import FILES

CASES = os.environ.get("DSINDEX_FUZZ_CASES", "25")
"""Damaged files of each kind; the long form has 1,200, 10,800 in all."""
GROUPS = [[*FILES][:5], [*FILES][5:]]


@pytest.mark.parametrize("kinds", GROUPS, ids=" ".join)
def test_damaged_file_gives_own_errors_only(kinds, tmp_path):
    # An arena of malloc, and the pools of Arrow, take more address space than a file may.
    env = {**os.environ, "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONFAULTHANDLER": "1"}
    words = [sys.executable, "-m", "tests.formats.fuzzing", str(tmp_path / "whole"), CASES, *kinds]
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=env, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told.keys() == set(kinds)
    for kind, (_, noticed) in told.items():
        # `inspect` passes over lines of a journal that it cannot read.
        assert kind == "journal" or noticed > int(CASES) // 3, told
