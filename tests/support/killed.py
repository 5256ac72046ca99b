"""A command that is killed at a known point, however fast or busy the machine is."""

import os
import signal
import subprocess
import sys

from tests.support.golden import ROOT

PROGRAM = """\
import os, signal, sys
from dsindex.cli.main import main
from dsindex.engine.ledger import Ledger

name, left, setup = sys.argv[1], int(sys.argv[2]), sys.argv[3]
exec(setup)
record = getattr(Ledger, name)

def recorded(ledger, *arguments):
    global left
    record(ledger, *arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

setattr(Ledger, name, recorded)
sys.exit(main(sys.argv[4:]))
"""


def run_until_killed(arguments, *, num_shards):
    """Run a dsindex command in a process that kills itself when it has committed so many shards."""
    kill_after("record_shard", num_shards, arguments)


def kill_after(record, times, arguments, *, folder=ROOT, setup=""):
    """Run a dsindex command in a process that kills itself when its ledger has recorded something so many times.

    Args:
        record: A method of `Ledger`.
        times: How often it is called.
        arguments: Those of the command.
        folder: Where the command runs.
        setup: Python that runs first.
    """
    command = [sys.executable, "-c", PROGRAM, record, str(times), setup, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
