"""The Slurm script, with Slurm and Ray played by small scripts: it believes the command's own exit code, not theirs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PATIENCE_SECONDS, wait_until

SCRIPT = Path(__file__).parents[2] / "cluster_configs" / "slurm.sbatch"

PLAYED = Path(__file__).parent / "played"
"""Scripts that play Slurm, Ray and the command."""
JOB = f"{os.getpid()}1234"
"""Not that of a test that runs at the same time."""
ADDRESS = "127.0.0.1:21234"
"""Of the interface `lo`, with a port made from the job's id."""


@pytest.fixture
def start(tmp_path):
    binaries = tmp_path / ".venv" / "bin"
    shutil.copytree(PLAYED, binaries)
    (tmp_path / "build.yaml").touch()
    slurm = {"SLURM_JOB_ID": JOB, "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NUM_NODES": "2"}
    slurm |= {"SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_CPUS_ON_NODE": "32", "REAL_PYTHON": sys.executable}
    slurm |= {"RECORD": str(tmp_path / "queued"), "ARGUMENTS": str(tmp_path / "arguments"), "DSINDEX_INTERFACE": "lo"}
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "DSINDEX_"))}
    started = []

    def run(*command, play="done"):
        words = ["bash", str(SCRIPT), *(command or ("build.yaml",))]
        variables = {**inherited, **slurm, "PLAY": play}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(words, cwd=tmp_path, env=variables, start_new_session=True, **streams)
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for folder in Path("/tmp").glob(f"dsindex-{JOB}-*"):
        shutil.rmtree(folder)


def outcome(process):
    """Wait for the script; return its exit code and what it wrote to standard error."""
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, errors


@pytest.mark.parametrize(("play", "code", "says"), [
    ("done", 0, ""),
    ("terminated", 143, "its exit code: 143"),
    ("never-started", 1, "its exit code: none"),
])  # fmt: skip
def test_exit_status_is_that_of_the_command(start, play, code, says):
    returned, errors = outcome(start(play=play))
    assert returned == code
    assert says in errors


@pytest.mark.parametrize(("arguments", "run"), [
    (("build.yaml",), ["build", "--config", "FOLDER/build.yaml"]),
    (("verify", "a folder/x", "$HOME", '"'), ["verify", "a folder/x", "$HOME", '"']),
], ids=["configuration", "command"])  # fmt: skip
def test_any_command_runs_on_the_cluster(start, tmp_path, arguments, run):
    assert outcome(start(*arguments))[0] == 0
    expected = [ADDRESS, *(word.replace("FOLDER", str(tmp_path)) for word in run)]
    assert (tmp_path / "arguments.command").read_text().splitlines() == expected


def test_end_of_time_stops_the_build_and_queues_it_again(start, tmp_path):
    process = start(play="slow")
    wait_until((tmp_path / "queued.begun").exists, "the command")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "queued").read_text() == f"{JOB}\n"
