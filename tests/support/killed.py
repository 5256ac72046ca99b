"""A command that is killed at a known point, however fast or busy the machine is."""

import signal
import subprocess
import sys

from tests.support.golden import ROOT

PROGRAM = """\
import os, signal, sys
from dsindex.cli.main import main
from dsindex.runtime.work_folder import Journal, ShardMade

left = int(sys.argv[1])
record = Journal.record

def recorded(journal, line):
    global left
    record(journal, line)
    left -= isinstance(line, ShardMade)
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Journal.record = recorded
sys.exit(main(sys.argv[2:]))
"""


def run_until_killed(arguments, *, num_shards):
    """Run a dsindex command in a process that kills itself when it has committed so many shards."""
    command = [sys.executable, "-c", PROGRAM, str(num_shards), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
