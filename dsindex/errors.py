"""Every error that a user can cause, in one tree. Each message is a sentence: where, what was expected, what to do.

    DsindexError
    ├── InputError              an input is missing, empty, unreadable, or changed while it was read
    │   └── BadRecordError      one line of an input is not a record; knows the file and byte offset
    ├── TokenizerError          a tokenizer cannot be read, or lacks what the job needs
    ├── FormatError             a file is not what its format says
    ├── OutputError             an output exists, cannot be written, or does not fit on the disk
    ├── PlanError               the work folder belongs to another plan, or to a running driver
    ├── LimitError              a size that a format or the machine cannot hold; checked before work starts
    └── TaskError               a task failed more often than its budget of retries allows

Misuse of the library (a wrong type, an index out of range) is ValueError, TypeError or IndexError, as in any library.
"""

from __future__ import annotations


class DsindexError(Exception):
    """Base of all errors that dsindex raises on purpose; the command line prints its message and exits with 1."""

    transient: bool = False
    """The same call may succeed when it is tried again: a network folder that was away, an I/O error."""


class InputError(DsindexError):
    """An input is missing, empty, unreadable, or changed while it was read."""


class BadRecordError(InputError):
    """One line of an input is not a record.

    Args:
        path: The input file.
        offset: Byte offset of the line's first byte in the file.
        reason: What is wrong and what was expected, without the place.
        line: 1-based line number in the file, once somebody has counted.
    """

    def __init__(self, path: str, offset: int, reason: str, line: int | None = None) -> None:
        place = f"line {line}" if line is not None else f"line at byte {offset}"
        super().__init__(f"{path}, {place}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.line = line

    def __reduce__(self) -> tuple[type[BadRecordError], tuple[str, int, str, int | None]]:
        return type(self), (self.path, self.offset, self.reason, self.line)

    def with_line(self, line: int) -> BadRecordError:
        """Say the same with the 1-based line number, which only a reader of the whole file knows."""
        return BadRecordError(self.path, self.offset, self.reason, line)


class TokenizerError(DsindexError):
    """A tokenizer cannot be read, or lacks what the job needs."""


class FormatError(DsindexError):
    """A file is not what its format says."""


class OutputError(DsindexError):
    """An output exists already, cannot be written, or does not fit on the disk."""


class PlanError(DsindexError):
    """The work folder belongs to another plan, or to a driver that is running."""


class LimitError(DsindexError):
    """A size that a format or this machine cannot hold; found before anything is allocated or written."""


class TaskError(DsindexError):
    """A task failed more often than its budget of retries allows."""
