"""Trust no tokenizer: each of a few hundred drawn files loads, or is refused in one sentence, in bounded memory."""

import os
import subprocess
import sys

import pytest

from dsindex.text.engines import find_overlap
from tests.support.golden import ROOT

CASES = int(os.environ.get("DSINDEX_FUZZ_CASES", "270"))


@pytest.mark.timeout(900)
def test_hostile_tokenizers_load_or_are_refused_in_one_sentence(tmp_path):
    command = [sys.executable, "-m", "tests.text.hostile_tokenizers", str(tmp_path), "0", str(CASES)]
    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert child.returncode == 0, f"{child.stdout.splitlines()[-1:]}: {child.stderr[-2000:]}"


def test_overlaps_of_many_added_tokens_are_found_at_once():
    """The product over these pairs took 20 minutes."""
    raw, late = ([f"<{kind}{number:x}>" for number in range(30_000)] for kind in "rl")
    assert find_overlap(raw, late) is None
    assert {*find_overlap([*raw, "l5>"], late)} == {"l5>", "<l5>"}
