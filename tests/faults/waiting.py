"""What workers run in tests, in processes of their own: they import it by name."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

FREE_SHARDS = 2
"""So many shards do not wait."""
RUN = """\
import sys
from dsindex.cli.main import main
from tests.faults.waiting import install

install(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""
"""A program that runs a command whose shards wait: the folder for `wait_and_run`, then the words of the command."""


def wait_and_run(folder, function, task, *arguments):
    """Say who works at a shard, and wait in the middle of it until the test lets all go on."""
    if task.shard >= FREE_SHARDS and not (Path(folder) / "go").exists():
        (Path(folder) / f"{task.shard}.{os.getpid()}").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.02)
    return function(task, *arguments)


def waiting_shards(folder):
    """Return the shards that wait, by worker."""
    names = [path.name.split(".") for path in Path(folder).iterdir() if path.name != "go"]
    return {int(pid): int(shard) for shard, pid in names}


def install(folder):
    """Let the shards of a driver in this process wait."""
    from dsindex.runtime.executors import Executor

    start = Executor.start

    def started(executor, call, **options):
        if call.name.startswith("tokenize["):
            call = replace(call, function=wait_and_run, arguments=(folder, call.function, *call.arguments))
        return start(executor, call, **options)

    Executor.start = started  # type: ignore[method-assign]


def set_block_sizes(range_bytes):
    """Set the size of ranges and of all blocks that have a digest."""
    from dsindex.runtime import assembly, job, merge, tokenize
    from dsindex.store import local

    # Setting what nothing reads would do nothing.
    range_sizes = {assembly.RANGE_BYTES, job.RANGE_BYTES, local.DIGEST_BLOCK_BYTES}
    if len(range_sizes) > 1 or merge.BLOCK_BYTES != tokenize.BLOCK_BYTES:
        raise AssertionError("the sizes of blocks are somewhere else")
    assembly.RANGE_BYTES = job.RANGE_BYTES = local.DIGEST_BLOCK_BYTES = range_bytes
    merge.BLOCK_BYTES = tokenize.BLOCK_BYTES = range_bytes


def in_small_ranges(range_bytes, function, *arguments):
    """Call a function in a worker."""
    set_block_sizes(range_bytes)
    return function(*arguments)


def starting_in_small_ranges(start, range_bytes):
    """Return an executor's method that starts calls, with small blocks in its workers."""

    def started(executor, call, **options):
        if executor.kind != "local":
            call = replace(call, function=partial(in_small_ranges, range_bytes, call.function))
        return start(executor, call, **options)

    return started
