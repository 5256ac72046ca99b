"""A small file that is replaced again and again while a job runs, such as the one with its progress."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.errors import OutputError
from dsindex.store.requests import fetch_later
from dsindex.store.storage import FULL_DISK_ERRORS, read_own
from dsindex.store.urls import ObjectUrl
from dsindex.store.writing import put_object, read_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


OBJECT_SECONDS = 30.0
"""An object costs a request."""


LastingFile: TypeAlias = "_LastingPath | _LastingObject"
"""A small file that is replaced again and again while a job runs."""


def open_lasting(path: str, *, temporary: str, most_bytes: int, is_own: Callable[[bytes], bool]) -> LastingFile:
    """Return a file that replaces only what is provably its own, or an object.

    Args:
        path: The file.
        temporary: A path beside it that nobody else uses.
        most_bytes: The largest content that can be its own.
        is_own: Tells whether a content is that of an earlier run.
    """
    if isinstance(path, ObjectUrl):
        return _LastingObject(path)
    return _LastingPath(path, temporary=temporary, most_bytes=most_bytes, is_own=is_own)


class _LastingObject:
    """An object in a work folder, written at most every OBJECT_SECONDS.

    It is written by another thread, so that a slow store stops nobody.
    """

    is_foreign = False

    def __init__(self, url: ObjectUrl) -> None:
        self.path: str = url
        self._url = url
        self._written = -OBJECT_SECONDS
        self._sent: Future[Any] | None = None

    def read(self) -> bytes | None:
        found = read_object(self._url)
        return None if found is None else found[0]

    def write(self, content: bytes) -> None:
        """Replace the object, unless that was done just now or is being done."""
        is_busy = self._sent is not None and not self._sent.done()
        if is_busy or time.monotonic() - self._written < OBJECT_SECONDS:
            return
        self._written = time.monotonic()
        self._sent = fetch_later(partial(put_object, self._url, content))

    def finish(self) -> None:
        """Wait until nothing is being written, since the folder may be removed next."""
        if self._sent is not None:
            with contextlib.suppress(OutputError):
                self._sent.result()


class _LastingPath:
    def __init__(self, path: str, *, temporary: str, most_bytes: int, is_own: Callable[[bytes], bool]) -> None:
        self.path = path
        self.temporary = temporary
        self._most_bytes = most_bytes
        self._is_own = is_own
        self._own: tuple[bytes, ...] = ()
        """What was written last, and before, as a signal may end a write at any point."""
        self.is_foreign = False
        """Whether the name belongs to someone else's file, so that nothing is written any more."""

    def read(self) -> bytes | None:
        try:
            return read_own(self.path, most_bytes=self._most_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.EFBIG, errno.EACCES, errno.EPERM}:  # no file, or someone else's
                return b""
            raise

    def finish(self) -> None:
        """Do nothing: what was written is there."""

    def write(self, content: bytes) -> None:
        """Replace the file of an earlier run, and then only what was written here; leave other files alone.

        Raises:
            OSError: If it cannot be written.
        """
        found = None if self.is_foreign else self.read()
        if found is not None:
            is_own = found in self._own if self._own else self._is_own(found)
            self.is_foreign = not is_own
        if self.is_foreign:
            return
        try:
            self._own = (*self._own[-1:], content)
            _write_temporary(self.temporary, content)
            if found is None:
                self._create()
            else:
                os.replace(self.temporary, self.path)
        except OSError as error:
            if found is None or error.errno not in FULL_DISK_ERRORS:
                raise
            _overwrite(self.path, content)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)

    def _create(self) -> None:
        """Give the name to the file unless another one has it; a file system without links cannot tell."""
        try:
            os.link(self.temporary, self.path)
        except FileExistsError:
            self.is_foreign = True
        except OSError:
            os.replace(self.temporary, self.path)


def _write_temporary(path: str, content: bytes) -> None:
    """Write a file, which is not synced: it says nothing that a crash may not take back."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with open(descriptor, "wb") as file:
        file.write(content)


def _overwrite(path: str, content: bytes) -> None:
    """Write a file where it is, in the room that it has on a full disk; not atomically, but better than old news."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    with open(descriptor, "r+b", buffering=0) as file:
        file.write(content)
        file.truncate()
