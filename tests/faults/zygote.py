"""Runs `dsindex` commands in forks of one warm process, and strikes them at chosen points.

`python -m tests.faults.zygote` imports everything, starts no thread, and forks a child per line of its input. In the
child the calls that change anything on disk are counted; at the chosen one the process kills itself, stops the
machine's disk, or does whatever else `Strike` says. The product knows nothing of this.
"""

from __future__ import annotations

import builtins
import errno
import faulthandler
import importlib
import io
import itertools
import json
import os
import random
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.faults.damage import DAMAGES, damage_one, paths_below
from tests.faults.waiting import install, set_block_sizes, starting_in_small_ranges
from tests.support.golden import ROOT

SMALL_RANGE_BYTES = 8 << 10
CPU_SECONDS = 15
"""A command that computes for longer is in an endless loop; the longest takes two."""

LOADED = (
    *("gigatoken", "pyarrow.json", "pyarrow.parquet", "tokenizers", "dsindex.cli.render", "dsindex.cli.main"),
    *("dsindex.megatron.building", "dsindex.runtime.preflight", "dsindex.commands.raw_index"),
    *(f"dsindex.commands.{name}" for name in ("api", "build", "convert", "index", "instruct", "merge", "pack")),
    *("dsindex.text.encoders", "dsindex.text.engines", "dsindex.text.records"),
)
"""Modules that commands load, which takes longer than a small command itself."""

SEAMS = (
    *("replace", "rename", "link", "symlink", "unlink", "rmdir", "mkdir"),
    *("ftruncate", "fsync", "write", "pwrite", "utime"),
)
"""Functions of `os` that change something, but for `open`, which is counted where it may write."""
READ_SEAMS = ("preadv", "pread", "stat", "lstat", "scandir", "listdir")
"""Functions of `os` that read something, but for `open`, which is counted where it may not write."""
LIMIT_SECONDS = 240
"""A command that takes longer hangs, however busy the machine is."""
HANGS = -99
"""The exit code of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What happens at one counted call."""

    at: int | None = None
    """The call's number from 0; None: nothing happens, calls are only counted."""
    action: str = "kill"
    """`kill`: SIGKILL before the call; `tear`: after half of what it writes; a signal; an errno, of a full disk after
    half of what is written; `meet`: another driver with the same words runs to its end meanwhile; or something that is
    done to `target`."""
    place: str = ""
    """Only calls whose arguments name a path in which this regular expression is found are counted."""
    name: str = ""
    """Only calls of this function are counted."""
    lasts: bool = False
    """An errno is raised by all later calls too."""
    reads: bool = False
    """Calls that read are counted, not those that change something."""
    target: str = ""
    """What `vanish` removes, `grow` adds a record to, and `cut` takes the last bytes from; for a kind of damage, a
    folder, `::` and a regular expression of the files there of which one is damaged, as soon as there is one."""
    seed: int = 0
    """Draws the damage."""

    def counts(self, name, path):
        """Return whether a call is counted."""
        if self.action in {"ENOSPC", "EDQUOT"} and name in {"unlink", "rmdir"}:
            return False
        return self.name in {"", name} and (not self.place or bool(re.search(self.place, path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code, or minus the signal."""
    output: str
    errors: str
    calls: list[str]
    """Names of the counted calls and their paths, where nothing struck."""
    tokenized: list[str]
    """Shards that were begun: path and first byte."""
    struck: str | None
    """What was damaged, or how the other driver ended; None if nothing struck."""


class Zygote:
    """The warm process, from outside."""

    def __enter__(self):
        words = [sys.executable, "-m", "tests.faults.zygote"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(words, **pipes, cwd=ROOT, text=True, start_new_session=True)
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]
        self._process.wait(30)

    def run(self, folder, arguments, strike=None, *, waiting=None, stdin=os.devnull, range_bytes=SMALL_RANGE_BYTES):
        """Run one command to its end; `folder` gets its output; see tests.faults.waiting for `waiting`."""
        order = {
            "folder": str(folder),
            "arguments": [*map(str, arguments)],
            "strike": asdict(strike or Strike()),
            "waiting": None if waiting is None else str(waiting),
            "stdin": str(stdin),
            "range_bytes": range_bytes,
        }
        self._process.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        code = json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        return Ended(
            code=code,
            output=(folder / "stdout").read_text(),
            errors=(folder / "stderr").read_text(),
            calls=_lines(folder / "calls"),
            tokenized=_lines(folder / "tokenized"),
            struck=(folder / "struck").read_text() if (folder / "struck").exists() else None,
        )


def _lines(path):
    return path.read_text().splitlines() if path.exists() else []


def serve():
    """Fork a child per order."""
    import_everything()
    while line := sys.stdin.readline():
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            order["folder"], order["strike"] = Path(order["folder"]), Strike(**order["strike"])
            run_child(**order)
        sys.stdout.write(json.dumps(wait_for_child(child)) + "\n")
        sys.stdout.flush()


def wait_for_child(child):
    """Return the exit code of a command, or minus the signal, or HANGS."""
    process = os.pidfd_open(child)
    ended, _, _ = select.select([process], [], [], LIMIT_SECONDS)
    os.close(process)
    if not ended:
        os.kill(child, signal.SIGUSR1)  # which shows where it hangs
        time.sleep(1)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else HANGS


def import_everything():
    """Load what a build loads, and start nothing: a fork has one thread only."""
    for name in LOADED:
        importlib.import_module(name)
    warm_up_loops()
    sys.modules["dsindex.cli.parser"].make_parser("build").format_usage()
    if threading.active_count() != 1:
        sys.exit("expected one thread after the imports")


def warm_up_loops():
    """Load the compiled loops of the index, which takes longer than all else that a small index needs."""
    import numpy as np

    from dsindex.megatron.building import build_arrays
    from dsindex.megatron.epochs import SampleRule, count_epochs

    lengths = np.array([20, 50, 60], np.int32)
    rule = SampleRule(sequence_length=30)
    build_arrays(lengths, count_epochs(130, 9, rule=rule, place=""), begin=0, rule=rule, seed=1)


def run_child(folder, arguments, strike, waiting, stdin, range_bytes):
    """Be the command; never returns."""
    from dsindex.cli.main import main

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("calls", "tokenized", "struck"):
        (folder / name).unlink(missing_ok=True)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1)
    code = 99
    try:
        use_small_ranges(range_bytes)
        record_tokenizing(folder / "tokenized")
        if waiting is not None:
            install(waiting)
        counter = Counter(strike, folder / "struck", [str(range_bytes), *arguments])
        counter.install()
        code = main(arguments)
        (folder / "calls").write_text("".join(f"{call}\n" for call in counter.calls))
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 98
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        threading._shutdown()  # as any process does at its end: threads that still write end first
        os._exit(code)


def use_small_ranges(range_bytes):
    """Cut outputs into small ranges, so that a small build has many; each is then a digest block of its own."""
    from dsindex.runtime.executors import Executor

    set_block_sizes(range_bytes)
    Executor.start = starting_in_small_ranges(Executor.start, range_bytes)  # type: ignore[method-assign]


def record_tokenizing(path):
    """Note every shard that a thread of this process begins."""
    from dsindex.runtime.executors import ThreadExecutor

    start, write = ThreadExecutor.start, os.write
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def recorded(executor, call, **options):
        def run(task, *arguments):
            write(descriptor, f"{task.parts[0].path} {task.parts[0].begin}\n".encode())
            return call.function(task, *arguments)

        return start(executor, replace(call, function=run) if call.name.startswith("tokenize[") else call, **options)

    ThreadExecutor.start = recorded  # type: ignore[method-assign]


class Counter:
    """Counts the calls and strikes at one of them."""

    def __init__(self, strike, mark, words):
        self._strike, self._mark, self._words = strike, mark, words
        self._numbers = itertools.count()
        self._is_acting = False
        self.calls = []

    def install(self):
        for name in READ_SEAMS if self._strike.reads else SEAMS:
            setattr(os, name, self._counted(name, getattr(os, name)))
        really_open, really_os_open = builtins.open, os.open
        self._open = os.open

        def open_file(file, mode="r", *arguments, **options):
            if isinstance(file, str) and bool(set(mode) & set("wxa+")) != self._strike.reads:
                self._meet("open", (file,))
            return really_open(file, mode, *arguments, **options)

        def open_descriptor(path, flags, *arguments, **options):
            if bool(flags & (os.O_WRONLY | os.O_RDWR)) != self._strike.reads:
                self._meet("os.open", (path,))
            return really_os_open(path, flags, *arguments, **options)

        builtins.open = open_file  # type: ignore[assignment]
        os.open = open_descriptor

    def _counted(self, name, function):
        def counted(*arguments, **options):
            self._meet(name, arguments, function)
            return function(*arguments, **options)

        return counted

    def _meet(self, name, arguments, function=None):
        strike, path = self._strike, _path_of(arguments)
        if self._is_acting or not strike.counts(name, path):
            return
        number = next(self._numbers)
        if strike.at is None:
            self.calls.append(f"{name} {path}")
        elif number == strike.at or (number > strike.at and (strike.lasts or self._is_waiting())):
            self._act(name, arguments, function)

    def _is_waiting(self):
        """Whether there was no file to damage until now."""
        return self._strike.action in DAMAGES and not self._mark.exists()

    def _act(self, name, arguments, function):
        action = self._strike.action
        self._is_acting = True  # calls of this function are not counted
        try:
            said = self._disturb(action)
            if said is not None:
                self._mark.write_text(said)
        finally:
            self._is_acting = False
        is_file = "pipe:" not in _path_of(arguments)  # a short message to a pipe is not torn
        if action in {"tear", "ENOSPC", "EDQUOT"} and name in {"write", "pwrite"} and function is not None and is_file:
            data = memoryview(arguments[1]).cast("B")
            function(arguments[0], data[: len(data) // 2], *arguments[2:])
        if action.startswith("E"):
            code = getattr(errno, action)
            raise OSError(code, os.strerror(code))
        if action.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, action))
        if action in {"kill", "tear"}:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def _disturb(self, action):
        """Do something else than this process; return what, or None if there is nothing yet to do it to."""
        strike = self._strike
        if action in DAMAGES:
            return damage_one(action, paths_below(*strike.target.split("::")), random.Random(strike.seed))
        if action == "meet":
            words = [sys.executable, "-m", "tests.faults.zygote", *self._words]
            with open(strike.target, "rb") as stdin:
                met = subprocess.run(words, stdin=stdin, capture_output=True, text=True, cwd=ROOT, timeout=100)
            return f"{met.returncode}\n{met.stderr}"
        if action in {"vanish", "grow", "cut"}:
            strike_file(action, Path(strike.target))
        return action


def strike_file(action, path):
    """Do from within what another process may do at any time."""
    if action == "vanish":
        gone = f"{path}.gone"  # moved away first: a folder that others write into cannot be removed at once
        subprocess.run(["mv", str(path), gone], check=True)
        subprocess.run(["rm", "-rf", gone], check=True)
    else:
        data = path.read_bytes()
        path.write_bytes(data + b'{"text": "more"}\n' if action == "grow" else data[:-100])


def _path_of(arguments):
    if isinstance(arguments[0], int):
        try:
            return os.readlink(f"/proc/self/fd/{arguments[0]}")
        except OSError:
            return ""
    return " ".join(os.fspath(argument) for argument in arguments if isinstance(argument, (str, os.PathLike)))


def run_other_driver(range_bytes, *arguments):
    """Run a command in this process, in ranges as small as those of the first driver."""
    from dsindex.cli.main import main

    use_small_ranges(int(range_bytes))
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run_other_driver(*sys.argv[1:]) if sys.argv[1:] else serve())
