"""`dsindex submit`: run a job on a Ray cluster, follow it, and exit with its exit code.

The job is `python -m dsindex …` on the cluster's head; Ray sets the cluster's address for it, so its tasks run on all
nodes. It is shipped with this project's two packages, its `--config` file, and what `--ship` names. Paths of inputs and
outputs are the cluster's: they must be shared storage under the same path on every node.

Exit codes: 0 if it succeeded; the driver's code if it failed (128 + n if signal n ended it, 1 if it never started); 143
if it was stopped, since Ray ends it with SIGTERM; 130 if Ctrl-C ended the following, in which case the job continues.
(`ray job submit` exits with 0 for a stopped job and with 1 for every failure.)

Source of the protocol: Ray's Jobs API (`ray.job_submission`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import http.client
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import ValidationError

import dsindex
from dsindex.cli.job_command import check_command, positional_config
from dsindex.cli.options import read_config
from dsindex.cli.parser import COMMANDS, make_parser
from dsindex.errors import DsindexError, InputError, LimitError
from dsindex.execution.progress.standard_streams import flush_output, show_lines, write_lines
from dsindex.execution.ray_address import JOB_SERVER_PORT, Address
from dsindex.execution.ray_token import find_token, hide_secrets, refusal
from dsindex.json_text import show_name
from dsindex.locations import Location
from dsindex.options.config import Options, UsageError
from dsindex.options.declare import option
from dsindex.store.urls import ONLY_INPUTS, is_url, refuse_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.execution.ray_token import Token

DESCRIPTION = """\
Run a dsindex command on a Ray cluster through its job server, follow its log, and exit with its exit code: 0 done,
1 failed, 143 stopped. Ctrl-C stops following, not the job. The project's code is shipped with the job; inputs and
outputs must be on storage that every node sees under the same path, named by absolute paths.
"""
DEFAULT_ADDRESS = f"http://127.0.0.1:{JOB_SERVER_PORT}"
PACKAGE_LIMIT = 512 << 20
"""Largest working_dir in bytes that Ray accepts."""
EXCLUDED = (
    *(".*", "__pycache__", "*.pyc", "tests", "data"),
    *("*.build", "*.bin", "*.idx", "*.pbin", "*.npy", "*.partial", "*.safetensors"),
)
"""Names left out of shipped folders; a file that is named itself is always shipped."""
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_NOT_FOUND = 127
EXIT_STOPPED = 143
"""128 + 15: Ray ends a stopped job with SIGTERM."""
_RETRIES = 8
"""Attempts to restore a broken connection, with pauses of up to 30 s: about 2 minutes."""
_MOST_VERSION_BYTES = 64 << 10
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command, and a usage that has it."""
    parser.usage = "%(prog)s [options] -- COMMAND …"
    parser.epilog = "example:\n  dsindex submit --address http://head:8265 -- build --config build.yaml"
    parser.add_argument(
        "command_line",
        nargs=argparse.REMAINDER,
        action=_CommandLine,
        metavar="-- COMMAND",
        help="the dsindex command to run; a local --config file is shipped, other paths are the cluster's",
    )


class SubmitConfig(Options):
    """`dsindex submit`: a job on a cluster."""

    address: str | None = option(
        None,
        "the cluster's job server, at its dashboard's address (default: $RAY_API_SERVER_ADDRESS, or "
        f"{DEFAULT_ADDRESS}); if the cluster needs a token, set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to its file",
        "URL",
    )
    no_wait: bool = option(default=False, help="print the job's id and exit; `ray job` finds it")
    python: str = option(
        "python",
        "the Python on the head that has its Ray and dsindex, if it is not the first on the head's PATH",
        "PATH",
    )
    dry_run: bool = option(default=False, help="print what would be run and shipped, and exit")
    installed: bool = option(default=False, help="dsindex is installed on the cluster: do not ship its code")
    ship: tuple[str, ...] = option(
        (),
        "also ship this file or folder, such as a tokenizer; the job finds it under its base name (repeatable)",
        "PATH",
        each=True,
    )


OPTIONS = (SubmitConfig,)


class _CommandLine(argparse.Action):
    """Takes everything after `--` as the command, and refuses an invalid one with exit code 2."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        words = list(values or [])
        command = words[1:] if words[:1] == ["--"] else words
        if not command:
            parser.error("expected a dsindex command after --, such as: submit -- build --config build.yaml")
        if command[0] == "submit":
            parser.error(f"{command[0]} runs here, not on the cluster; write: dsindex {shlex.join(command)}")
        if command != ["--version"]:
            if command[0] in {"dsindex", "python", "python3"}:
                parser.error(f"expected a dsindex command after --, got {command[0]!r}; leave the program's name out")
            if command[0] not in COMMANDS:
                known = ", ".join(name for name in COMMANDS if name != "submit")
                parser.error(f"expected a dsindex command after --, got {command[0]!r}; the commands are {known}")
            # Exits if the job would refuse its flags.
            namespace.job_options = make_parser(command[0]).parse_args(command)
        setattr(namespace, self.dest, command)


def run(options: argparse.Namespace) -> int:
    """Check the job's command, submit it and, without --no-wait, follow it; faults are told as the command would."""
    check_standard_input(options.command_line)
    given = read_config(options, SubmitConfig)
    config = None
    if options.command_line != ["--version"]:
        command, job = options.command_line[0], options.job_options
        try:
            check_command(command, job, shipped=[os.path.basename(os.path.abspath(path)) for path in given.ship])
        except (UsageError, DsindexError) as error:
            sys.stderr.write(show_lines([f"dsindex {command}: {error}"]))
            return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        config = positional_config(job)
    submission = plan_submission(
        options.command_line, installed=given.installed, ship=given.ship, config=config, python=given.python
    )
    if given.dry_run:
        write_lines(describe_submission(submission, find_address(given.address)))
        return 0
    server = JobServer(given.address)
    job_id = server.submit(submission)
    sys.stderr.write(show_lines([f"{job_id}: submitted to {server.address}"]))
    if given.no_wait:
        write_lines([job_id])  # for scripts, standard output has only the id
        sys.stderr.write(show_lines(f"  {come_back(verb, job_id, server.address)}" for verb in _VERBS))
        return 0
    try:
        details = server.follow(job_id)
    except KeyboardInterrupt:
        ways = "; ".join(come_back(verb, job_id, server.address) for verb in _VERBS)
        sys.stderr.write(show_lines(["", f"{job_id}: continues; {ways}"]))
        return EXIT_INTERRUPTED
    sys.stderr.write(show_lines([describe(job_id, details)]))
    return exit_code(details)


def plan_submission(
    command: Sequence[str],
    *,
    installed: bool = False,
    ship: Sequence[str] = (),
    config: str | None = None,
    python: str = "python",
) -> Submission:
    """Return what to run on the cluster and what to ship, without contacting it.

    Args:
        command: A dsindex command line without the program's name.
        installed: Whether dsindex is installed on the cluster, so that its packages are not shipped.
        ship: Other files or folders to ship; the job finds each under its base name.
        config: The file of options, if the command names one without the flag --config.
        python: The Python that runs it.

    Raises:
        InputError: If something to ship is missing, two things have one name, or the command reads standard input or
            holds a secret.
        LimitError: If they are larger than Ray accepts.
    """
    words = list(command)
    check_standard_input(words)
    for word in words:
        given = Location(word if is_url(word) else word.partition("=")[2])
        if given != given.raw:
            raise InputError(
                f"{given}: expected an address without password and signature, which the cluster would show with the "
                "job's command; put it into a file and name that with --config or --input-list"
            )
    for name in ship:
        refuse_address(name, ONLY_INPUTS)
    sources = [Path(name) for name in ship]
    if not installed:
        sources += [Path(str(dsindex.__file__)).parent]
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == "--config":
            spot = place if equals else place + 1
            path = Path(value if equals else "".join(words[spot : spot + 1]))
        elif word == config and place > 0:
            spot, path, equals = place, Path(word), ""
        else:
            continue
        # A file that does not exist here may exist on the cluster; if not, the job reports it.
        if path.is_file():
            sources.append(path)
            words[spot] = f"{flag}{equals}{path.name}" if equals else path.name
    files = tuple(file for source in sources for file in _list_files(source.absolute()))
    _check_package(files, sources)
    return Submission(entrypoint=shlex.join([python, "-m", "dsindex", *words]), files=files)


def check_standard_input(command: Sequence[str]) -> None:
    """Refuse a command that reads standard input.

    Raises:
        InputError: If it does.
    """
    if any(word.partition("=")[2] == "-" or word == "-" for word in command):
        raise InputError("-: standard input does not reach the cluster; save it to shared storage, and name that file")


def describe_submission(submission: Submission, address: str) -> list[str]:
    """Return what would be run and shipped, for --dry-run."""
    counts: dict[str, list[int]] = {}
    for file in submission.files:
        counts.setdefault(file.name.split("/")[0], []).append(file.size_bytes)
    token = find_token()
    lines = [
        f"job server   {address}",
        f"token        {'none' if token is None else f'from {token.place}'}",
        f"entry point  {submission.entrypoint}",
        f"shipped      {len(submission.files)} files, {sum(file.size_bytes for file in submission.files):,} bytes",
    ]
    lines += [f"             {name}: {len(sizes)} files, {sum(sizes):,} bytes" for name, sizes in counts.items()]
    return lines


def _list_files(source: Path) -> Iterator[ShippedFile]:
    """Yield one file, or a folder's files sorted by name, with names that begin with the source's base name."""
    if source.is_file():
        yield ShippedFile(source=source, name=source.name, size_bytes=source.stat().st_size)
        return
    if not source.is_dir():
        raise InputError(f"{source}: expected a file or folder to ship, found none; check --ship")
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if not _is_excluded(name))
        for name in sorted(names):
            path = Path(folder, name)
            # Sockets, devices and dangling links have no content to ship.
            if not _is_excluded(name) and path.is_file():
                inside = path.relative_to(source.parent).as_posix()
                yield ShippedFile(source=path, name=inside, size_bytes=path.stat().st_size)


def _is_excluded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in EXCLUDED)


def _check_package(files: Sequence[ShippedFile], sources: Sequence[Path]) -> None:
    names = [source.absolute().name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: expected different names of what is shipped, got this one twice; rename one")
    for file in files:
        if not file.name.isprintable():
            msg = f"{show_name(str(file.source))}: expected a name in UTF-8 on one line to ship, got another; rename it"
            raise InputError(msg)
    total = sum(file.size_bytes for file in files)
    if total > PACKAGE_LIMIT:
        largest = max(files, key=lambda file: file.size_bytes)
        raise LimitError(
            f"expected at most {PACKAGE_LIMIT:,} bytes to ship, got {total:,}, of them {largest.size_bytes:,} in "
            f"{largest.source}; put large files on the cluster's shared storage"
        )


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
        with self._told():
            return self._client.get_job_info(job)

    def follow(self, job: str) -> Any:  # noqa: ANN401 - as `details`
        """Write a job's log to standard output until the job ends, resuming after a broken connection.

        Returns:
            The details of the ended job.
        """
        shown = broken = 0
        while True:
            before = shown
            shown, error = asyncio.run(self._write_log(job, shown))
            if error is None:
                details = self.details(job)
                if details.status.is_terminal():
                    return details
            broken = broken + 1 if error is not None and shown == before else 0
            if broken > _RETRIES:
                raise ClusterError(
                    f"{self.address}: the connection was lost ({hide_secrets(str(error))}) and could not be restored; "
                    f"the job may still run: {come_back('logs --follow', job, self.address)}"
                ) from error
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

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn exceptions of Ray, requests and aiohttp into a ClusterError."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise ClusterError(refusal(self.address, self._token)) from error
        except (TypeError, LookupError, AttributeError, RecursionError, ValidationError, JSONDecodeError) as error:
            raise ClusterError(_another_server(self.address)) from error
        except (OSError, RuntimeError, ValueError) as error:
            first_line = hide_secrets((str(error).splitlines() or [type(error).__name__])[0])
            raise ClusterError(f"{self.address}: the cluster's job server failed: {first_line}") from error


def find_address(address: str | None) -> Location:
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
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an incomplete IPv6 address, or a port that is none
        is_server = False
    if not is_server:
        got = repr(Location(chosen))
        msg = f"--address: expected a job server such as {DEFAULT_ADDRESS}, got {got}; use the dashboard's address"
        raise ClusterError(msg)
    return Location(chosen.rstrip("/"))


def exit_code(details: Any) -> int:  # noqa: ANN401 - Ray's JobDetails; ray is not imported for types
    """Return the exit code of an ended job."""
    if details.status == "SUCCEEDED":
        return 0
    if details.status == "STOPPED":
        return EXIT_STOPPED
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
        reason = hide_secrets((details.message or "no reason given").splitlines()[0])
        return f"{job}: failed outside its command: {reason}"
    if details.driver_exit_code == EXIT_NOT_FOUND:
        return f"{job}: failed: the head has no such Python; name the one of its Ray: submit --python PATH -- …"
    return f"{job}: failed, exit code {exit_code(details)}"


_VERBS = ("status", "logs --follow", "stop")


def come_back(verb: str, job: str, address: str) -> str:
    """Return the command line of Ray's that queries, follows or stops a job."""
    return f"ray job {verb} --address {address} {job}"


def _probe(address: Location) -> None:
    """Check within seconds whether a web server answers; Ray's client would wait for minutes.

    Raises:
        ClusterError: If nothing or something else answers.
    """
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=_CONNECT_SECONDS) as answer:
            _require_version(address, answer)
    except urllib.error.HTTPError as error:
        error.close()  # it answers, though it may need a token
    except (http.client.HTTPException, ConnectionResetError) as error:
        usual = Address(host=urlsplit(address).hostname or "", port=JOB_SERVER_PORT)
        raise ClusterError(
            f"{address}: expected the job server of a Ray cluster, got a program that speaks another protocol, such as "
            f"the one for build --address; the job server has the dashboard's port, usually http://{usual}"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = hide_secrets(str(getattr(reason, "strerror", None) or reason))
        raise ClusterError(
            f"{address}: expected the job server of a Ray cluster, but nothing answers there ({reason}); check that it "
            f"runs and that its dashboard's port is open or forwarded (ray dashboard, kubectl port-forward, ssh -L)"
        ) from error


def _require_version(address: Location, answer: IO[bytes]) -> None:
    """Check that an answer is a job server's; Ray's client would read any to its end.

    Raises:
        ClusterError: If it is another server's.
    """
    content, end = b"", time.monotonic() + _CONNECT_SECONDS
    while len(content) <= _MOST_VERSION_BYTES and time.monotonic() < end:
        chunk = answer.read1(_MOST_VERSION_BYTES)  # type: ignore[attr-defined]  # an HTTPResponse
        if not chunk:
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(content)
                if isinstance(found, dict) and isinstance(found.get("version"), str):
                    return
            break
        content += chunk
    raise ClusterError(_another_server(address))


def _another_server(address: str) -> str:
    return (
        f"{address}: expected the job server of a Ray cluster, got another web server; use the dashboard's "
        f"address, such as {DEFAULT_ADDRESS}"
    )


def _connect(address: Location, token: Token | None) -> Any:  # noqa: ANN401 - Ray's client; ray is imported here only
    import aiohttp  # noqa: F401 - of ray[default]: without it, the client fails later
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.job.sdk", "dashboard.modules.dashboard_sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    headers = {} if token is None else {"Authorization": f"Bearer {token.value}"}
    # In Ray this variable takes precedence over the argument.
    before = os.environ.get("RAY_API_SERVER_ADDRESS")
    os.environ["RAY_API_SERVER_ADDRESS"] = address.raw
    try:
        return JobSubmissionClient(address.raw, headers=headers)
    finally:
        if before is None:
            del os.environ["RAY_API_SERVER_ADDRESS"]
        else:
            os.environ["RAY_API_SERVER_ADDRESS"] = before
