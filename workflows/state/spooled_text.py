"""What storing standard input on a disk and in an object store have in common."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 1 << 20
NOTHING_PIPED = "-: expected at least one record on standard input, got nothing; check the command before the |"


def read_chunks(stream: IO[bytes]) -> Iterator[memoryview]:
    """Yield a stream up to its end, in chunks that share a buffer.

    Raises:
        InputError: If it cannot be read.
    """
    buffer = memoryview(bytearray(READ_BYTES))
    while True:
        try:
            count = stream.readinto1(buffer)  # type: ignore[attr-defined]  # one read, so that Ctrl-C is heard after it
        except OSError as error:
            msg = f"-: standard input cannot be read ({error.strerror}); check the command before the |"
            raise InputError(msg) from error
        if not count:
            return
        yield buffer[:count]


def time_of_content(digest: str) -> int:
    """Return a time in ns for a content: an even second before 2004, which every file system can store.

    >>> time_of_content("99aa06d3014798d86001c324468d497f")
    430573266000000000
    """
    return (int(digest[:8], 16) & 0x3FFFFFFE) * 10**9
