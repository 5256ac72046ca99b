"""Jobs on a real cluster with token authentication on this machine."""

import shlex
import sys

import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.cli.submit import ClusterError, JobServer, Submission, exit_code, plan_submission
from tests.support.local_cluster import local_cluster

RAYS_OWN_CALL = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
"""Ray 2.60 follows logs with a parameter that aiohttp 3.14 no longer likes; users do not see the warning."""

# A real cluster: cluster_configs/local.sh, which has tokens on.


@pytest.fixture(scope="module")
def cluster(request):
    """A cluster with tokens; afterwards this process can start no instance without, so the shared one comes first."""
    request.getfixturevalue("ray_instance")
    with local_cluster(1) as running:
        yield running


@pytest.fixture
def reach(cluster, monkeypatch):
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, cluster.access[name])
    return cluster.access["RAY_API_SERVER_ADDRESS"]


SHIPPED_CODE = (
    "import os, sys; sys.path.insert(0, os.getcwd());"
    "import dsindex.cli.submit, dsindex; folder = os.getcwd() + os.sep;"
    "print('shipped', dsindex.cli.submit.__file__.startswith(folder), dsindex.__file__.startswith(folder));"
    "print('config', open('job.yaml').read(), 'cluster', ':' in os.environ['RAY_ADDRESS'])"
)


@pytest.mark.exhaustive
@pytest.mark.ray
@RAYS_OWN_CALL
def test_jobs_end_with_their_own_exit_code(reach, cluster, tmp_path, capfd):
    status = cluster.script("status")
    assert "head: running" in status
    assert "worker-0: running" in status
    config = tmp_path / "job.yaml"
    config.write_text("key: value")
    package = plan_submission(["build", "--config", str(config)])
    good = Submission(entrypoint=shlex.join(["python", "-c", SHIPPED_CODE]), files=package.files)
    server = JobServer(reach)
    failing = {
        server.submit(Submission(entrypoint="exit 3")): 3,
        server.submit(Submission(entrypoint="kill -9 $$")): 137,
        server.submit(plan_submission(["--version"], installed=True, python="/nowhere/python")): 127,
    }
    assert exit_code(server.follow(server.submit(good))) == 0
    assert "shipped True True\nconfig key: value cluster True\n" in capfd.readouterr().out
    assert {job: exit_code(server.follow(job)) for job in failing} == failing
    # Another one, followed from its start: it finds no input on the cluster.
    words = ["build", "--input", "/nowhere.jsonl", "--tokenizer-model", "/nowhere", "--output-prefix", "/nowhere/x"]
    assert main(["submit", "--", *words]) == 1
    shown = capfd.readouterr()
    assert "dsindex build: " in shown.out
    assert ": failed, exit code 1\n" in shown.err


@pytest.mark.ray
@RAYS_OWN_CALL
def test_submit_runs_the_command_line_and_says_how_to_come_back_to_a_detached_job(reach, capfd):
    assert main(["submit", "--no-wait", "--python", sys.executable, "--address", reach, "--", "--version"]) == 0
    shown = capfd.readouterr()
    job = shown.out.strip()
    assert job.startswith("raysubmit_")
    assert f"  ray job logs --follow --address {reach} {job}\n" in shown.err
    assert JobServer(reach).follow(job).status == "SUCCEEDED"
    assert f"dsindex {dsindex.__version__}\n" in capfd.readouterr().out


@pytest.mark.ray
@pytest.mark.usefixtures("reach")
def test_missing_and_wrong_token_are_told_apart(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ClusterError, match="does not accept the token in RAY_AUTH_TOKEN; set RAY_AUTH_TOKEN, or"):
        JobServer()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ClusterError, match="asks for its token"):
        JobServer()
