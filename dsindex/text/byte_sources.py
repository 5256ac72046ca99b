"""Where the lines of a part come from: a range of a plain file, or members of a compressed one, read forwards.

A source yields text from shortly before the part to the end of the file, and stops once at the part's own end. The
lines of a part are those that begin after the first byte of its text and up to its end, so that whoever reads a part
needs no byte before it; at the start of the file the first line is its own as well.
"""

from __future__ import annotations

import contextlib
import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dsindex.containers.decoding import Decoder
from dsindex.errors import InputError, RecordError
from dsindex.readable import open_readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.containers.kinds import Container
    from dsindex.readable import Readable
    from dsindex.text.forms import TextPart

OVERRUN_BYTES = 64 << 10
"""Bytes read at a time past the end of a range, where only the rest of one line is needed."""


class ByteSource(Protocol):
    """Text that is read forwards. Positions count from where the source begins."""

    @property
    def own_end(self) -> int | None:
        """Position of the last byte at which one of the part's lines may begin; None as long as it is not known."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether the file has no further text."""
        ...

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the part's own end or at the end of the file; return the number of bytes."""
        ...


class PlainSource:
    """A byte range [begin, end) of a plain file, from the byte before it on."""

    def __init__(self, path: str, file: Readable, begin: int, end: int) -> None:
        self._path = path
        self._file = file
        self._size = file.size_bytes
        if end > self._size:
            msg = f"{path}: expected at least {end} bytes, got {self._size}; the file became shorter, run the job again"
            raise InputError(msg)
        self.begin = max(0, begin - 1)
        """Offset in the file at which the source begins."""
        self._position = self.begin
        self._end = end
        self.own_end = end - 1 - self.begin
        file.expect_forwards(self.begin, end + OVERRUN_BYTES)

    @property
    def at_end(self) -> bool:
        """Whether the file has no further text."""
        return self._position == self._size

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the range's end or at the end of the file; return the number of bytes."""
        stop = self._end if self._position < self._end else self._size
        wanted = min(len(view), stop - self._position)
        done = 0
        while done < wanted:
            got = self._file.read_into(view[done:wanted], self._position + done)
            if not got:
                raise changed(self._path, self._position + wanted, self._position + done)
            done += got
        self._position += done
        return done


class StreamSource:
    """The members of a compressed file that begin in its bytes [begin, end), and what follows them."""

    def __init__(self, path: str, file: Readable, container: Container, begin: int, end: int) -> None:
        file.expect_forwards(begin, end + OVERRUN_BYTES)
        self._decoder = Decoder(path, file, container, begin=begin)
        self._end = end
        self._position = 0
        self.own_end: int | None = None

    @property
    def at_end(self) -> bool:
        """Whether the file has no further text."""
        return self._decoder.at_end

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the end of the members or of the file; return the number of bytes."""
        done = 0
        while done < len(view) and not self._decoder.at_end:
            text = self._decoder.read(len(view) - done)
            view[done : done + len(text)] = text
            done += len(text)
            if self.own_end is None and self._decoder.is_between_members and self._decoder.member_begin >= self._end:
                self.own_end = self._position + done
                break
        self._position += done
        return done


class SourceFile(io.RawIOBase):
    """A source as a file that is read forwards."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview[int], /) -> int:  # type: ignore[override]  # its stub takes any buffer
        """Fill the buffer; return 0 only at the end."""
        view = memoryview(buffer).cast("B")
        size = 0
        while view and not size and not self._source.at_end:
            size = self._source.read_into(view)
        return size


@contextmanager
def open_source(part: TextPart) -> Iterator[tuple[ByteSource, int | None]]:
    """Open a part of a file.

    Yields:
        The source, and the offset in the file of its first byte; None if the file is compressed.

    Raises:
        InputError: As `opened_input`, and if the file is shorter than the part.
    """
    path, container = part.path, part.form.container
    with opened_input(path, part.expected_size) as file:
        if container == "plain":
            yield PlainSource(path, file, part.begin, part.end), max(0, part.begin - 1)
        else:
            yield StreamSource(path, file, container, part.begin, part.end), None


@contextmanager
def opened_input(path: str, expected_size: int | None) -> Iterator[Readable]:
    """Open an input, and check on closing that it has not changed; of an object, every read checks it.

    Raises:
        InputError: If it cannot be read, does not have the expected size, or changed meanwhile.
    """
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open_readable(path))
        except OSError as error:
            msg = (
                f"{path}: expected a file that can be read, got {error.strerror!r}; check the path and its permissions"
            )
            raise InputError(msg) from error
        before = file.size_bytes
        if expected_size not in (None, before):
            msg = (
                f"{path}: expected {expected_size} bytes, got {before}; the file changed since the job was"
                " planned, run it again from the start"
            )
            raise InputError(msg)
        damage: InputError | None = None
        try:
            yield file
        except RecordError:
            raise
        except InputError as error:  # it may be what a change looks like
            damage = error
        after = file.size_if_changed()
        if after is not None:
            raise changed(path, before, after) from damage
        if damage is not None:
            raise damage


def changed(path: str, expected: int, got: int) -> InputError:
    """Return the error for a file that changed while it was read."""
    return InputError(
        f"{path}: expected {expected} bytes, got {got} or other content; the file changed while it was read,"
        " run the job again from the start once nothing writes to it"
    )
