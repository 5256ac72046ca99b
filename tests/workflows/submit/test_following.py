"""Following a job: how it ended, broken connections, and servers that are none."""

from __future__ import annotations

import http.server
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflows.submit.command_lines import parse
from workflows.cluster import job_server, submit
from workflows.cluster.job_server import ClusterError, JobServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
