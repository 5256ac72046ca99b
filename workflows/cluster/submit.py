"""`dsindex submit`, `status`, `logs` and `stop`: run a job on a Ray cluster, follow it, and exit with its exit code.

The job is `python -m workflows …` on the cluster's head; Ray sets the cluster's address for it, so its tasks run on all
nodes. It is shipped with this project's two packages, its `--config` file, and what `--ship` names. Paths of inputs and
outputs are the cluster's: they must be shared storage under the same path on every node.

Exit codes: 0 if it succeeded; the driver's code if it failed (128 + n if signal n ended it, 1 if it never started); 143
if it was stopped, since Ray ends it with SIGTERM; 130 if Ctrl-C ended the following, in which case the job continues.
(`ray job submit` exits with 0 for a stopped job and with 1 for every failure.)
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsindex
import workflows
from dsindex.errors import InputError, LimitError
from dsindex.json_text import show_name
from workflows.cluster.job_server import (
    DEFAULT_ADDRESS,
    JobServer,
    ShippedFile,
    Submission,
    come_back,
    describe,
    exit_code,
    find_address,
)
from workflows.execution.ray_token import find_token
from workflows.options.parser import COMMANDS, make_parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGE_LIMIT = 512 << 20
"""Largest working_dir in bytes that Ray accepts."""
EXCLUDED = (
    ".*",
    "__pycache__",
    "*.pyc",
    "tests",
    "data",
    "*.build",
    "*.bin",
    "*.idx",
    "*.pbin",
    "*.npy",
    "*.partial",
    "*.safetensors",
)
"""Names left out of shipped folders; a file that is named itself is always shipped."""
LOCAL_COMMANDS = frozenset({"submit", "status", "logs", "stop"})
INTERRUPTED_EXIT_CODE = 130
DESCRIPTION = """\
Run a dsindex command on a Ray cluster through its job server, follow its log, and exit with its exit code: 0 done,
1 failed, 143 stopped. Ctrl-C stops following, not the job. The project's code is shipped with the job; inputs and
outputs must be on storage that every node sees under the same path, named by absolute paths.
"""


def plan_submission(
    command: Sequence[str], *, installed: bool = False, ship: Sequence[str] = (), config: str | None = None
) -> Submission:
    """Return what to run on the cluster and what to ship, without contacting it.

    Args:
        command: A dsindex command line without the program's name.
        installed: Whether dsindex is installed on the cluster, so that its packages are not shipped.
        ship: Other files or folders to ship; the job finds each under its base name.
        config: The file of options, if the command names one without the flag --config.

    Raises:
        InputError: If something to ship is missing, two things have one name, or the command reads standard input.
        LimitError: If they are larger than Ray accepts.
    """
    words = list(command)
    check_standard_input(words)
    sources = [Path(name) for name in ship]
    if not installed:
        sources += [Path(str(module.__file__)).parent for module in (dsindex, workflows)]
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
    return Submission(entrypoint=shlex.join(["python", "-m", "workflows", *words]), files=files)


def check_standard_input(command: Sequence[str]) -> None:
    """Refuse a command that reads standard input.

    Raises:
        InputError: If it does.
    """
    if any(word.partition("=")[2] == "-" or word == "-" for word in command):
        msg = "-: standard input does not reach the cluster; save it to shared storage, and name that file"
        raise InputError(msg)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex submit`."""
    parser.usage = "%(prog)s [options] -- COMMAND …"
    parser.epilog = "example:\n  dsindex submit --address http://head:8265 -- build --config build.yaml"
    _add_address(parser)
    parser.add_argument(
        "--no-wait", action="store_true", help="print the job's id and exit; see `dsindex status` and `dsindex logs`"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be run and shipped, and exit")
    parser.add_argument(
        "--installed", action="store_true", help="dsindex is installed on the cluster: do not ship its code"
    )
    parser.add_argument(
        "--ship",
        action="append",
        default=[],
        metavar="PATH",
        help="also ship this file or folder, such as a tokenizer; the job finds it under its base name (repeatable)",
    )
    parser.add_argument(
        "command_line",
        nargs=argparse.REMAINDER,
        action=_CommandLine,
        metavar="-- COMMAND",
        help="the dsindex command to run; a local --config file is shipped, other paths are the cluster's",
    )


def add_job_arguments(parser: argparse.ArgumentParser, *, follow: bool = False) -> None:
    """Add the flags of `dsindex status`, `stop` and, with `follow`, `logs`."""
    _add_address(parser)
    if follow:
        parser.add_argument(
            "--follow", action="store_true", help="show the log until the job ends, and exit with its exit code"
        )
    parser.add_argument("job", metavar="JOB", help="the id that submit printed, such as raysubmit_…")


def run(arguments: argparse.Namespace) -> int:
    """Submit a job and, without --no-wait, follow it until it ends."""
    submission = plan_submission(
        arguments.command_line,
        installed=arguments.installed,
        ship=arguments.ship,
        config=getattr(arguments, "config_file", None),
    )
    if arguments.dry_run:
        sys.stdout.write(describe_submission(submission, find_address(arguments.address)))
        return 0
    server = JobServer(arguments.address)
    job = server.submit(submission)
    sys.stderr.write(f"{job}: submitted to {server.address}\n")
    if arguments.no_wait:
        # For scripts, standard output has only the id.
        sys.stdout.write(f"{job}\n")
        sys.stderr.write("".join(f"  {come_back(verb, job, server.address)}\n" for verb in _VERBS))
        return 0
    return _follow(server, job)


def run_status(arguments: argparse.Namespace) -> int:
    """Print the state of a job; return its exit code if it has ended, otherwise 0."""
    details = JobServer(arguments.address).details(arguments.job)
    sys.stdout.write(describe(arguments.job, details) + "\n")
    return exit_code(details) if details.status.is_terminal() else 0


def run_logs(arguments: argparse.Namespace) -> int:
    """Print a job's log so far, or follow it until the job ends."""
    server = JobServer(arguments.address)
    if arguments.follow:
        return _follow(server, arguments.job)
    sys.stdout.write(server.log(arguments.job))
    return 0


def run_stop(arguments: argparse.Namespace) -> int:
    """Stop a job and wait until it has ended; return 0."""
    details = JobServer(arguments.address).stop(arguments.job)
    sys.stdout.write(describe(arguments.job, details) + "\n")
    return 0


def describe_submission(submission: Submission, address: str) -> str:
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
    return "\n".join(lines) + "\n"


_PROGRAM = frozenset({"dsindex", "python", "python3"})
_VERBS = ("status", "logs --follow", "stop")


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
        if command[0] in LOCAL_COMMANDS:
            parser.error(f"{command[0]} runs here, not on the cluster; write: dsindex {shlex.join(command)}")
        if command != ["--version"]:
            if command[0] in _PROGRAM:
                parser.error(f"expected a dsindex command after --, got {command[0]!r}; leave the program's name out")
            if command[0] not in COMMANDS:
                known = ", ".join(name for name in COMMANDS if name not in LOCAL_COMMANDS)
                parser.error(f"expected a dsindex command after --, got {command[0]!r}; the commands are {known}")
            # Exits if the job would refuse its flags.
            namespace.job_options = make_parser(command[0]).parse_args(command)
        setattr(namespace, self.dest, command)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        metavar="URL",
        help="the cluster's job server, at its dashboard's address (default: $RAY_API_SERVER_ADDRESS, or "
        f"{DEFAULT_ADDRESS}); if the cluster needs a token, set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to its file",
    )


def _follow(server: JobServer, job: str) -> int:
    try:
        code = server.follow(job)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{job}: continues; " + "; ".join(come_back(v, job, server.address) for v in _VERBS) + "\n")
        return INTERRUPTED_EXIT_CODE
    sys.stderr.write(describe(job, server.details(job)) + "\n")
    return code


def _list_files(source: Path) -> Iterator[ShippedFile]:
    """Yield one file, or a folder's files sorted by name, with names that begin with the source's base name."""
    if source.is_file():
        yield ShippedFile(source=source, name=source.name, size_bytes=source.stat().st_size)
        return
    if not source.is_dir():
        msg = f"{source}: expected a file or folder to ship, found none; check --ship"
        raise InputError(msg)
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
            msg = f"{name}: expected different names of what is shipped, got this one twice; rename one"
            raise InputError(msg)
    for file in files:
        if not file.name.isprintable():
            msg = f"{show_name(str(file.source))}: expected a name in UTF-8 on one line to ship, got another; rename it"
            raise InputError(msg)
    total = sum(file.size_bytes for file in files)
    if total > PACKAGE_LIMIT:
        largest = max(files, key=lambda file: file.size_bytes)
        msg = (
            f"expected at most {PACKAGE_LIMIT:,} bytes to ship, got {total:,}, of them {largest.size_bytes:,} in "
            f"{largest.source}; put large files on the cluster's shared storage"
        )
        raise LimitError(msg)
