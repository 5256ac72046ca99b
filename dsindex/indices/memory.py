"""Find out how much memory is available, and refuse or delay tasks that do not fit."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from dsindex.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Return the bytes available without swapping on the machine, or in the control group if that is less.

    Returns:
        None if the system does not report it.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        limits += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit_path, usage_path in _CGROUP_FILES:
        # Absent, or without a limit "max"; v1 then reports a number near 2**63, which the minimum ignores.
        with contextlib.suppress(OSError, ValueError):
            limits.append(max(0, _read_number(limit_path) - _read_number(usage_path)))
    return min(limits, default=None)


def _read_number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def check_memory(needed_bytes: int, *, place: str, what: str) -> None:
    """Refuse work that does not fit into memory, before it allocates anything.

    Raises:
        LimitError: With the needed and the available memory.
    """
    available = available_memory()
    if available is not None and needed_bytes > available:
        msg = (
            f"{place}: {what} takes {show_bytes(needed_bytes)} of memory and {show_bytes(available)} are available; "
            "use a machine with more, request fewer samples, or split the dataset and blend the parts"
        )
        raise LimitError(msg)


class MemoryGate:
    """Lets tasks of one process run concurrently as long as they fit into memory together; others wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reserved = 0

    @contextlib.contextmanager
    def reserve(self, needed_bytes: int, *, place: str, what: str) -> Iterator[None]:
        """Wait until `needed_bytes` fit beside the running tasks, then reserve them.

        Raises:
            LimitError: If they do not fit even alone.
        """
        with self._changed:
            while self._reserved:
                available = available_memory()
                # Running tasks may not have touched their memory yet, so their whole reservation counts.
                if available is None or self._reserved + needed_bytes <= available:
                    break
                self._changed.wait()
            else:
                check_memory(needed_bytes, place=place, what=what)
            self._reserved += needed_bytes
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= needed_bytes
                self._changed.notify_all()


def show_bytes(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> show_bytes(1536), show_bytes(5 << 30)
    ('1.5 KiB', '5.0 GiB')
    """
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
