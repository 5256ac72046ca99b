"""Standard output and standard error as a command may find them: closed, full, or unable to show every letter.

What a job has to say never decides how it ends. Letters that the encoding lacks, and names that are not UTF-8, are
shown as escapes. What cannot be written is dropped, and `flush_output` tells why.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from dsindex.json_text import encode_json, show_name

if TYPE_CHECKING:
    from typing import TextIO

_FIRST_DESCRIPTORS = (0, 1, 2)


class StandardOutputError(Exception):
    """What was printed to standard output could not be written.

    Args:
        reason: What the system said.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason.strerror))
        self.nobody_reads = isinstance(reason, BrokenPipeError)
        """The other end of a pipe was closed, as `head` does when it has seen enough."""


class StandardStream(io.TextIOWrapper):
    """A text stream that can be written to whatever became of its file."""

    failure: OSError | None = None
    """Why the first text was dropped; all later ones are."""

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        if self.failure is None:
            try:
                super().write(text)
            except OSError as error:
                self.failure = error
        return len(text)

    def flush(self) -> None:
        """Write what is pending, or drop it."""
        if self.failure is None:
            try:
                super().flush()
            except OSError as error:
                self.failure = error


def write_lines(text: str) -> None:
    """Write lines for people to standard output, with what a terminal would not show as a letter escaped."""
    sys.stdout.write(show_lines(text))


def write_json(stream: TextIO, value: object) -> None:
    """Write a value as JSON on one line, which stays JSON whatever letters the stream knows."""
    line = encode_json(value, newline=True)
    try:
        line.decode().encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        line = encode_json(value, newline=True, ascii_only=True)
    stream.write(line.decode())


def show_lines(text: str) -> str:
    """Return lines for people with each name in them as `show_name` has it."""
    return "\n".join(show_name(line) for line in text.split("\n"))


def flush_output() -> None:
    """Write out what was printed to standard output.

    Raises:
        StandardOutputError: If any of it could not be written, now or earlier.
    """
    sys.stdout.flush()
    if isinstance(sys.stdout, StandardStream) and sys.stdout.failure is not None:
        raise StandardOutputError(sys.stdout.failure)


def prepare_standard_streams() -> None:
    """Make this process's standard streams such streams.

    A descriptor that was closed is opened on the null device first. Otherwise the first file that the job opens would
    get it, and whatever writes to "standard output" would write into that file.
    """
    for descriptor in _FIRST_DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)


def _prepared(stream: object) -> StandardStream:
    if isinstance(stream, io.TextIOWrapper):
        buffer, encoding, is_terminal = stream.buffer, stream.encoding, stream.line_buffering
    else:  # Python has none for a descriptor that was closed
        buffer, encoding, is_terminal = io.BufferedWriter(io.FileIO(os.devnull, "w")), "utf-8", False
    return StandardStream(buffer, encoding=encoding, errors="backslashreplace", line_buffering=is_terminal)
