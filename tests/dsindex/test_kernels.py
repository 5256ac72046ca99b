"""Compiled kernels: where they are kept, that threads compile them at once, and what they leave alone."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.kernels import loader, machine_code
from dsindex.kernels.cache import KernelLocator, kernel_folder
from dsindex.kernels.machine_code import KernelError, import_kernels, read_machine_code

COMPILE = """
import sys
import numpy as np
from dsindex.kernels.tokens import insert_token
insert_token(np.zeros(1, np.uint32), np.zeros(0, np.int64), 0, np.empty(1, np.int32))
print(sum(insert_token.stats.cache_hits.values()))
"""


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
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
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    assert KernelLocator.from_function(test_folder_depends_on_the_source, str(source)) is None


# The kernels of a build, as machine code.


LOAD = """
import sys
from dsindex.kernels.machine_code import import_kernels
import_kernels()
print("numba" in sys.modules)
"""


def kept_file():
    """The machine code of the tests, which is compiled if it was not yet."""
    import_kernels()
    return Path(kernel_folder(str(Path(machine_code.__file__).parent / "compile.py"))) / "kernels"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """What is started to compile: a program in the place of Python that copies what was compiled, and notes where."""
    kept, program = kept_file(), tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$4" >> {tmp_path}/asked\ncp {kept} "$4"\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    return tmp_path / "asked"


def test_kernels_are_called_without_numba():
    ended = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("False\n", "")


def test_kernels_are_compiled_once_and_again_if_the_file_is_damaged(compiler, cache):
    kernels = [import_kernels.__wrapped__() for _ in "ab"]
    [path] = compiler.read_text().split()
    assert Path(path).is_relative_to(cache)
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    assert read_machine_code(path) is None
    kernels.append(import_kernels.__wrapped__())
    assert compiler.read_text().split() == [path, path]
    places = np.zeros(4, np.int64)
    assert [each.find_newlines(np.frombuffer(b"a\nb\n", np.uint8), 4, places) for each in kernels] == [2, 2, 2]
    assert places.tolist() == [1, 3, 0, 0]


def test_kernels_that_cannot_be_kept_are_compiled_elsewhere(compiler, cache):
    cache.touch()
    import_kernels.__wrapped__()
    [path] = compiler.read_text().split()
    assert not Path(path).is_relative_to(cache)
    assert not Path(path).parent.exists()


def test_a_process_does_without_kernels_where_no_folder_can_be_written(monkeypatch, cache):
    cache.touch()
    monkeypatch.setattr("tempfile.tempdir", str(cache))
    monkeypatch.setattr(machine_code, "import_kernels", import_kernels.__wrapped__)
    monkeypatch.setattr(loader, "_LOADER", loader._Loader())
    loader.load_kernels()
    assert loader.loaded_kernels() is None


def test_kernels_are_compiled_where_files_cannot_be_locked(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    program = importlib.import_module("dsindex.kernels.compile")
    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("sys.argv", ["compile", str(tmp_path / "kernels")])
    monkeypatch.setattr(program, "compile_kernels", lambda: b"code")
    monkeypatch.setattr(program, "Kernels", bytes)
    monkeypatch.setattr(program, "check", bytes)
    program.main()
    assert read_machine_code(str(tmp_path / "kernels")) == b"code"


@pytest.mark.parametrize(("program", "message"), [
    ("/bin/false", "exit code 1"),
    ("/dev/null", "Permission denied"),
    ("/nowhere", "No such file"),
])  # fmt: skip
@pytest.mark.usefixtures("cache")
def test_a_process_does_without_kernels_that_cannot_be_compiled(monkeypatch, program, message):
    monkeypatch.setattr("sys.executable", program)
    with pytest.raises(KernelError, match=message):
        import_kernels.__wrapped__()
    monkeypatch.setattr(machine_code, "import_kernels", import_kernels.__wrapped__)
    monkeypatch.setattr(loader, "_LOADER", loader._Loader())
    loader.load_kernels()
    assert loader.loaded_kernels() is None


@pytest.mark.parametrize("newlines", [
    np.zeros(4, np.int32),
    np.zeros((2, 2), np.int64),
    np.zeros(8, np.int64)[::2],
    np.frombuffer(bytearray(33), np.int64, 4, offset=1),
], ids=["type", "dimensions", "strides", "alignment"])  # fmt: skip
def test_an_array_that_the_machine_code_is_not_for_is_refused(newlines):
    with pytest.raises(TypeError, match="expected int64 of 1 dimensions"):
        import_kernels().find_newlines(np.frombuffer(b"a\n", np.uint8), 2, newlines)


@pytest.mark.exhaustive
def test_processes_that_need_kernels_at_once_compile_them_once(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", LOAD]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    assert {process.communicate()[0].split()[0] for process in started} == {b"False"}
    [folder] = (tmp_path / "dsindex" / "kernels").glob("compile-*")
    assert sorted(path.name for path in folder.iterdir()) == ["kernels", "lock"]


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
