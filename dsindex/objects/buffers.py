"""Memory that is used again for one range of an object after the other.

New memory costs as much as what is copied into it: the system clears each page first.
"""

from __future__ import annotations

import os
import threading

MOST_SPARE_BYTES = 64 << 20
"""Bytes that are kept for ranges to come."""
_UNIT_BYTES = 1 << 20


class _Spare:
    """Buffers that nobody uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        self._num_bytes = 0

    def take(self, num_bytes: int) -> bytearray:
        with self._lock:
            for number, buffer in enumerate(self._buffers):
                if num_bytes <= len(buffer) <= 2 * num_bytes:
                    self._num_bytes -= len(buffer)
                    return self._buffers.pop(number)
        return bytearray(-(-num_bytes // _UNIT_BYTES) * _UNIT_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        with self._lock:
            if self._num_bytes + len(buffer) <= MOST_SPARE_BYTES:
                self._buffers.append(buffer)
                self._num_bytes += len(buffer)


_spare = _Spare()


def _start_anew() -> None:
    """Begin without buffers in a forked process; the lock may have been held while it was forked."""
    global _spare
    _spare = _Spare()


os.register_at_fork(after_in_child=_start_anew)


def take_buffer(num_bytes: int) -> bytearray:
    """Return a buffer of at least so many bytes, with any content, for its taker alone."""
    return _spare.take(num_bytes)


def give_back(buffer: bytearray) -> None:
    """Let a buffer be used again; nobody may have a view of it."""
    _spare.give_back(buffer)
