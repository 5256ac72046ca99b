"""Compiled kernels: where they are kept, that threads compile them at once, and what they leave alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dsindex
from dsindex.kernels.cache import KernelLocator, kernel_folder

COMPILE = """
import sys
import numpy as np
from dsindex.kernels.tokens import insert_token
insert_token(np.zeros(1, np.uint32), np.zeros(0, np.int64), 0, np.empty(1, np.int32))
print(sum(insert_token.stats.cache_hits.values()))
"""


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr("dsindex.kernels.cache.config.CACHE_DIR", str(tmp_path / "cache"))
    kernel_folder.cache_clear()
    yield tmp_path / "cache"
    kernel_folder.cache_clear()


@pytest.mark.exhaustive
def test_code_in_another_folder_finds_the_compiled_kernels(tmp_path):
    hits = []
    for folder in ("first", "second"):
        package = Path(dsindex.__file__).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, tmp_path / folder / "dsindex", ignore=ignored)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / folder), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, "-P", "-c", COMPILE]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
        hits.append(int(ended.stdout))
        assert not list((tmp_path / folder).rglob("*.nbi"))
    assert hits == [0, 1]


def test_extensions_of_other_packages_are_left_to_those_who_need_them(tmp_path):
    """awkward, which gigatoken depends on, registers one with numba: 0.2 s for every command that needs a kernel."""
    program = f"{COMPILE}print('awkward' in sys.modules)\nimport numba\nnumba.njit(lambda: 1)()\n"
    program += "print('awkward' in sys.modules)\n"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split()[1:] == ["False", "True"]


def test_compiled_kernels_load_without_what_numba_needs_to_compile(tmp_path):
    """It takes 0.1 s of CPU time, and is imported once something is compiled."""
    program = f"{COMPILE}print('numba.np.linalg' in sys.modules)\nimport numba\n"
    program += "print(numba.njit(lambda numbers: numbers.sum())(np.ones(2)), 'numba.np.linalg' in sys.modules)\n"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    said = [subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout.split() for _ in "ab"]
    assert said == [[b"0", b"True", b"2.0", b"True"], [b"1", b"False", b"2.0", b"True"]]


def test_folder_depends_on_the_source(cache, tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("a = 1\n")
    before = kernel_folder(str(source))
    source.write_text("a = 2\n")
    kernel_folder.cache_clear()
    assert Path(before).parent == Path(kernel_folder(str(source))).parent == cache / "dsindex" / "kernels"
    assert kernel_folder(str(source)) != before


@pytest.mark.usefixtures("cache")
def test_folder_that_others_can_write_to_is_not_used(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("def f():\n    pass\n")
    assert KernelLocator.from_function(test_folder_depends_on_the_source, str(source)) is not None
    Path(kernel_folder(str(source))).chmod(0o777)
    assert KernelLocator.from_function(test_folder_depends_on_the_source, str(source)) is None


@pytest.mark.usefixtures("cache")
def test_without_a_home_numba_looks_elsewhere(monkeypatch, tmp_path):
    source = tmp_path / "kernel.py"
    source.touch()
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr("dsindex.kernels.cache.config.CACHE_DIR", str(blocked))
    assert KernelLocator.from_function(test_folder_depends_on_the_source, str(source)) is None


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
    root = Path(dsindex.__file__).parents[1]
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600
    )
    assert (ended.stdout, ended.stderr) == ("[ True]\n", "")
