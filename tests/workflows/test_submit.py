"""Jobs on a cluster: what is shipped, how they end, and a real cluster with token authentication on this machine."""

from __future__ import annotations

import http.server
import os
import shlex
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import dsindex
import workflows
from dsindex.errors import InputError, LimitError
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.processes import wait_until
from workflows.cli import main
from workflows.cluster import job_server, submit
from workflows.cluster.job_server import ClusterError, JobServer, Submission
from workflows.execution.ray_token import TokenError, find_token
from workflows.options.parser import Parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).parents[2]
RAYS_OWN_CALL = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
"""Ray 2.60 follows logs with a parameter that aiohttp 3.14 no longer likes; users do not see the warning."""
VARIABLES = ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the user's own cluster, nor the token in their home folder."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def parse(verb: str, *words: str) -> argparse.Namespace:
    parser = Parser(prog="dsindex")
    commands = parser.add_subparsers()
    submit.add_arguments(commands.add_parser("submit"))
    for name in ("status", "logs", "stop"):
        submit.add_job_arguments(commands.add_parser(name), follow=name == "logs")
    return parser.parse_args([verb, *words])


# What is shipped.


def shipped_names(submission: Submission) -> set[str]:
    return {file.name for file in submission.files}


def test_every_module_is_shipped_and_no_cache_or_data() -> None:
    names = shipped_names(submit.plan_submission(["build"]))
    for package in (dsindex, workflows):
        folder = Path(str(package.__file__)).parent
        assert {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".bin", ".idx"))]


@pytest.mark.parametrize("spelling", ["--config {}", "--config={}"])
def test_local_config_is_shipped_and_found_by_its_last_name(spelling: str, tmp_path: Path) -> None:
    config = tmp_path / "my build.yaml"
    config.write_text("input: [x]\n")
    command = ["build", *spelling.format("\0").split(" ")]
    submission = submit.plan_submission([word.replace("\0", str(config)) for word in command], installed=True)
    assert shlex.split(submission.entrypoint) == [
        *["python", "-m", "workflows"],
        *[word.replace("\0", config.name) for word in command],
    ]
    assert [(file.source, file.name, file.size_bytes) for file in submission.files] == [(config, config.name, 11)]


@pytest.mark.parametrize("command", [["build", "--config", "/nowhere/b.yaml"], ["build", "--config"], ["build"]])
def test_config_of_the_cluster_stays_as_it_is(command: list[str]) -> None:
    submission = submit.plan_submission(command, installed=True)
    assert submission == Submission(entrypoint=shlex.join(["python", "-m", "workflows", *command]))


def test_shipped_folder_leaves_out_data_but_a_named_file_never(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    for name in ("tokenizer.json", "weights.bin", ".git/config", "data/x.json", "vocab/a.txt", "__pycache__/a.pyc"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    ship = [str(folder), str(folder / "weights.bin")]
    assert shipped_names(submit.plan_submission(["build"], installed=True, ship=ship)) == {
        "tokenizer/tokenizer.json",
        "tokenizer/vocab/a.txt",
        "weights.bin",
    }


def test_what_cannot_be_shipped_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nowhere: expected a file or folder to ship"):
        submit.plan_submission(["build"], ship=[str(tmp_path / "nowhere")])
    (tmp_path / "dsindex").mkdir()
    with pytest.raises(InputError, match="dsindex: expected different names of what is shipped"):
        submit.plan_submission(["build"], ship=[str(tmp_path / "dsindex")])
    other = tmp_path / os.fsdecode(b"caf\xe9.json")
    other.write_text("{}")
    with pytest.raises(InputError, match=r"caf\\udce9\.json: expected a name in UTF-8 on one line to ship"):
        submit.plan_submission(["build"], installed=True, ship=[str(other)])
    large = tmp_path / "large"
    large.write_bytes(b"x" * 1000)
    monkeypatch.setattr(submit, "PACKAGE_LIMIT", 999)
    with pytest.raises(LimitError, match=r"at most 999 bytes to ship, got 1,000, of them 1,000 in .*large"):
        submit.plan_submission(["build"], installed=True, ship=[str(large)])


# The command line.


def test_dry_run_says_what_would_happen_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parse("submit", "--dry-run", "--address", "head:8265", "--", "build", "--config", "b.yaml", "--fresh")
    assert submit.run(arguments) == 0
    shown = capsys.readouterr().out
    assert "job server   http://head:8265\n" in shown
    assert "token        none\n" in shown
    assert "entry point  python -m workflows build --config b.yaml --fresh\n" in shown
    assert " workflows: " in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expected a dsindex command after --"),
        (["--no-wait", "--"], "expected a dsindex command after --"),
        (["--", "logs", "--follow", "raysubmit_1"], "logs runs here, not on the cluster"),
        (
            ["--dry-run", "--", "bogus"],
            "expected a dsindex command after --, got 'bogus'; the commands are build, plan,",
        ),
        (["--dry-run", "--", "dsindex", "build"], "got 'dsindex'; leave the program's name out"),
        (["--dry-run", "--", "build", "--bogus"], "dsindex build: error: there is no flag --bogus"),
        (["--dry-run", "--", "build", "--workers", "many"], "argument --workers: expected an integer, got 'many'"),
        (["--dry-run", "--", "build", "--output-prefix", "a", "--output-prefix", "b"], "expected once, got 'a' and"),
        (["--dry-run", "--", "convert", "only-one"], "the following arguments are required: DST"),
        (["--no-wait", "--no-wait", "--", "build"], "argument --no-wait: expected once"),
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("submit", *words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


TEXT = "--input /in/*.jsonl --tokenizer-model gpt2 --output-prefix /out/x"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("build --output-prefix /out/x", "dsindex build: --input is required; --tokenizer-model is required"),
        (f"build {TEXT} --epochs 1 --seq-length 1", "dsindex build: --seq-length: expected at least 2, got 1"),
        ("verify /out/x --sample 1%", "dsindex verify: --sample needs --against-source"),
        ("convert /out/x /out/y", "dsindex convert: expected SRC or DST to end in .pbin"),
        ("repair /out/x.pbin --output /out/y", "dsindex repair: expected a .pbin as --output"),
        ("pack --merge /a.pbin --output /out/x", "dsindex pack: --output: expected the name of a new .pbin file"),
        ("build --config job.yaml --workers 1", "dsindex build: --output-prefix: expected an absolute path"),
        ("build --config /mnt/job.yaml --work-dir w", "dsindex build: --work-dir: expected an absolute path"),
        (f"build {TEXT} --repeat a.jsonl=2", "--repeat: expected an absolute path on storage that every node of the"),
        (f"build {TEXT} --data-cache-path c --epochs 1 --seq-length 8", "--data-cache-path: expected an absolute path"),
        (f"plan {TEXT.replace('/out', 'out')}", "dsindex plan: --output-prefix: expected an absolute path"),
        (f"build {TEXT.replace('gpt2', './gpt2')}", "--tokenizer-model: expected an absolute path"),
        (
            f"build {TEXT.replace('gpt2', 'here')}",
            "got 'here': the job would look for it in Ray's session folder; write",
        ),
        ("merge --input /a b --output-prefix /out/x", "dsindex merge: --input: expected an absolute path"),
        ("index --data-path 0.5 /a 0.5 b --epochs 1 --seq-length 8", "--data-path: expected an absolute path"),
        ("verify b", "dsindex verify: PREFIX: expected an absolute path"),
        ("raw-index shipped.jsonl", "dsindex raw-index: --output: expected an absolute path"),
        ("convert /out/x y.pbin", "dsindex convert: DST: expected an absolute path"),
        ("instruct chat.yaml", "dsindex instruct: --output-prefix: expected an absolute path"),
        ("pack modalities.yaml", "dsindex pack: --output: expected an absolute path"),
        (
            "demo",
            "got 'demo-output': the job would write it to Ray's session folder, which is deleted with the cluster",
        ),
    ],
)
def test_job_that_could_not_work_is_refused_before_anything_is_sent(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submit, "JobServer", None)  # nothing may reach it
    options = "input: [/in/a]\ntokenizer_model: gpt2\noutput_prefix: out/x\n"
    (tmp_path / "here").mkdir()
    (tmp_path / "shipped.jsonl").touch()
    (tmp_path / "job.yaml").write_text(options)
    (tmp_path / "chat.yaml").write_text("chat_template_file: /mnt/t\njob: {output_prefix: out/x}\n")
    (tmp_path / "modalities.yaml").write_text("settings: {src_path: /in/a, dst_path: out/x.pbin}\n")
    assert main(["submit", "--ship", "shipped.jsonl", "--", *command.split()]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_job_may_name_shipped_files_and_tokenizers_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "pack.yaml").write_text("output: /out/x.pbin\n")
    words = ["--dry-run", "--installed", "--ship", "tokenizer", "--"]
    for tokenizer in ("tokenizer", "openai/gpt2@main"):
        command = ["pack", "conf/pack.yaml", "--input", "/in/a", "--tokenizer-model", tokenizer]
        assert main(["submit", *words, *command]) == 0
        shown = capsys.readouterr().out
        assert f"python -m workflows pack pack.yaml --input /in/a --tokenizer-model {tokenizer}\n" in shown
        assert "pack.yaml: 1 files, 20 bytes\n" in shown


def test_file_of_options_that_is_nowhere_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--", "build", "--config", "nowhere.yaml"]) == 1
    assert "dsindex build: nowhere.yaml: expected a file of options, found none in" in capsys.readouterr().err


def test_job_server_is_named_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--", "verify", "/out/x", "--address", "http://head:8265"]) == 1
    assert "got the job server http://head:8265; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, "http://127.0.0.1:8265"),
        ("head", {}, "http://head:8265"),
        ("head:80", {}, "http://head:80"),
        ("https://ray.example.org/", {}, "https://ray.example.org"),
        ("head", {"RAY_API_SERVER_ADDRESS": "http://other:1"}, "http://head:8265"),
        (None, {"RAY_API_SERVER_ADDRESS": "http://other:1", "RAY_ADDRESS": "http://third:1"}, "http://other:1"),
        (None, {"RAY_ADDRESS": "http://third:1"}, "http://third:1"),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "http://127.0.0.1:8265"),
    ],
)
def test_address_is_the_flag_then_the_environment(
    given: str | None, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert job_server.find_address(given) == expected


@pytest.mark.parametrize("address", ["ray://head:10001", "http://", "http://[::1"])
def test_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(ClusterError, match="--address: expected a job server such as http://127"):
        job_server.find_address(address)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "of-home"),
        ({"RAY_AUTH_MODE": "token"}, "of-home"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "given", "RAY_AUTH_TOKEN_PATH": "~/gone"}, None),
        ({"RAY_AUTH_TOKEN": "given\n"}, "given"),
        ({"RAY_AUTH_TOKEN_PATH": "~/file"}, "of-file"),
        ({"RAY_AUTH_TOKEN": "given", "RAY_AUTH_TOKEN_PATH": "~/file"}, "given"),
    ],
)
def test_token_that_is_there_is_used(
    environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-home\n")
    (tmp_path / "file").write_text("of-file\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    token = find_token()
    assert (token and token.value) == expected


def test_no_token_is_no_error_unless_one_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_token() is None
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(TokenError, match=r"\.ray/auth_token: expected the cluster's token, got none or an empty one"):
        find_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "~/gone")
    with pytest.raises(TokenError, match=r"RAY_AUTH_TOKEN_PATH: .*/gone: cannot be read \(No such file or directory\)"):
        find_token()
    (tmp_path / "gone").write_text(" \n")
    with pytest.raises(TokenError, match=r"/gone: expected the cluster's token, got an empty file"):
        find_token()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "~/pipe")
    with pytest.raises(TokenError, match=r"/pipe: cannot be read \(it is a pipe"):
        find_token()


UNSENDABLE = r"RAY_AUTH_TOKEN: expected the cluster's token, got one with a space, a line break or a character"


@pytest.mark.parametrize("token", ["abc\ndefSECRET", "abcéSECRET", "abc日SECRET", "abc SECRET", "abc\udcffSECRET"])
@pytest.mark.parametrize("command", ["submit --dry-run --debug -- demo --output /x", "status --debug j"])
def test_token_that_cannot_be_sent_is_refused_and_never_shown(
    token: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    assert main(command.split()) == 1
    shown = capsys.readouterr().err
    assert UNSENDABLE in shown
    assert "SECRET" not in shown


def test_token_in_a_file_is_checked_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"abc\xffSECRET\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(TokenError, match="/token: expected the cluster's token, got one with") as refused:
        find_token()
    assert "SECRET" not in str(refused.value)


def test_no_message_holds_a_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever another library says about a request, its token is not said with it."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abcSECRET")

    def refuse(*_: object) -> None:
        raise ValueError("Invalid header value b'Bearer abcSECRET'")

    monkeypatch.setattr(job_server, "_probe", lambda _address: None)
    monkeypatch.setattr(job_server, "_connect", refuse)
    assert main(["status", "j", "--debug"]) == 1
    shown = capsys.readouterr().err
    assert "job server failed: Invalid header value b'Bearer <token>'" in shown
    assert "SECRET" not in shown
    monkeypatch.setattr(job_server, "_probe", refuse)  # from where nobody expects it
    monkeypatch.setattr(JobServer, "_told", refuse)
    assert main(["status", "j"]) == 1
    assert "SECRET" not in capsys.readouterr().err


# How jobs end.


def details(status: str, code: int | None = None, message: str = "") -> SimpleNamespace:
    return SimpleNamespace(status=JobStatus(status), driver_exit_code=code, message=message)


class JobStatus(str):
    """Plays Ray's status."""

    __slots__ = ()

    def is_terminal(self) -> bool:
        return self in {"SUCCEEDED", "FAILED", "STOPPED"}


@pytest.mark.parametrize(
    ("ended", "code", "says"),
    [
        (details("SUCCEEDED", 0), 0, "j: succeeded"),
        (details("FAILED", 1), 1, "j: failed, exit code 1"),
        (details("FAILED", 130), 130, "j: failed, exit code 130"),
        (details("FAILED", -9), 137, "j: failed, exit code 137"),
        (details("FAILED", None, "no disk\nTraceback"), 1, "j: failed outside its command: no disk"),
        (details("STOPPED"), 143, "j: stopped; its work folder keeps finished shards"),
    ],
)
def test_exit_code_and_message(ended: Any, code: int, says: str) -> None:
    assert job_server.exit_code(ended) == code
    assert job_server.describe("j", ended).startswith(says)


class BreakingClient:
    """Plays Ray's client: every connection breaks after some chunks, as often as told, then the log comes whole."""

    chunks = ("one\n", "two\nthree\n", "four\n")

    def __init__(self, *breaks: int) -> None:
        self.breaks = list(breaks)

    async def tail_job_logs(self, _job: str) -> AsyncIterator[str]:
        after = self.breaks.pop(0) if self.breaks else len(self.chunks) + 1
        for number, chunk in enumerate(self.chunks):
            if number == after:
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield chunk

    def get_job_info(self, _job: str) -> SimpleNamespace:
        return details("SUCCEEDED", 0)


def server_of(client: BreakingClient, monkeypatch: pytest.MonkeyPatch) -> JobServer:
    monkeypatch.setattr(job_server, "_probe", lambda _address: None)
    monkeypatch.setattr(job_server, "_connect", lambda _address, _token: client)
    monkeypatch.setattr(job_server.time, "sleep", lambda _seconds: None)
    return JobServer("head")


def test_broken_connection_is_taken_up_where_it_broke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_of(BreakingClient(0, 2, 1, 0), monkeypatch).follow("j") == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\nfour\n"


def test_connection_that_does_not_come_back_leaves_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_of(BreakingClient(*[0] * 100), monkeypatch)
    with pytest.raises(ClusterError, match=r"may still run: dsindex logs --follow --address http://head:8265 j"):
        server.follow("j")


def test_interrupt_ends_the_following_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server_of(BreakingClient(), monkeypatch)

    def interrupted(_server: JobServer, _job: str) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobServer, "follow", interrupted)
    assert submit.run_logs(parse("logs", "--follow", "j")) == 130
    assert "j: continues; dsindex status --address http://127.0.0.1:8265 j" in capsys.readouterr().err


# Places where no job server is.


def test_address_where_nothing_answers_is_told_at_once() -> None:
    with socket.socket() as reserved:  # Bound, not listening: nobody else can answer there.
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(ClusterError, match=f"http://127.0.0.1:{port}: .*nothing answers there"):
            JobServer(f"127.0.0.1:{port}")


def test_server_of_another_kind_is_told() -> None:
    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ClusterError, match="job server failed: "):
                JobServer(f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


# A real cluster: cluster_configs/local.sh, which has tokens on.


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
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
