"""`dsindex submit`: what is shipped and refused, how a cluster and its token are found, and how a job is followed."""

import contextlib
import http.server
import os
import shlex
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import dsindex
from dsindex.cli import submit
from dsindex.cli.main import main
from dsindex.cli.submit import ClusterError, find_address, plan_submission
from dsindex.errors import InputError, LimitError
from dsindex.execution.ray_token import TokenError, find_token
from tests.support.golden import OWN

VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    """No test reaches the user's own cluster, nor the token in their home folder."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


# What is shipped.


def shipped_names(submission):
    return {file.name for file in submission.files}


def test_every_module_is_shipped_and_no_cache_or_data():
    names = shipped_names(plan_submission(["build"]))
    for package in (dsindex,):
        folder = Path(str(package.__file__)).parent
        assert {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".bin", ".idx"))]


@pytest.mark.parametrize("spelling", ["--config {}", "--config={}"])
def test_local_config_is_shipped_and_found_by_its_last_name(spelling, tmp_path):
    config = tmp_path / "my build.yaml"
    config.write_text("input: [x]\n")
    command = ["build", *spelling.format("\0").split(" ")]
    submission = plan_submission([word.replace("\0", str(config)) for word in command], installed=True)
    assert shlex.split(submission.entrypoint) == [
        *["python", "-m", "dsindex"],
        *[word.replace("\0", config.name) for word in command],
    ]
    assert [(file.source, file.name, file.size_bytes) for file in submission.files] == [(config, config.name, 11)]


def test_shipped_folder_leaves_out_data_but_a_named_file_never(tmp_path):
    folder = tmp_path / "tokenizer"
    for name in ("tokenizer.json", "weights.bin", ".git/config", "data/x.json", "vocab/a.txt", "__pycache__/a.pyc"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    ship = [str(folder), str(folder / "weights.bin")]
    assert shipped_names(plan_submission(["build"], installed=True, ship=ship)) == {
        "tokenizer/tokenizer.json",
        "tokenizer/vocab/a.txt",
        "weights.bin",
    }


def test_what_cannot_be_shipped_is_refused_by_name(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="nowhere: expected a file or folder to ship"):
        plan_submission(["build"], ship=[str(tmp_path / "nowhere")])
    (tmp_path / "dsindex").mkdir()
    with pytest.raises(InputError, match="dsindex: expected different names of what is shipped"):
        plan_submission(["build"], ship=[str(tmp_path / "dsindex")])
    other = tmp_path / os.fsdecode(b"caf\xe9.json")
    other.write_text("{}")
    with pytest.raises(InputError, match=r"caf\\udce9\.json: expected a name in UTF-8 on one line to ship"):
        plan_submission(["build"], installed=True, ship=[str(other)])
    large = tmp_path / "large"
    large.write_bytes(b"x" * 1000)
    monkeypatch.setattr(submit, "PACKAGE_LIMIT", 999)
    with pytest.raises(LimitError, match=r"at most 999 bytes to ship, got 1,000, of them 1,000 in .*large"):
        plan_submission(["build"], installed=True, ship=[str(large)])


# The command line.


def test_dry_run_says_what_would_happen_without_a_cluster(cli):
    submit = ["submit", "--dry-run", "--address", "head:8265"]
    shown = cli([*submit, "--", "verify", "/out/x", "--json"]).out
    assert "job server   http://head:8265\n" in shown
    assert "token        none\n" in shown
    assert "entry point  python -m dsindex verify /out/x --json\n" in shown
    named = cli([*submit, "--python", "/opt/a b/python", "--", "verify", "/out/x"]).out
    assert "entry point  '/opt/a b/python' -m dsindex verify /out/x\n" in named


@pytest.mark.parametrize(("words", "says"), [
    ([], "expected a dsindex command after --"),
    (["--", "submit", "--", "build"], "submit runs here, not on the cluster"),
    (["--dry-run", "--", "bogus"], "expected a dsindex command after --, got 'bogus'; the commands are build, pla"),
    (["--dry-run", "--", "dsindex", "build"], "got 'dsindex'; leave the program's name out"),
    (["--dry-run", "--", "build", "--bogus"], "dsindex build: error: there is no flag --bogus"),
    (["--dry-run", "--", "build", "--output-prefix", "a", "--output-prefix", "b"], "expected once, got 'a' and"),
    (["--no-wait", "--no-wait", "--", "build"], "argument --no-wait: expected once"),
])  # fmt: skip
def test_wrong_usage_ends_with_2(words, says, cli):
    assert says in cli(["submit", *words], 2).err


TEXT = "--input /in/*.jsonl --tokenizer-model gpt2 --output-prefix /out/x"


@pytest.mark.parametrize(("command", "says"), [
    ("build --output-prefix /out/x", "dsindex build: --input is required; --tokenizer-model is required"),
    (f"build {TEXT} --epochs 1 --seq-length 1", "dsindex build: --seq-length: expected at least 2, got 1"),
    ("verify /out/x --sample 1%", "dsindex verify: --sample needs --against-source"),
    ("build --config job.yaml --workers 1", "dsindex build: --output-prefix: expected an absolute path"),
    ("build --config /mnt/job.yaml --work-dir w", "dsindex build: --work-dir: expected an absolute path"),
    (f"build {TEXT} --repeat a.jsonl=2", "--repeat: expected an absolute path on storage that every node of the"),
    (f"build {TEXT} --data-cache-path c --epochs 1 --seq-length 8", "--data-cache-path: expected an absolute path"),
    (f"build {TEXT.replace('gpt2', './gpt2')}", "--tokenizer-model: expected an absolute path"),
    (f"build {TEXT.replace('gpt2', 'here')}", "got 'here': the job would look for it in Ray's session folder; wri"),
    ("index --data-path 0.5 /a 0.5 b --epochs 1 --seq-length 8", "--data-path: expected an absolute path"),
    ("verify b", "dsindex verify: PREFIX: expected an absolute path"),
    ("raw-index shipped.jsonl", "dsindex raw-index: --output: expected an absolute path"),
    ("instruct chat.yaml", "dsindex instruct: --output-prefix: expected an absolute path"),
    ("pack modalities.yaml", "dsindex pack: --output: expected an absolute path"),
    ("demo", "got 'demo-output': the job would write it to Ray's session folder, which is deleted with the cluste"),
])  # fmt: skip
def test_job_that_could_not_work_is_refused_before_anything_is_sent(command, says, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://")  # nothing may reach it
    options = "input: [/in/a]\ntokenizer_model: gpt2\noutput_prefix: out/x\n"
    (tmp_path / "here").mkdir()
    (tmp_path / "shipped.jsonl").touch()
    (tmp_path / "job.yaml").write_text(options)
    (tmp_path / "chat.yaml").write_text("chat_template_file: /mnt/t\njob: {output_prefix: out/x}\n")
    (tmp_path / "modalities.yaml").write_text("settings: {src_path: /in/a, dst_path: out/x.pbin}\n")
    shown = cli(["submit", "--ship", "shipped.jsonl", "--", *command.split()], 2).err
    assert says in shown
    assert shown.count("\n") == 1


def test_job_may_name_shipped_files_and_tokenizers_of_the_hub(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "pack.yaml").write_text("output: /out/x.pbin\n")
    words = ["--dry-run", "--installed", "--ship", "tokenizer", "--"]
    for tokenizer in ("tokenizer", "openai/gpt2@main"):
        command = ["pack", "conf/pack.yaml", "--input", "/in/a", "--tokenizer-model", tokenizer]
        shown = cli(["submit", *words, *command]).out
        assert f"python -m dsindex pack pack.yaml --input /in/a --tokenizer-model {tokenizer}\n" in shown
        assert "pack.yaml: 1 files, 20 bytes\n" in shown


# The address and the token.


@pytest.mark.parametrize(("given", "environment", "expected"), [
    (None, {}, "http://127.0.0.1:8265"),
    ("head", {}, "http://head:8265"),
    ("https://ray.example.org/", {}, "https://ray.example.org"),
    ("head", {"RAY_API_SERVER_ADDRESS": "http://other:1"}, "http://head:8265"),
    (None, {"RAY_API_SERVER_ADDRESS": "http://other:1", "RAY_ADDRESS": "http://third:1"}, "http://other:1"),
    (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "http://127.0.0.1:8265"),
])  # fmt: skip
def test_address_is_the_flag_then_the_environment(given, environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_address(given) == expected


@pytest.mark.parametrize("address", ["ray://head:10001", "http://", "http://[::1"])
def test_address_of_another_kind_is_refused(address):
    with pytest.raises(ClusterError, match="--address: expected a job server such as http://127"):
        find_address(address)


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, "of-home"),
    ({"RAY_AUTH_MODE": "token"}, "of-home"),
    ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "of-environment", "RAY_AUTH_TOKEN_PATH": "~/gone"}, None),
    ({"RAY_AUTH_TOKEN": "of-environment\n"}, "of-environment"),
    ({"RAY_AUTH_TOKEN_PATH": "~/file"}, "of-file"),
    ({"RAY_AUTH_TOKEN": "of-environment", "RAY_AUTH_TOKEN_PATH": "~/file"}, "of-environment"),
])  # fmt: skip
def test_token_that_is_there_is_used(environment, expected, monkeypatch, tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-home\n")
    (tmp_path / "file").write_text("of-file\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    token = find_token()
    assert (token and token.value) == expected


def test_no_token_is_no_error_unless_one_is_announced(monkeypatch, tmp_path):
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
    (tmp_path / "gone").write_bytes(b"abc\xffSECRET\n")
    with pytest.raises(TokenError, match=r"/gone: expected the cluster's token, got one with (?!.*SECRET)"):
        find_token()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "~/pipe")
    with pytest.raises(TokenError, match=r"/pipe: cannot be read \(a pipe"):
        find_token()


UNSENDABLE = r"RAY_AUTH_TOKEN: expected the cluster's token, got one with a space, a line break or a character"


@pytest.mark.parametrize("token", ["abc\ndefSECRET", "abcéSECRET", "abc日SECRET", "abc SECRET", "abc\udcffSECRET"])
def test_token_that_cannot_be_sent_is_refused_and_never_shown(token, monkeypatch, cli):
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    shown = cli(["submit", "--dry-run", "--debug", "--", "demo", "--output", "/x"], 1).err
    assert UNSENDABLE in shown
    assert "SECRET" not in shown


# Following a job.


class Ended(str):
    """Plays Ray's status of a job that has ended."""

    __slots__ = ()

    def is_terminal(self):
        return True


class Client:
    """Plays Ray's client: a job that has ended, and a log that breaks off after some chunks as often as told."""

    chunks = ("one\n", "two\nthree\n", "four\n")

    def __init__(self, *breaks, status="SUCCEEDED", code=0, message=""):
        self.breaks = list(breaks)
        self.details = SimpleNamespace(status=Ended(status), driver_exit_code=code, message=message)

    def submit_job(self, **_options):
        return "j"

    async def tail_job_logs(self, _job):
        after = self.breaks.pop(0) if self.breaks else len(self.chunks) + 1
        for number, chunk in enumerate(self.chunks):
            if number == after:
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield chunk

    def get_job_info(self, _job):
        return self.details


class WebServer(http.server.BaseHTTPRequestHandler):
    """A web server that knows no page."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        """Print nothing."""


@contextlib.contextmanager
def serving(handler):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def web_server(monkeypatch):
    """The address of a web server."""
    monkeypatch.setattr(submit.time, "sleep", lambda _seconds: None)
    with serving(WebServer) as address:
        yield address


def run_job(client, address, monkeypatch):
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda *_, **__: client)
    return main(["submit", "--installed", "--address", address, "--", "--version"])


@pytest.mark.quick(3)
@pytest.mark.parametrize(("client", "code", "says"), [
    (Client(), 0, "j: succeeded"),
    (Client(status="FAILED", code=1), 1, "j: failed, exit code 1"),
    (Client(status="FAILED", code=127), 127, "j: failed: the head has no such Python; name the one of its Ray"),
    (Client(status="FAILED", code=130), 130, "j: failed, exit code 130"),
    (Client(status="FAILED", code=-9), 137, "j: failed, exit code 137"),
    (Client(status="FAILED", code=None, message="no disk\nTraceback"), 1, "j: failed outside its command: no disk"),
    (Client(status="STOPPED", code=None), 143, "j: stopped; its work folder keeps finished shards"),
    (Client(0, 2, 1, 0), 0, "j: succeeded"),
], ids=["succeeded", "failed", "no Python", "Ctrl-C", "killed", "no start", "stopped", "broken"])  # fmt: skip
def test_submit_shows_the_log_and_ends_as_the_job_did(client, code, says, web_server, monkeypatch, capsys):
    assert run_job(client, web_server, monkeypatch) == code
    shown = capsys.readouterr()
    assert shown.out == "one\ntwo\nthree\nfour\n"
    assert f"\n{says}" in shown.err


def test_no_message_holds_a_token(web_server, monkeypatch, cli):
    """Whatever another library says about a request, its token is not said with it."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abcSECRET")

    def refuse(*_, **__):
        raise ValueError("Invalid header value b'Bearer abcSECRET'")

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", refuse)
    command = ["submit", "--installed", "--address", web_server, "--", "--version"]
    shown = cli([*command[:1], "--debug", *command[1:]], 1).err
    assert "job server failed: Invalid header value b'Bearer <token>'" in shown
    assert "SECRET" not in shown
    monkeypatch.setattr(submit, "plan_submission", refuse)  # from where nobody expects it
    assert "SECRET" not in cli(command, 1).err


@pytest.mark.parametrize(("package", "words"), [
    ("aiohttp", ["submit", "--installed", "--address", "{}", "--", "--version"]),
    ("grpc", ["verify", str(OWN.run("eod").prefixes["text"]), "--address", "{}"]),
    ("grpc", ["doctor", "--address", "{}"]),
], ids=["a job server", "a head", "doctor"])  # fmt: skip
def test_what_only_clusters_need_is_named_where_it_is_missing(package, words, web_server, monkeypatch, cli):
    monkeypatch.setitem(sys.modules, package, None)
    address = web_server if words[0] == "submit" else web_server.removeprefix("http://")
    shown = cli([word.replace("{}", address) for word in words], 1)
    assert (
        f"the package {package!r}, which is not installed; install what clusters need: pip install 'dsindex[cluster]'"
        in shown.out + shown.err
    )


# Slots where no job server is.


def test_address_where_nothing_answers_is_told_at_once():
    with socket.socket() as reserved:  # Bound, not listening: nobody else can answer there.
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(ClusterError, match=f"http://127.0.0.1:{port}: .*nothing answers there"):
            submit.JobServer(f"127.0.0.1:{port}")


VERSION = b'{"version": "4", "ray_version": "2.50.0"}'
MISSING = b"no such page"


@pytest.mark.parametrize(("version", "other"), [
    (b"<html>hello</html>", b""), (b"[1, 2]", b""), (b'{"version": 4}', b""), (b"[" * 50_000, b""), (b"", b""),
    (MISSING, MISSING), (VERSION, b"null"), (VERSION, b"{}"), (VERSION, b"[]"), (VERSION, b'"text"'),
    (VERSION, b"<html>hello</html>"), (VERSION, b"[" * 200_000),
], ids=lambda content: content[:18].decode())  # fmt: skip
def test_server_of_another_kind_is_told(version, other):
    """One that answers with anything else, also without an end; an empty content here stands for that."""

    class Other(WebServer):
        def do_GET(self):
            content = version if self.path == "/api/version" else other
            self.send_response(200 if content != MISSING else 404)
            self.end_headers()
            self.wfile.write(content)
            with contextlib.suppress(ConnectionError):
                while not content:
                    self.wfile.write(b" " * 65536)

    expected = "expected the job server of a Ray cluster, got another web server"
    expected = "job server failed: " if version == MISSING else expected
    with serving(Other) as address, pytest.raises(ClusterError, match=expected):
        submit.JobServer(address).details("job")
