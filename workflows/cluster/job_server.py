"""A Ray cluster's job server: start, query, follow and stop jobs, with every failure in one sentence.

Source of the protocol: Ray's Jobs API (`ray.job_submission`).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dsindex.errors import DsindexError
from workflows.execution.ray_address import JOB_SERVER_PORT, Address, Protocol, UnreachableError, ask_protocol
from workflows.execution.ray_token import find_token, hide_token, refusal
from workflows.progress.standard_streams import flush_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workflows.execution.ray_token import Token

DEFAULT_ADDRESS = f"http://127.0.0.1:{JOB_SERVER_PORT}"
STOPPED_EXIT_CODE = 143
"""128 + 15: Ray ends a stopped job with SIGTERM."""

_RETRIES = 8
"""Attempts to restore a broken connection, with pauses of up to 30 s: about 2 minutes."""
_STOP_SECONDS = 60
_CONNECT_SECONDS = 10


class ClusterError(DsindexError):
    """The cluster's job server cannot be reached, refuses access, or does not know the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """A file of this machine and its relative name in the job's folder."""

    source: Path
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A shell command, and the files to ship to the folder in which it runs."""

    entrypoint: str
    files: tuple[ShippedFile, ...] = ()


class JobServer:
    """A cluster's job server; every failure is a ClusterError of one sentence.

    Args:
        address: `http://HOST:8265`; None: see `find_address`.

    Raises:
        ClusterError: If nothing answers there, or it refuses access.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = find_address(address)
        self._token = find_token()
        _probe(self.address)
        with self._told():
            self._client = _connect(self.address, self._token)

    def submit(self, submission: Submission) -> str:
        """Start a job.

        Returns:
            The job's id, by which it can be queried, followed and stopped from anywhere.
        """
        with tempfile.TemporaryDirectory(prefix="dsindex-submit-") as folder, self._told():
            for file in submission.files:
                target = Path(folder, file.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.source, target)
            runtime_env = {"working_dir": folder} if submission.files else {}
            return str(self._client.submit_job(entrypoint=submission.entrypoint, runtime_env=runtime_env))

    def details(self, job: str) -> Any:  # noqa: ANN401 - Ray's JobDetails; ray is not imported for types
        """Return the details of a job, such as its status."""
        with self._told(job):
            return self._client.get_job_info(job)

    def log(self, job: str) -> str:
        """Return a job's log so far."""
        with self._told(job):
            return str(self._client.get_job_logs(job))

    def follow(self, job: str) -> int:
        """Write a job's log to standard output until the job ends, resuming after a broken connection.

        Returns:
            The job's exit code.
        """
        self.details(job)
        shown = broken = 0
        while True:
            before = shown
            shown, error = asyncio.run(self._write_log(job, shown))
            if error is None:
                details = self.details(job)
                if details.status.is_terminal():
                    return exit_code(details)
            broken = broken + 1 if error is not None and shown == before else 0
            if broken > _RETRIES:
                msg = (
                    f"{self.address}: the connection was lost ({hide_token(str(error))}) and could not be restored; "
                    f"the job may still run: {come_back('logs --follow', job, self.address)}"
                )
                raise ClusterError(msg) from error
            time.sleep(min(2**broken, 30))

    async def _write_log(self, job: str, shown: int) -> tuple[int, Exception | None]:
        """Write a log from character `shown` on; the server always sends it from its beginning.

        Returns:
            The number of characters shown, and the error if the connection broke.
        """
        import aiohttp

        position = 0
        try:
            async for chunk in self._client.tail_job_logs(job):
                sys.stdout.write(chunk[max(0, shown - position) :])
                flush_output()
                position += len(chunk)
                shown = max(shown, position)
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            return shown, error
        return shown, None

    def stop(self, job: str) -> Any:  # noqa: ANN401 - as `details`
        """Stop a job (SIGTERM, and SIGKILL 3 s later) and wait until it has ended; an ended job stays as it is.

        Returns:
            The details of the ended job.
        """
        details = self.details(job)
        if not details.status.is_terminal():
            with self._told(job):
                self._client.stop_job(job)
        deadline = time.monotonic() + _STOP_SECONDS
        while not details.status.is_terminal():
            if time.monotonic() > deadline:
                msg = f"{job}: expected it to end within {_STOP_SECONDS} s of being stopped, got {details.status}"
                raise ClusterError(msg)
            time.sleep(0.5)
            details = self.details(job)
        return details

    @contextlib.contextmanager
    def _told(self, job: str | None = None) -> Iterator[None]:
        """Turn exceptions of Ray, requests and aiohttp into a ClusterError."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise ClusterError(refusal(self.address, self._token)) from error
        except (OSError, RuntimeError, ValueError) as error:
            first_line = hide_token((str(error).splitlines() or [type(error).__name__])[0])
            if job is not None and "status code 404" in first_line:
                msg = f"{self.address}: expected the id of a job of this cluster, got {job!r}; submit prints it"
            else:
                msg = f"{self.address}: the cluster's job server failed: {first_line}"
            raise ClusterError(msg) from error


def find_address(address: str | None) -> str:
    """Return the job server's address: the given one, or the environment's, or this machine's.

    >>> find_address("head:8265"), find_address("https://ray.example.org/")
    ('http://head:8265', 'https://ray.example.org')
    """
    chosen = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not chosen:
        # RAY_ADDRESS usually has the cluster's own port (6379), which is not the job server's.
        elsewhere = os.environ.get("RAY_ADDRESS", "")
        chosen = elsewhere if elsewhere.startswith(("http://", "https://")) else DEFAULT_ADDRESS
    if "://" not in chosen:
        chosen = f"http://{chosen}" if ":" in chosen else f"http://{chosen}:{JOB_SERVER_PORT}"
    try:
        parts = urlsplit(chosen)
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:  # an incomplete IPv6 address
        is_server = False
    if not is_server:
        msg = f"--address: expected a job server such as {DEFAULT_ADDRESS}, got {chosen!r}; use the dashboard's address"
        raise ClusterError(msg)
    return chosen.rstrip("/")


def exit_code(details: Any) -> int:  # noqa: ANN401 - Ray's JobDetails; ray is not imported for types
    """Return the exit code of an ended job."""
    if details.status == "SUCCEEDED":
        return 0
    if details.status == "STOPPED":
        return STOPPED_EXIT_CODE
    code = details.driver_exit_code
    if code is None or code == 0:
        return 1
    return int(code) if code > 0 else 128 - int(code)


def describe(job: str, details: Any) -> str:  # noqa: ANN401 - as `exit_code`
    """Return the state of a job in one line."""
    if details.status == "STOPPED":
        return f"{job}: stopped; its work folder keeps finished shards, and the same command continues it"
    if details.status != "FAILED":
        return f"{job}: {details.status.lower()}"
    if details.driver_exit_code is None:
        reason = hide_token((details.message or "no reason given").splitlines()[0])
        return f"{job}: failed outside its command: {reason}"
    return f"{job}: failed, exit code {exit_code(details)}"


def come_back(verb: str, job: str, address: str) -> str:
    """Return the command line that queries, follows or stops a job."""
    return f"dsindex {verb} --address {address} {job}"


def _probe(address: str) -> None:
    """Check within seconds whether a web server answers; Ray's client would wait for minutes.

    Raises:
        ClusterError: If nothing or something else answers.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    is_direct = parts.scheme == "http" and ("http" not in getproxies() or proxy_bypass(host))
    try:
        if is_direct:
            server = Address(host=host, port=parts.port or 80)
            protocol = ask_protocol(server, expected="http")
            if protocol is not Protocol.HTTP:
                raise ClusterError(_other_protocol(address, server, protocol))
            return
        with urllib.request.urlopen(f"{address}/api/version", timeout=_CONNECT_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        error.close()  # it answers, though it may need a token
    except (UnreachableError, OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        msg = (
            f"{address}: expected the job server of a Ray cluster, but nothing answers there ({reason}); check that it "
            f"runs and that its dashboard's port is open or forwarded (ray dashboard, kubectl port-forward, ssh -L)"
        )
        raise ClusterError(msg) from error


def _other_protocol(address: str, server: Address, protocol: Protocol) -> str:
    """Return the sentence for a server that is no web server; a cluster's head is asked for the one of its own."""
    if protocol is not Protocol.GRPC:
        return (
            f"{address}: expected the job server of a Ray cluster, got a program that speaks another protocol; "
            f"use the dashboard's address, such as {DEFAULT_ADDRESS}"
        )
    from workflows.execution.ray_head import find_job_server  # Ray takes 0.7 s to import

    found = find_job_server(server)
    usual = f"usually http://{Address(host=server.host, port=JOB_SERVER_PORT)}"
    return (
        f"{address}: expected the job server of a Ray cluster, got another port of Ray's, such as the one for "
        f"build --address; the job server has the dashboard's, {usual if found is None else f'http://{found}'}"
    )


def _connect(address: str, token: Token | None) -> Any:  # noqa: ANN401 - Ray's client; ray is imported here only
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.job.sdk", "dashboard.modules.dashboard_sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    headers = {} if token is None else {"Authorization": f"Bearer {token.value}"}
    # In Ray this variable takes precedence over the argument.
    before = os.environ.get("RAY_API_SERVER_ADDRESS")
    os.environ["RAY_API_SERVER_ADDRESS"] = address
    try:
        return JobSubmissionClient(address, headers=headers)
    finally:
        if before is None:
            del os.environ["RAY_API_SERVER_ADDRESS"]
        else:
            os.environ["RAY_API_SERVER_ADDRESS"] = before
