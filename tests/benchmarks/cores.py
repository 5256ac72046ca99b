"""What bounds a build on many cores, measured on few: the model's inputs, see docs/benchmarks.md, section "Many cores".

    python -m tests.benchmarks.cores share INPUT --tokenizer FOLDER --folder EMPTY
    python -m tests.benchmarks.cores imagine

`share` makes all shards in one thread, alone and then beside a loop of Python, which lacks the time in which the other
thread holds the GIL, and in which the GIL changes hands; on a busy machine it lacks more. `imagine` runs threads that
hold the GIL and pause as those of a build do, so that each has a core of its own, and processes that sleep for each
call. Both print JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsindex.engine.source import open_source
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import run_calls
from dsindex.execution.local import ProcessExecutor, ThreadExecutor
from dsindex.kernels.loader import load_kernels
from dsindex.options.build import BuildConfig
from tests.benchmarks.processes import ROOT, alternate, measure
from tests.benchmarks.rows import Row
from tests.benchmarks.warm import make_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.processes import Run
    from tests.benchmarks.setting import Setting

BLOCK_SECONDS = 0.0105
"""A block of 2 MiB at 200 MB/s."""
GIL_SHARE = 0.14
"""Share of a block's time in which the GIL is held."""
PASSES = {"long documents": 40, "records of 200 bytes": 110}
"""How often a block takes the GIL, as `perf stat` counts calls of take_gil."""
IMAGINED = (4, 8, 16, 64)
IMAGINED_PROCESSES = 64
CALL_SECONDS = 0.35
"""A shard of 64 MiB at 200 MB/s."""
_LOOPS = 20_000
_TIMER_SLACK = 29


def measure_cores(setting: Setting) -> list[Row]:
    """Measure the share of the GIL, threads and the driver on imagined cores, and the costs of another process."""
    source = setting.text("cores", setting.size(200e6, 1200e6))
    options = [str(source), "--tokenizer", str(setting.tokenizer), "--folder", str(setting.fresh("ours"))]
    shares = [_run("share", *options)["share"] for _ in range(setting.rounds)]
    found = _run("imagine")

    def build(kind: str, workers: int) -> Callable[[int], Run]:
        return lambda _: replace(setting, workers=workers).build(source, "--executor", kind)

    ways = {"thread": build("local", 1), "process": build("processes", 1), "processes": build("processes", 2)}
    runs = alternate(ways, setting.rounds)
    setting.drop(source, setting.folder / "ours")
    more_memory = [two.peak_bytes - one.peak_bytes for one, two in zip(runs["process"], runs["processes"], strict=True)]
    more_time = [own.cpu_seconds - none.cpu_seconds for none, own in zip(runs["thread"], runs["process"], strict=True)]
    rows = {
        ("GIL held, and lost in passing it on, by one thread", "%"): [100 * share for share in shares],
        (f"driver's CPU per call of {IMAGINED_PROCESSES} processes", "µs"): [found["driver"]],
        ("CPU time of a process beside a thread", "s"): more_time,
        ("memory of another process", "MiB"): [size / (1 << 20) for size in more_memory],
        **{
            (f"{number} threads of imagined cores, times one; {name}", "×"): [speedup]
            for name, speedups in found["threads"].items()
            for number, speedup in zip(IMAGINED, speedups, strict=True)
        },
    }
    return [Row(group="cores", name=name, unit=unit, ours=tuple(figures)) for (name, unit), figures in rows.items()]


def _run(*arguments: str) -> Any:
    return json.loads(measure([sys.executable, "-m", "tests.benchmarks.cores", *arguments], cwd=ROOT).output)


def measure_share(path: str, tokenizer: str, folder: str) -> float:
    """Return the part of its work that a loop of Python cannot do beside one thread that makes shards."""
    config = BuildConfig(
        input=(path,), tokenizer_model=tokenizer, append_eod=True, output_prefix=os.path.join(folder, "out")
    )
    source = open_source(config, append_eod=True)
    load_kernels()
    sys.setswitchinterval(2e-5)
    done, ended = [0], threading.Event()

    def loop() -> None:
        while not ended.is_set():
            burn(_LOOPS)
            done[0] += 1

    with contextlib.closing(ThreadExecutor(1)) as executor:
        make_shards(executor, source, os.path.join(folder, "alone"))
        unit = least_seconds(_LOOPS)
        looping = threading.Thread(target=loop)
        looping.start()
        seconds, _ = make_shards(executor, source, os.path.join(folder, "beside"))
        ended.set()
        looping.join()
    return 1 - done[0] * unit / seconds


def burn(loops: int) -> None:
    """Hold the GIL."""
    for _ in range(loops):
        pass


def least_seconds(loops: int) -> float:
    """Time a loop alone."""
    times = []
    for _ in range(100):
        began = time.perf_counter()
        burn(loops)
        times.append(time.perf_counter() - began)
    return min(times)


def imagine_threads(number: int, passes: int, *, seconds: float = 2.0) -> float:
    """Return how many blocks such threads do in a second; what releases the GIL takes its time, but no CPU."""
    loops = round(GIL_SHARE * BLOCK_SECONDS / passes / least_seconds(_LOOPS) * _LOOPS)
    pause = (1 - GIL_SHARE) * BLOCK_SECONDS / passes
    counts = [0] * number
    end = time.perf_counter() + seconds

    def work(thread: int) -> None:
        while time.perf_counter() < end:
            burn(loops)
            time.sleep(pause)
            counts[thread] += 1

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / passes / seconds


def imagine_processes(number: int) -> float:
    """Return the driver's CPU time in µs for each call of so many processes."""
    with contextlib.closing(ProcessExecutor(number)) as executor:
        call = Call(name="shard", place="", function=time.sleep, arguments=(CALL_SECONDS,))
        began = 0.0
        for calls in (number, 8 * number):  # the first ones start the processes
            began = time.process_time()
            run_calls(executor, ((each, call) for each in range(calls)), on_result=lambda *_: None)
        return 1e6 * (time.process_time() - began) / (8 * number)


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    share = modes.add_parser("share")
    share.add_argument("input")
    share.add_argument("--tokenizer", required=True)
    share.add_argument("--folder", required=True)
    modes.add_parser("imagine")
    options = parser.parse_args()
    found: dict[str, Any]
    if options.mode == "share":
        Path(options.folder).mkdir(exist_ok=True)
        found = {"share": measure_share(options.input, options.tokenizer, options.folder)}
    else:
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1)
        found = {"threads": {}, "driver": imagine_processes(IMAGINED_PROCESSES)}
        for name, passes in PASSES.items():
            one = imagine_threads(1, passes)
            found["threads"][name] = [imagine_threads(number, passes) / one for number in IMAGINED]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
