"""Limits on the CPU time and memory of one record in a guarded process, far beyond what records need."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_CPU_SECOND = 1 << 20
"""Size of a record for which it gets an additional second."""
MEMORY_PER_BYTE = 32
"""Additional memory per byte of a record, since parsed JSON and its text take a multiple of its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for one record; a record that exceeds them stops the job, so limits never affect the output."""

    cpu_seconds: float = 30.0
    memory_bytes: int = 1 << 30
    """Memory in addition to that of the process before its first record."""

    def cpu_for(self, num_bytes: int) -> float:
        """Return the CPU time in seconds for a record of `num_bytes`."""
        return self.cpu_seconds + num_bytes / BYTES_PER_CPU_SECOND

    def memory_for(self, num_bytes: int) -> int:
        """Return the memory in bytes for records of `num_bytes` together."""
        return self.memory_bytes + MEMORY_PER_BYTE * num_bytes


DEFAULT_LIMITS = Limits()


def default_limits() -> Limits:
    """Return the default limits."""
    return DEFAULT_LIMITS
