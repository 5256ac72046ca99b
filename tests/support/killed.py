"""A command that is killed at a known point, however fast or busy the machine is."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.golden import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = """\
import os, signal, sys
from workflows.cli import main
from workflows.state.ledger import Ledger

record, left = Ledger.record_shard, int(sys.argv[1])

def recorded(ledger, *arguments):
    global left
    record(ledger, *arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Ledger.record_shard = recorded
sys.exit(main(sys.argv[2:]))
"""


def run_until_killed(arguments: Sequence[str], *, num_shards: int) -> None:
    """Run a dsindex command in a process that kills itself when it has committed so many shards."""
    command = [sys.executable, "-c", PROGRAM, str(num_shards), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
