"""Run whole programs in turn and compare them: time, CPU time and the largest process of each run."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsindex.store.read import digest_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program, with all processes that it waited for."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Resident memory of its largest process."""
    digest: str = ""
    """Of what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: ours against another program, in rounds of one run each."""

    group: str
    work: str
    against: str
    ours: list[Run] = field(default_factory=list)
    other: list[Run] = field(default_factory=list)
    note: str = ""
    by_cpu: bool = False
    """Whether the ratio is of CPU time, for two versions of one program."""

    @property
    def ratios(self) -> list[float]:
        """How many times as fast ours was, one for each round."""
        name = "cpu_seconds" if self.by_cpu else "seconds"
        return [getattr(other, name) / getattr(mine, name) for mine, other in zip(self.ours, self.other, strict=True)]


class RunError(Exception):
    """A measured program failed, or two outputs that must be equal differ."""


def run_program(command: Iterable[object], *, cwd: Path, env: Mapping[str, str] | None = None) -> Run:
    """Run a program to its end.

    Raises:
        RunError: If it fails, with the end of what it printed.
    """
    words = [str(word) for word in command]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    log = cwd / "program.log"
    began = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(words, cwd=cwd, env=variables | dict(env or {}), stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        end = log.read_text(errors="replace").strip().splitlines()[-8:]
        raise RunError(f"{' '.join(words[:6])} … ended with {process.returncode}:\n" + "\n".join(end))
    return Run(seconds=seconds, cpu_seconds=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss << 10)


def alternate(ours: Callable[[], Run], other: Callable[[], Run], rounds: int) -> tuple[list[Run], list[Run]]:
    """Run both in turn, after one run of each that is not counted.

    Raises:
        RunError: If their outputs differ.
    """
    runs: tuple[list[Run], list[Run]] = ([], [])
    for number in range(rounds + 1):
        for counted_runs, program in zip(runs, (ours, other), strict=True):
            run = program()
            if number:
                counted_runs.append(run)
    if len({run.digest for program_runs in runs for run in program_runs}) > 1:
        raise RunError("the outputs differ, so a ratio would mean nothing")
    return runs


def digest_files(paths: Iterable[Path]) -> str:
    """Return the digests of the contents of files, in the order given."""
    return " ".join(digest_file(str(path)) for path in paths)


def show_row(row: Row) -> str:
    """Return a row as text: medians, and the smallest and the median ratio."""
    if not row.ours:
        return f"{row.group:9} {row.work}, against {row.against}: not measured, {row.note}"
    name = "cpu_seconds" if row.by_cpu else "seconds"
    seconds = [statistics.median(getattr(run, name) for run in runs) for runs in (row.ours, row.other)]
    memory = [max(run.peak_bytes for run in runs) / (1 << 30) for runs in (row.ours, row.other)]
    ratios = f"{statistics.median(row.ratios):.2f} × ({min(row.ratios):.2f} to {max(row.ratios):.2f})"
    times = f"{seconds[0]:.2f} s and {seconds[1]:.2f} s" + (" of CPU time" if row.by_cpu else "")
    room = f", {memory[0]:.2f} and {memory[1]:.2f} GiB" if memory[1] else ""
    return f"{row.group:9} {row.work}, against {row.against}: {ratios}, {times}{room}"
