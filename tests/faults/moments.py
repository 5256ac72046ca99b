"""Moments of requests to an object server, and processes that are killed at them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.object_server import ObjectServer


def count_moments(store: ObjectServer, run: Callable[[], object]) -> Counter[str]:
    told: Counter[str] = Counter()
    store.watch = lambda moment, *_: told.update([moment])
    run()
    store.watch = None
    return told


def kill_at(store: ObjectServer, pid_file: Path, number: int, moment: str) -> None:
    """Kill the process whose id is in a file when so many requests have come to this moment."""
    left = number

    def watch(now: str, *_: str) -> None:
        nonlocal left
        if now == moment:
            left -= 1
            if left == 0:
                os.kill(int(pid_file.read_text()), signal.SIGKILL)

    store.watch = watch
