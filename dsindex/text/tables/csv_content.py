"""The content of a CSV file on its way to pyarrow, which reads it in a thread, and goes on after an error."""

from __future__ import annotations

import codecs
import threading
import time
from typing import Protocol

BOM = b"\xef\xbb\xbf"
_WAIT_SECONDS = 0.2
_LEAVE_SECONDS = 0.01
"""Time for the thread to return from the last call."""


class Source(Protocol):
    """The content of a file, such as a decompressed one."""

    def read(self, num_bytes: int, /) -> bytes:
        """Return up to `num_bytes` bytes, none at the end."""
        ...

    def seek(self, offset: int, /) -> int:
        """Move to a position."""
        ...

    def seekable(self) -> bool:
        """Whether `seek` works."""
        ...


class NotUtf8Error(Exception):
    """The content is not UTF-8."""


class CsvContent:
    """The content as pyarrow reads it: without a BOM, as Latin-1 if it is not UTF-8, and with a row added at the end.

    No block ends with a carriage return.
    """

    def __init__(self, source: Source, head: bytes, *, end: bytes, is_utf8: bool) -> None:
        self.closed = False
        self.is_utf8 = is_utf8
        self.error: NotUtf8Error | None = None
        self._source = source
        self._pending = head.removeprefix(BOM)
        self._end = end
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_first = not head
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.is_stopped = False

    def read(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes` bytes; pyarrow calls this in a thread of its own."""
        with self._lock:
            data = b""
            try:
                if not self.is_stopped:
                    data = self._take(num_bytes)
                if self.is_utf8:
                    self._decoder.decode(data)
            except UnicodeDecodeError as error:
                self.error = NotUtf8Error()
                raise self.error from error
            finally:
                if not data or self.error is not None:
                    self._ended.set()
            return data

    def _take(self, num_bytes: int) -> bytes:
        while len(self._pending) < num_bytes and self._end:
            wanted = num_bytes - len(self._pending)
            more = read_up_to(self._source, wanted)
            is_last = len(more) < wanted
            if self._is_first:
                more, self._is_first = more.removeprefix(BOM), False
            if is_last:
                more, self._end = more + self._end, b""
            self._pending += more if self.is_utf8 else more.decode("latin1").encode("utf-8")
        # pyarrow drops a newline at the start of a block if the block before ends with a carriage return.
        end = num_bytes - 1 if self._pending[num_bytes - 1 : num_bytes] == b"\r" and num_bytes > 1 else num_bytes
        data, self._pending = self._pending[:end], self._pending[end:]
        return data

    def stop(self) -> None:
        """Leave the source alone from now on: pyarrow reads ahead even after an error."""
        with self._lock:
            self.is_stopped = True

    def wait(self) -> None:
        """Wait until pyarrow's thread has seen the end, since it must not run when the process ends.

        It does not look for the end if it has read ahead as far as it may.
        """
        self._ended.wait(_WAIT_SECONDS)
        time.sleep(_LEAVE_SECONDS)

    def close(self) -> None:
        """Do nothing."""


def read_up_to(source: Source, num_bytes: int) -> bytes:
    """Read until there are `num_bytes` bytes or no more: a decompressed source returns fewer at a time."""
    pieces, left = [], num_bytes
    while left:
        piece = source.read(left)
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
