"""The cluster's address and token: where they are found, and that no message holds a token."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from workflows.cli import main
from workflows.cluster import job_server
from workflows.cluster.job_server import ClusterError, JobServer
from workflows.execution.ray_token import TokenError, find_token

if TYPE_CHECKING:
    from pathlib import Path


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
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "of-environment", "RAY_AUTH_TOKEN_PATH": "~/gone"}, None),
        ({"RAY_AUTH_TOKEN": "of-environment\n"}, "of-environment"),
        ({"RAY_AUTH_TOKEN_PATH": "~/file"}, "of-file"),
        ({"RAY_AUTH_TOKEN": "of-environment", "RAY_AUTH_TOKEN_PATH": "~/file"}, "of-environment"),
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
