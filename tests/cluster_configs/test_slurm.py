"""The Slurm script's exit status, with Slurm and Ray played by small scripts: it believes the manifest, not them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = Path(__file__).parents[2] / "cluster_configs" / "slurm.sbatch"

SRUN = """#!/usr/bin/env bash
# Plays srun: runs what it is given, as the only node.
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
# Plays scontrol: names the nodes, and writes down what is queued again.
case "$1" in
show) echo node-1 && echo node-2 ;;
requeue) echo "$2" >>"$RECORD" ;;
esac
"""
HOSTNAME = "#!/usr/bin/env bash\necho 10.1.2.3 172.17.0.1\n"
RAY = """#!/usr/bin/env bash
# Plays ray symmetric-run: the arguments up to -- are Ray's.
echo "$@" >"$ARGUMENTS"
[[ "$PLAY" == never-started ]] && exit 0
while [[ "$1" != -- ]]; do shift; done
shift
exec "$@"
"""
PYTHON = """#!/usr/bin/env bash
# Plays the build, and leaves everything else to the real Python.
[[ "$1 $2" == "-m workflows" ]] || exec "$REAL_PYTHON" "$@"
case "$PLAY" in
done) touch "$MANIFEST" ;;
fails) exit 1 ;;
terminated) exit 143 ;;
slow) touch "$RECORD.begun"; sleep 3600 & wait $! ;;
esac
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    played = {"srun": SRUN, "scontrol": SCONTROL, "hostname": HOSTNAME, "ray": RAY, "python": PYTHON}
    for name, text in played.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    (tmp_path / "build.yaml").write_text(f"output-prefix: {tmp_path}/out\njson_keys: [text, title]\n")
    (tmp_path / "out_title_document.manifest.json").touch()
    slurm = {"SLURM_JOB_ID": "71234", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NUM_NODES": "2"}
    slurm |= {"SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_CPUS_PER_TASK": "32", "REAL_PYTHON": sys.executable}
    paths = {"RECORD": tmp_path / "queued", "ARGUMENTS": tmp_path / "arguments"}
    paths["MANIFEST"] = tmp_path / "out_text_document.manifest.json"

    started: list[subprocess.Popen[str]] = []

    def run(play: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **slurm, **{name: str(path) for name, path in paths.items()}, "PLAY": play}
        process = subprocess.Popen(
            ["bash", str(SCRIPT), "build.yaml"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("play", "code", "says"),
    [
        ("done", 0, ""),
        ("fails", 1, "its exit code: 1"),
        ("terminated", 143, "its exit code: 143"),
        ("never-started", 1, "its exit code: none"),
        ("does-nothing", 1, "out_text_document.manifest.json"),
    ],
)
def test_exit_status_is_that_of_the_build_and_its_manifest(
    start: Callable[[str], subprocess.Popen[str]], play: str, code: int, says: str
) -> None:
    process = start(play)
    _, shown = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert says in shown


def test_ray_that_never_started_is_a_failure_although_an_old_manifest_lies_there(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "out_text_document.manifest.json").touch()
    process = start("never-started")
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1


def test_ray_gets_the_heads_address_and_nothing_is_left(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("done")
    process.communicate(timeout=PATIENCE_SECONDS)
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith("symmetric-run --address 10.1.2.3:21234 --min-nodes 2 --num-cpus=32 ")
    assert not list(tmp_path.glob(".slurm-*"))


def test_folder_of_a_former_run_is_used_again_and_other_files_in_it_stay(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    folder = tmp_path / ".slurm-71234"
    folder.mkdir()
    for name in (".dsindex-run", "token", "exit-code", "mine"):
        (folder / name).write_text("former")
    process = start("done")
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert [path.name for path in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize("linked", [False, True])
def test_folder_that_the_script_has_not_made_is_refused_and_kept(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path, linked: bool
) -> None:
    folder, mine = tmp_path / ".slurm-71234", tmp_path / "mine"
    mine.mkdir()
    (mine / "token").write_text("mine")
    if linked:
        (mine / ".dsindex-run").touch()
        folder.symlink_to(mine)
    else:
        mine.rename(folder)
    process = start("done")
    _, shown = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert ".slurm-71234 exists, but this script did not create it; move it away" in shown
    assert (folder / "token").read_text() == "mine"


def test_end_of_time_stops_the_build_and_queues_it_again(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("slow")
    wait_until((tmp_path / "queued.begun").exists, "the build")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "queued").read_text() == "71234\n"
