"""The script that waits for a RayJob, with kubectl played by a small script: it ends on failure, too."""

import os
import subprocess

import pytest

from tests.cluster_configs.configurations import CONFIGS
from tests.support.processes import PATIENCE_SECONDS

KUBECTL = """#!/usr/bin/env bash
# Plays kubectl: a line of $STATES for each call, the last one again and again.
[[ "$*" == *reason* ]] && exec echo "AppFailed the driver ended with 1"
echo "$@" >>"$STATES.calls"
line="$(head -n 1 "$STATES")"
[[ "$(wc -l <"$STATES")" == 1 ]] || sed -i 1d "$STATES"
[[ "$line" == unreachable ]] && exit 1
printf %s "$line"
"""


@pytest.mark.parametrize(("states", "code"), [
    ([" ", "Running RUNNING", "Complete SUCCEEDED"], 0),
    (["Running FAILED", "Retrying ", "Running RUNNING", "Complete SUCCEEDED"], 0),
    (["Running RUNNING", "Failed FAILED"], 1),
    (["Complete STOPPED"], 1),
    (["Failed "], 1),
    (["ValidationFailed "], 1),
    (["unreachable", "unreachable", "Complete SUCCEEDED"], 0),
    (["unreachable"], 1),
], ids=lambda value: ", ".join(value) if isinstance(value, list) else None)  # fmt: skip
def test_wait_ends_when_the_job_does(tmp_path, states, code):
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "states").write_text("\n".join([*states, ""]))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATES": str(tmp_path / "states")}
    shown = subprocess.run(
        ["bash", CONFIGS / "kuberay_wait.sh", "mine", "--namespace", "data"],
        env=environment | {"DSINDEX_WAIT_SECONDS": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert shown.returncode == code
    assert ("the driver ended with 1" in shown.stderr) is (code == 1 and states != ["unreachable"])
    calls = (tmp_path / "states.calls").read_text().splitlines()
    assert all(call.startswith("get rayjob mine --namespace data -o jsonpath=") for call in calls)
