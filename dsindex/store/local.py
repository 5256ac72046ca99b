"""Files of this machine as a store: complete or absent, synced, and written under another name first."""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import TYPE_CHECKING

from dsindex.store.storage import (
    DigestingWriter,
    atomic_writer,
    make_folder,
    open_file,
    open_unbuffered,
    output_error,
    sync_folder,
)
from dsindex.store.types import InputStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from io import FileIO

    from dsindex.store.storage import Bytes


class LocalFile:
    """A local file that is open for reading."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        status = os.fstat(file.fileno())
        self.size_bytes = status.st_size
        self.version = str(status.st_mtime_ns)

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return bytes from an offset; short only at the end."""
        return os.pread(self.file.fileno(), num_bytes, offset)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read into a buffer from an offset; return the number of bytes, 0 at the end."""
        return os.preadv(self.file.fileno(), [view], offset)

    def expect_forwards(self, begin: int, end: int) -> None:  # noqa: ARG002 - Linux reads ahead in whole files
        """Let the system read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def size_if_changed(self) -> int | None:
        """Return its present size if its size or time changed."""
        status = os.fstat(self.file.fileno())
        now = (status.st_size, str(status.st_mtime_ns))
        return None if now == (self.size_bytes, self.version) else status.st_size


class LocalStore:
    """The file systems of this machine."""

    def head(self, path: str) -> InputStatus:
        """Return size and modification time; OSError if there is no file."""
        status = os.stat(path)
        modified = status.st_mtime_ns
        return InputStatus(path=path, size_bytes=status.st_size, version=str(modified), modified_ns=modified)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[LocalFile]:
        """Open a file; OSError if it cannot be opened, or is no file."""
        with open_unbuffered(path) as file:
            yield LocalFile(file)

    def read(self, path: str, *, most_bytes: int | None = None) -> tuple[bytes, str] | None:
        """Return a small file, whose version is its content; None if there is no file."""
        try:
            with open_file(path) as file:
                content = file.read(-1 if most_bytes is None else most_bytes)
        except OSError:
            return None
        return content, content.hex()

    def put(self, path: str, data: Bytes) -> str:
        """Write a file and replace what has its name."""
        with atomic_writer(path) as file:
            file.write(data)
        return bytes(data).hex()

    def put_if_absent(self, path: str, data: Bytes) -> str | None:
        """Write a small file under a name that nothing has; a reader may see it before its content."""
        make_folder(os.path.dirname(path) or ".")
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        except OSError as error:
            raise output_error(path, error) from error
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(os.path.dirname(path))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise output_error(path, error) from error
        return bytes(data).hex()

    def put_if_match(self, path: str, data: Bytes, version: str) -> str | None:
        """Replace a small file if it has the content of a version.

        The file is taken away first, so of several that replace it only one finds it, and a name that somebody took
        meanwhile is lost.
        """
        taken = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise output_error(path, error) from error
        try:
            found = self.read(taken)
            if found is None or found[1] != version:
                with contextlib.suppress(OSError):
                    os.link(taken, path)
                return None
            return self.put_if_absent(path, data)
        finally:
            os.unlink(taken)

    def list(self, folder: str, *, recursive: bool = True) -> Sequence[InputStatus]:
        """Return the files in a folder, or below it; links are not followed."""
        found = []
        for top, folders, names in os.walk(folder):
            if not recursive:
                folders.clear()
            for name in names:
                path = os.path.join(top, name)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    version, modified = str(status.st_mtime_ns), status.st_mtime_ns
                    found.append(
                        InputStatus(path=path, size_bytes=status.st_size, version=version, modified_ns=modified)
                    )
        return sorted(found, key=lambda each: os.fsencode(each.path))

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Remove files; return those that cannot be removed."""
        left = []
        for path in paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError:
                left.append(path)
        return left

    def writer(self, path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:  # noqa: ARG002 - a file grows
        """Open a file for writing; it appears complete and synced, or not at all."""
        return atomic_writer(path)


LOCAL = LocalStore()
