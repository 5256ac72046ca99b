"""Waiting for what other processes do: with much patience, since a machine may be busy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 240.0
"""How long a test waits for what takes a moment on an idle machine."""


def wait_until(condition: Callable[[], bool], what: str = "what was awaited") -> None:
    """Return when the condition holds; fail the test if it does not for minutes."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} s in vain: {what}")
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Return whether a process is there that has not ended, whoever has to wait for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
