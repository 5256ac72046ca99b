"""Run a program and measure it whole, with all its children: time, CPU time and peak memory.

Memory is the proportional set size summed over all processes, so that a page that several share counts once. CPU time
is that of every process that ended below this one: orphans come to us too (PR_SET_CHILD_SUBREAPER), as Ray's do. Where
a parent does not ask how its children ended, as Ray's raylet, the system forgets their time: then what was seen of each
process while it ran is more, and counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
SAMPLE_SECONDS = 0.05
_SHARE_OF_SAMPLING = 20
"""A sample that takes long (much memory, many processes) is followed by so many times as long without one."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    late_cpus: float = 0.0
    """CPUs in use on average in the second half of the time."""
    digest: str | None = None
    """Of what it wrote."""
    output: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    """What the program said of itself."""


class RunError(Exception):
    """A program that was to be measured failed."""


def measure(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 3600
) -> Run:
    """Run a program to its end, below a process of its own that watches it: nobody else's children are touched.

    Raises:
        RunError: If it fails or takes too long, with the end of what it said.
    """
    order = {"command": list(command), "env": dict(env or {}), "cwd": str(cwd or Path.cwd()), "timeout": timeout}
    watcher = [sys.executable, "-m", "tests.benchmarks.processes"]
    answer = subprocess.run(watcher, input=json.dumps(order), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(answer.stdout)
    if code := found.pop("code"):
        shown = "\n".join(found["output"].strip().splitlines()[-8:])
        msg = f"{' '.join(command[:6])} … failed with {code}:\n{shown}"
        raise RunError(msg)
    return Run(**found)


def _usual_environment() -> dict[str, str]:
    """Return what users have: Python's modules are compiled once and kept, even where a container says otherwise."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def watch() -> None:
    """Run what standard input orders, as JSON, and print what was measured."""
    order = json.loads(sys.stdin.read())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    process = subprocess.Popen(
        order["command"],
        env=_usual_environment() | order["env"],
        cwd=order["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with _Sampler() as sampler:
        try:
            output, said = process.communicate(timeout=order["timeout"])
        except subprocess.TimeoutExpired:
            process.kill()
            output, said = process.communicate()
            said += f"\nstopped after {order['timeout']:.0f} s"
    seconds = time.perf_counter() - began
    end_descendants()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "seconds": seconds,
        "cpu_seconds": max(used.ru_utime + used.ru_stime, sampler.cpu_seconds),
        "peak_bytes": sampler.peak_bytes,
        "late_cpus": sampler.late_cpus(),
        "output": output + said if process.returncode else output,
        "code": process.returncode,
    }
    sys.stdout.write(json.dumps(found))


def alternate(contestants: Mapping[str, Callable[[int], Run | None]], rounds: int) -> dict[str, list[Run]]:
    """Run all in turn, round by round; who gives None sits a round out."""
    runs: dict[str, list[Run]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            done = run(number)
            if done is not None:
                runs[name].append(done)
    return runs


def descendants(pid: int) -> set[int]:
    """Find the processes below one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int(Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found


def end_descendants(*, patience_seconds: float = 5.0) -> None:
    """Wait for what the program left behind, then kill it."""
    deadline = time.monotonic() + patience_seconds
    while left := descendants(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def cpu_time_of(pid: int) -> tuple[str, float]:
    """Return when a process was started and the seconds that it has computed; none when it is gone."""
    try:
        # The name in parentheses may hold anything; what follows the last one is plain.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[19], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, shared pages divided by their users; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class _Sampler(threading.Thread):
    """Watches the memory and the CPU time of all processes below this one, orphans of the program included."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self.peak_bytes = 0
        self._computed: dict[tuple[int, str], float] = {}
        self._history: list[tuple[float, float]] = []
        """When it looked, and the CPU seconds computed by then."""

    def late_cpus(self) -> float:
        """Return the CPUs in use on average in the second half of what was watched; 0 if that was too short."""
        if len(self._history) < 2:
            return 0.0
        half = (self._history[0][0] + self._history[-1][0]) / 2
        late = [entry for entry in self._history if entry[0] >= half]
        (began, before), (ended, after) = late[0], late[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    @property
    def cpu_seconds(self) -> float:
        """What all processes had computed when they were seen last."""
        return sum(self._computed.values())

    def __enter__(self) -> _Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        """Sample until told to stop."""
        pause = 0.0
        while not self._over.wait(pause):
            began = time.perf_counter()
            pids = descendants(os.getpid())
            for pid in pids:
                begun, seconds = cpu_time_of(pid)
                self._computed[pid, begun] = seconds
            if pids:
                self._history.append((began, self.cpu_seconds))
            used = sum(map(proportional_bytes, pids))
            self.peak_bytes = max(self.peak_bytes, used)
            pause = max(SAMPLE_SECONDS, _SHARE_OF_SAMPLING * (time.perf_counter() - began))


if __name__ == "__main__":
    watch()
