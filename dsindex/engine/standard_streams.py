"""Standard output and standard error, which may be closed, full, or unable to encode every character.

Failing output never makes a job fail. Characters that the encoding lacks, and names that are not UTF-8, are shown
escaped. Text that cannot be written is dropped, and `flush_output` raises the reason.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING

from dsindex.json_text import encode_json, show_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO


class StandardOutputError(Exception):
    """Raised if text could not be written to standard output.

    Args:
        reason: The system's error.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason.strerror))
        self.nobody_reads = isinstance(reason, BrokenPipeError)
        """Whether the reader closed the pipe, as `head` does when it has seen enough."""


class StandardStream(io.TextIOWrapper):
    """A text stream whose writes never raise an OSError."""

    failure: OSError | None = None
    """The first error of a write; all text from then on is dropped."""

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


def shown_columns() -> int | None:
    """Return the width of the terminal that standard output is; None if it is none, so that lines are as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def is_colored() -> bool:
    """Tell whether standard output is a terminal with colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_STATES = {"intact": "32", "the same": "32", "DAMAGED": "31", "MISSING": "31", "DIFFERENT": "31", "FAILED": "31"}
_STATES |= {"FOUND": "31", "warning": "33", "note": "33"}
_STATE = re.compile(rf"^( *)({'|'.join(_STATES)})(?=:|  |$)|(?<=: )(intact|DAMAGED)$")


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output, each shown by `show_name`; in a terminal wrapped between words, and in colour."""
    columns = shown_columns()
    shown = [show_name(line) for line in lines]
    if columns is not None:
        shown = [part for line in shown for part in _wrap(line, columns)]
    if is_colored():
        shown = [_STATE.sub(_color, line) for line in shown]
    sys.stdout.write("".join(f"{line}\n" for line in shown))


def _wrap(line: str, columns: int) -> list[str]:
    """Break a long line between words; that of a flag so that it can be pasted into a shell."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    if len(line) <= columns or "  " in line.strip() or (line.startswith("--") and "'" in line):  # such as a table
        return [line]
    is_flag = line.startswith("--")
    width = max(columns - 2 * is_flag, 20)
    parts = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:] if is_flag else parts


def _color(match: re.Match[str]) -> str:
    word = match[2] or match[3]
    return f"{match[1] or ''}\x1b[{_STATES[word]}m{word}\x1b[0m"


def write_json(stream: TextIO, value: object) -> None:
    """Write a value as JSON on one line, in ASCII to a terminal, or if the stream cannot encode it otherwise."""
    line = encode_json(value, newline=True, ascii_only=stream.isatty())  # C1 characters may control a terminal
    try:
        line.decode().encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        line = encode_json(value, newline=True, ascii_only=True)
    stream.write(line.decode())


def show_lines(lines: Iterable[str]) -> str:
    """Return lines as text, each shown by `show_name`, so that no name within one begins a line of its own."""
    return "".join(f"{show_name(line)}\n" for line in lines)


def flush_output() -> None:
    """Flush standard output.

    Raises:
        StandardOutputError: If any of it could not be written, now or earlier.
    """
    sys.stdout.flush()
    if isinstance(sys.stdout, StandardStream) and sys.stdout.failure is not None:
        raise StandardOutputError(sys.stdout.failure)


def prepare_standard_streams() -> None:
    """Make this process's standard streams StandardStreams.

    A closed descriptor is first opened on the null device. Otherwise the first file that the job opens would get it,
    and everything printed to standard output would be written into that file.
    """
    for descriptor in (0, 1, 2):
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
    else:  # Python has no stream for a closed descriptor
        buffer, encoding, is_terminal = io.BufferedWriter(io.FileIO(os.devnull, "w")), "utf-8", False
    return StandardStream(buffer, encoding=encoding, errors="backslashreplace", line_buffering=is_terminal)


def utc_now() -> str:
    """Return the current time in UTC, as in `2026-08-01T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
