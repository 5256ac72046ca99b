"""An object as a file of Python's, for programs that read one forwards or by its end."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dsindex.objects.reading import ObjectReader

if TYPE_CHECKING:
    from typing import Any

    from dsindex.objects.urls import ObjectUrl

_BUFFER_BYTES = 256 << 10


class _RawObject(io.RawIOBase):
    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        done = self._reader.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += done
        return done

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


def open_object(url: ObjectUrl) -> io.BufferedReader:
    """Open an object for reading in binary mode.

    Raises:
        InputError: If it cannot be read; as do the methods.
    """
    return io.BufferedReader(_RawObject(ObjectReader(url)), _BUFFER_BYTES)
