"""What Ray's workers run where a test wants to meet a shard under way; they import it by name."""

import os
import time
from dataclasses import replace
from pathlib import Path

FREE_SHARDS = 2
"""So many shards do not wait."""


def wait_and_run(folder, function, task, *rest):
    """Say who works at a shard, and wait in the middle of it until the test lets all go on."""
    if task.shard >= FREE_SHARDS and not (Path(folder) / "go").exists():
        (Path(folder) / f"{task.shard}.{os.getpid()}").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.02)
    return function(task, *rest)


def install(folder):
    """Let the shards of a driver in this process wait."""
    from dsindex.runtime.ray import RayExecutor

    start = RayExecutor.start

    def started(executor, call, **options):
        if call.name.startswith("tokenize["):
            call = replace(call, function=wait_and_run, arguments=(folder, call.function, *call.arguments))
        return start(executor, call, **options)

    RayExecutor.start = started  # type: ignore[method-assign]
