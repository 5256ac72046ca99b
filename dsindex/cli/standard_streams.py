"""Standard output and standard error that work even if closed, full, or unable to encode every character.

A command never fails because of its output. Characters that the encoding lacks, and names that are not UTF-8, are
escaped. Text that cannot be written is dropped, and `flush_output` raises the reason.
"""

from __future__ import annotations

import io
import os
import sys


class StandardOutputError(Exception):
    """Text could not be written to standard output.

    Args:
        reason: The system's error.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason.strerror))
        self.nobody_reads = isinstance(reason, BrokenPipeError)
        """Whether the reader closed the pipe, as `head` does."""


class StandardStream(io.TextIOWrapper):
    """A text stream whose writes never raise an OSError."""

    failure: OSError | None = None
    """The first error of a write; all later text is dropped."""

    def write(self, text: str) -> int:
        """Write a text, or drop it after a failure."""
        if self.failure is None:
            try:
                super().write(text)
            except OSError as error:
                self.failure = error
        return len(text)

    def flush(self) -> None:
        """Write buffered text, or drop it after a failure."""
        if self.failure is None:
            try:
                super().flush()
            except OSError as error:
                self.failure = error


def flush_output() -> None:
    """Flush standard output.

    Raises:
        StandardOutputError: If any of it could not be written, now or earlier.
    """
    sys.stdout.flush()
    if isinstance(sys.stdout, StandardStream) and sys.stdout.failure is not None:
        raise StandardOutputError(sys.stdout.failure)


def prepare_standard_streams() -> None:
    """Replace this process's standard output and standard error by StandardStreams.

    A closed descriptor is first opened on the null device. Otherwise the first file that the command opens would get
    this descriptor, and everything printed to standard output would be written into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
    sys.stdout, sys.stderr = _make_stream(sys.stdout), _make_stream(sys.stderr)


def _make_stream(stream: object) -> StandardStream:
    if isinstance(stream, io.TextIOWrapper):
        buffer, encoding, is_terminal = stream.buffer, stream.encoding, stream.line_buffering
    else:  # Python has no stream for a closed descriptor
        buffer, encoding, is_terminal = io.BufferedWriter(io.FileIO(os.devnull, "w")), "utf-8", False
    return StandardStream(buffer, encoding=encoding, errors="backslashreplace", line_buffering=is_terminal)
