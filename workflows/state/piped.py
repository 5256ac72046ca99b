"""Standard input as a stream of bytes that someone pipes to this process."""

from __future__ import annotations

import contextlib
import sys
from typing import IO, TYPE_CHECKING

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def open_piped() -> Iterator[IO[bytes]]:
    """Open standard input for reading bytes; it is not closed at the end.

    Raises:
        InputError: If it is closed or a terminal, where a person would have to type the data.
    """
    buffer = getattr(sys.stdin, "buffer", None)  # None if it is closed, or a notebook's
    if buffer is None or buffer.closed:
        msg = "-: expected data on standard input, but it is closed; pipe the data to this command"
        raise InputError(msg)
    if buffer.isatty():
        msg = "-: expected data on standard input, got a terminal; pipe the data, as in `zcat FILE | dsindex …`"
        raise InputError(msg)
    yield buffer
