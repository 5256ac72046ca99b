"""Jobs on a real cluster with token authentication on this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

import dsindex
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.processes import wait_until
from tests.workflows.submit.command_lines import parse
from workflows.cluster import submit
from workflows.cluster.job_server import ClusterError, JobServer, Submission

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAYS_OWN_CALL = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
"""Ray 2.60 follows logs with a parameter that aiohttp 3.14 no longer likes; users do not see the warning."""

# A real cluster: cluster_configs/local.sh, which has tokens on.


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster with tokens; afterwards this process can start no instance without, so the shared one comes first."""
    request.getfixturevalue("ray_instance")
    with local_cluster(1) as running:
        yield running


@pytest.fixture
def reach(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, cluster.access[name])
    return cluster.access["RAY_API_SERVER_ADDRESS"]


SHIPPED_CODE = (
    "import os, sys; sys.path.insert(0, os.getcwd());"
    "import workflows.cluster.submit, dsindex; folder = os.getcwd() + os.sep;"
    "print('shipped', workflows.cluster.submit.__file__.startswith(folder), dsindex.__file__.startswith(folder));"
    "print('config', open('job.yaml').read(), 'cluster', ':' in os.environ['RAY_ADDRESS'])"
)


@pytest.mark.ray
@RAYS_OWN_CALL
def test_jobs_end_with_their_own_exit_code(
    reach: str, cluster: LocalCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = cluster.script("status")
    assert "head: running" in status
    assert "worker-0: running" in status
    config = tmp_path / "job.yaml"
    config.write_text("key: value")
    package = submit.plan_submission(["build", "--config", str(config)])
    started = tmp_path / "started"
    entries = {
        "good": Submission(entrypoint=shlex.join(["python", "-c", SHIPPED_CODE]), files=package.files),
        "bad": Submission(entrypoint="echo it goes wrong; exit 3"),
        "killed": Submission(entrypoint="kill -9 $$"),
        "long": Submission(entrypoint=f"touch {started}; exec sleep 1000"),
    }
    server = JobServer()
    jobs = {name: server.submit(entry) for name, entry in entries.items()}

    wait_until(started.exists, "the long job")
    assert submit.run_status(parse("status", "--address", reach, jobs["long"])) == 0
    assert f"{jobs['long']}: running\n" in capfd.readouterr().out
    assert submit.run_stop(parse("stop", jobs["long"])) == 0
    assert f"{jobs['long']}: stopped" in capfd.readouterr().out
    assert submit.run_status(parse("status", jobs["long"])) == 143

    assert submit.run_logs(parse("logs", "--follow", jobs["good"])) == 0
    shown = capfd.readouterr()
    assert "shipped True True\nconfig key: value cluster True\n" in shown.out
    assert f"{jobs['good']}: succeeded\n" in shown.err
    assert submit.run_status(parse("status", jobs["bad"])) == 3
    assert capfd.readouterr().out == f"{jobs['bad']}: failed, exit code 3\n"
    assert submit.run_status(parse("status", jobs["killed"])) == 137
    assert submit.run_logs(parse("logs", jobs["bad"])) == 0
    assert "it goes wrong\n" in capfd.readouterr().out


@pytest.mark.ray
@RAYS_OWN_CALL
def test_submit_runs_the_command_line_and_comes_back_to_a_detached_job(
    reach: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit.run(parse("submit", "--no-wait", "--address", reach, "--", "--version")) == 0
    shown = capfd.readouterr()
    job = shown.out.strip()
    assert job.startswith("raysubmit_")
    assert f"dsindex logs --follow --address {reach} {job}" in shown.err
    # Another one, followed from its start: the job's own command lacks what it needs.
    assert submit.run(parse("submit", "--", "build", "--workers", "1")) == 2
    shown = capfd.readouterr()
    assert "--input is required" in shown.out
    assert "failed, exit code 2\n" in shown.err
    assert submit.run_status(parse("status", job)) == 0
    assert submit.run_logs(parse("logs", job)) == 0
    assert f"{job}: succeeded\n" in (shown_later := capfd.readouterr().out)
    assert f"dsindex {dsindex.__version__}\n" in shown_later


@pytest.mark.ray
@pytest.mark.usefixtures("reach")
@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
def test_unknown_job_is_named(verb: str) -> None:
    run = {"status": submit.run_status, "logs": submit.run_logs, "stop": submit.run_stop}[verb]
    with pytest.raises(ClusterError, match="expected the id of a job of this cluster, got 'raysubmit_x'"):
        run(parse(verb, "raysubmit_x"))


@pytest.mark.ray
@pytest.mark.usefixtures("reach")
def test_missing_and_wrong_token_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ClusterError, match="does not accept the token in RAY_AUTH_TOKEN; set RAY_AUTH_TOKEN, or"):
        JobServer()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ClusterError, match="asks for its token"):
        JobServer()


@pytest.mark.ray
def test_stopping_the_cluster_ends_the_drivers_of_its_jobs_too(
    reach: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The last test here: Ray's own ways of stopping leave drivers running, and the fixture looks for them."""
    started = tmp_path / "started"
    driver = f"import os, time; open({str(started)!r}, 'w').close(); time.sleep(1000)"
    JobServer(reach).submit(Submission(entrypoint=shlex.join(["python", "-c", driver])))
    wait_until(started.exists, "the driver")
    assert not (cluster.folder / ".ray").exists(), "a token was written into the home folder"
