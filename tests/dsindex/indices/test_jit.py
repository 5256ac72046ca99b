import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core import errors

from dsindex.kernels.jit import compiled

PROGRAM = """
import threading
import numpy as np
from dsindex.kernels import json_scanner

line = b'{"a": "b"}'
data = np.frombuffer(line * 2, np.uint8)
places, accepted = np.zeros(1, np.int64), np.zeros(1, np.bool_)
calls = [
    lambda: json_scanner.find_newlines(data, len(line), places),
    lambda: json_scanner.scan_lines(data, places, places + len(line), accepted),
]
barrier = threading.Barrier(len(calls))

def run(call):
    barrier.wait()
    call()

threads = [threading.Thread(target=run, args=(call,)) for call in calls]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(accepted)
"""


@pytest.mark.exhaustive
def test_threads_may_compile_at_once(tmp_path):
    """Nothing is compiled yet, and several loops need one function: as when a machine runs it first."""
    root = Path(__file__).parents[3]
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600
    )
    assert (ended.stdout, ended.stderr) == ("[ True]\n", "")


def test_standard_streams_are_left_alone(monkeypatch):
    """numba colours even the messages that nobody sees, and puts other streams in their place meanwhile."""
    if not hasattr(errors, "ColorShell"):
        pytest.skip("numba found no colorama when it was imported")
    streams = []

    class Watched(errors.ColorShell):
        def __enter__(self):
            super().__enter__()
            streams.append(sys.stdout)

    monkeypatch.setattr(errors, "ColorShell", Watched)

    def wrong(number):
        return number + "a"

    with pytest.raises(errors.TypingError):
        numba.njit(wrong)(1)
    assert streams
    streams.clear()
    with pytest.raises(errors.TypingError):
        compiled(wrong)(1)
    assert not streams
    assert errors.ColorShell is Watched
