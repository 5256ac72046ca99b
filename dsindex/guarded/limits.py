"""How much one record may cost in a guarded process. Both limits are far beyond what records need."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_CPU_SECOND = 1 << 20
"""A record of this size gets one second more."""
MEMORY_PER_BYTE = 32
"""Parsed JSON and the text made of it take a multiple of the record's own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Past a limit the job stops and names the record: reaching one never decides what is written."""

    cpu_seconds: float = 30.0
    memory_bytes: int = 1 << 30
    """Beyond what the process needs before its first record."""

    def cpu_for(self, num_bytes: int) -> float:
        """Return the CPU time in seconds for a record of `num_bytes`."""
        return self.cpu_seconds + num_bytes / BYTES_PER_CPU_SECOND

    def memory_for(self, num_bytes: int) -> int:
        """Return the memory in bytes for records of `num_bytes` together."""
        return self.memory_bytes + MEMORY_PER_BYTE * num_bytes


DEFAULT_LIMITS = Limits()


def default_limits() -> Limits:
    """Return the limits that hold where no others are given."""
    return DEFAULT_LIMITS
