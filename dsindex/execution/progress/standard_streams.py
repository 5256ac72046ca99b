"""Standard output and standard error, which may be closed, full, or unable to encode every character.

Failing output never makes a job fail. Characters that the encoding lacks, and names that are not UTF-8, are shown
escaped. Text that cannot be written is dropped, and `flush_output` raises the reason.

With `--log-json`, standard error is JSON lines for log collectors: every line is an object with `time` and `event`.
Whatever else is written there, such as a note or a warning of a library, becomes an event `message` per line.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

from dsindex.execution.interrupts import signals_shown_as
from dsindex.json_text import encode_json, show_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

JSON_FLAG = "--log-json"


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
    """Write a value as JSON on one line, in ASCII if the stream cannot encode it otherwise."""
    line = encode_json(value, newline=True)
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


class JsonLines(io.TextIOBase):
    """A text stream that writes each line of text as an event `message`.

    Args:
        stream: The stream that gets the JSON lines.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._line = ""

    def write(self, text: str) -> int:
        """Write the lines that are complete; the rest waits for its end."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._write_message(line)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()

    def finish(self) -> None:
        """Write a last line without an end."""
        self._write_message(self._line)
        self._line = ""
        self.flush()

    def _write_message(self, line: str) -> None:
        if line.strip():
            write_json(self.stream, _entry("message", {"message": line}))


def is_asked_for(words: list[str]) -> bool:
    """Tell whether a command line asks for JSON lines, abbreviated or not; it may be wrong otherwise."""
    own = words[: words.index("--")] if "--" in words else words
    return any(len(word) > 4 and JSON_FLAG.startswith(word) for word in own)


def use_json_lines() -> None:
    """Turn standard error into JSON lines, until `json_lines_undone` ends."""
    if not isinstance(sys.stderr, JsonLines):
        sys.stderr = JsonLines(sys.stderr)
        signals_shown_as(lambda sentence: encode_json(_entry("message", {"message": sentence}), newline=True))


@contextlib.contextmanager
def json_lines_undone() -> Iterator[None]:
    """Turn standard error back into what it was when the block ends."""
    before = sys.stderr
    try:
        yield
    finally:
        if isinstance(sys.stderr, JsonLines) and sys.stderr is not before:
            sys.stderr.finish()
            sys.stderr = before
            signals_shown_as(None)


def write_json_line(event: str, fields: dict[str, Any]) -> None:
    """Write one JSON object to standard error."""
    stream = sys.stderr.stream if isinstance(sys.stderr, JsonLines) else sys.stderr
    write_json(stream, _entry(event, fields))
    stream.flush()


def write_summary(lines: Sequence[str], **figures: object) -> None:
    """Write the summary of a job that is done: lines on standard output, or an event `summary` with its figures."""
    if isinstance(sys.stderr, JsonLines):
        write_json_line("summary", {"message": "\n".join(lines), **figures})
    else:
        write_lines(lines)


def utc_now() -> str:
    """Return the current time in UTC, as in `2026-08-01T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _entry(event: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"time": utc_now(), "event": event, **fields}
