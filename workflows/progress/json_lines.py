"""Standard error as JSON lines for log collectors (`--log-json`): every line is an object with `time` and `event`.

Whatever else is written there, such as a note or a warning of a library, becomes an event `message` per line.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from typing import TYPE_CHECKING, Any

from dsindex.json_text import encode_json
from workflows.execution.interrupts import signals_shown_as
from workflows.progress.standard_streams import show_lines, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

FLAG = "--log-json"


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
    return any(len(word) > 4 and FLAG.startswith(word) for word in own)


def use_json_lines() -> None:
    """Turn standard error into JSON lines, until `json_lines_undone` ends."""
    if not isinstance(sys.stderr, JsonLines):
        sys.stderr = JsonLines(sys.stderr)
        signals_shown_as(lambda sentence: encode_json(_entry("message", {"message": sentence}), newline=True))


def are_json_lines() -> bool:
    """Tell whether standard error takes JSON lines."""
    return isinstance(sys.stderr, JsonLines)


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


def write_summary(text: str, **figures: object) -> None:
    """Write the summary of a job that is done: text on standard output, or an event `summary` with its figures."""
    if are_json_lines():
        write_json_line("summary", {"message": text.rstrip("\n"), **figures})
    else:
        sys.stdout.write(show_lines(text))


def utc_now() -> str:
    """Return the current time in UTC, as in `2026-08-01T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _entry(event: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"time": utc_now(), "event": event, **fields}
