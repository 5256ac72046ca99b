"""Signals: a stop that compiled code swallows or changes is raised all the same, and a second one ends the process."""

import importlib
import os
import signal
import subprocess
import sys
import time
from multiprocessing.util import Finalize
from threading import Lock

import numpy as np
import pytest

from dsindex.runtime.interrupts import StoppedError, raise_missed_stop, stop_on_signals


@pytest.fixture(autouse=True)
def hang_up_by_default():
    """Whatever started the tests may ignore SIGHUP, as nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "how", "code"), [
    (signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143), (signal.SIGHUP, "terminated", 129),
], ids=["Ctrl-C", "SIGTERM", "SIGHUP"])  # fmt: skip
def test_first_signal_is_raised(number, how, code):
    with pytest.raises(KeyboardInterrupt, match=how) as raised, stop_on_signals():
        os.kill(os.getpid(), number)
    assert raised.value.exit_code == code


PROGRAM = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "dsindex.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["dsindex", "--version"]
from dsindex.__main__ import program
program()
"""


@pytest.mark.parametrize(("handling", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_an_interrupt_while_modules_are_imported(handling, code):
    begin = f"import signal; signal.signal(signal.SIGINT, signal.{handling})"
    process = subprocess.run([sys.executable, "-c", begin + PROGRAM], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (code, "")


def call_and_wait(function):
    function()
    time.sleep(60)


IMPORTED = "import os, signal; os.kill(os.getpid(), signal.SIGTERM); ended = sum(range(10**6))"


def test_a_signal_during_an_import_stops_the_command_once_the_import_has_ended(tmp_path, monkeypatch):
    """A native library panics if an exception is raised while it is imported."""
    (tmp_path / "signalled.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StoppedError, match="terminated"), stop_on_signals():
        call_and_wait(lambda: importlib.import_module("signalled"))
    assert sys.modules.pop("signalled").ended > 0


def test_a_signal_during_a_finalizer_stops_the_command_once_it_has_ended(capfd):
    """Python would print the exception and drop it."""

    def finalize():
        lock = Lock()
        Finalize(lock, os.kill, (os.getpid(), signal.SIGTERM))

    with pytest.raises(StoppedError, match="terminated"), stop_on_signals():
        call_and_wait(finalize)
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_while_a_native_library_looks_at_numpys_version_waits_for_its_end():
    class Version(str):
        __slots__ = ()

        def __len__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().__len__()

    versions = []
    with pytest.raises(StoppedError, match="terminated"), stop_on_signals():
        call_and_wait(lambda: versions.append(np.lib.NumpyVersion(Version("2.0.0"))))
    assert versions == ["2.0.0"]


def wait_in_compiled_code():
    """End as Ray's compiled code does when a signal arrives in it."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except StoppedError as stop:
        msg = "CoreWorker.wait returned a result with an exception set"
        raise SystemError(msg) from stop


def test_stop_that_became_another_error_is_raised_itself():
    with pytest.raises(StoppedError), stop_on_signals():
        wait_in_compiled_code()


def test_stop_that_was_swallowed_is_raised_later():
    with stop_on_signals():
        raise_missed_stop()  # there is none yet
        with pytest.raises(StoppedError):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StoppedError):
            raise_missed_stop()
