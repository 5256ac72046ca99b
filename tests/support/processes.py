"""Wait for other processes, with long time limits because the machine may be busy."""

import contextlib
import time
from pathlib import Path

PATIENCE_SECONDS = 240.0
"""How long a test waits for an event that takes a moment on an idle machine."""


def wait_until(condition, event="what was awaited"):
    """Return when the condition holds; fail the test if it does not within PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} s in vain: {event}")
        time.sleep(0.02)


def start_ray(start):
    """Call `start`, which starts a Ray node, and repeat it if Ray times out, as it does on a busy machine."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return start()
        except Exception as error:  # Ray raises plain Exception here
            if "timed out during startup" not in str(error) or time.monotonic() > end:
                raise


def find_marked(variable):
    """Return the ids of all processes with an environment variable, given as `NAME=VALUE`."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{variable}\0".encode() in path.read_bytes() + b"\0":
                pids.append(int(path.parent.name))
    return pids


def is_running(pid):
    """Return whether a process exists and has not ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
