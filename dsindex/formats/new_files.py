"""Output files of a command, which appear complete under unused names or not at all.

Files that belong together are written under temporary names and renamed one after the other once all are on disk. A
file that someone else creates under one of the names in the meantime is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import uuid
from typing import IO, TYPE_CHECKING

from dsindex.errors import OutputError
from dsindex.store.storage import BUFFER_BYTES, output_error, require_path, sync_folder, temporary_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType


class NewFile:
    """One output file, open for writing."""

    def __init__(self, path: str) -> None:
        self.path = path
        """Its final path."""
        self.temporary = temporary_name(path, uuid.uuid4().hex)
        """Its path until it is complete."""
        self.file: IO[bytes] = open(self.temporary, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed by NewFiles


class NewFiles:
    """Context manager for files that appear together when the block ends without an error.

    Args:
        paths: The final paths, none of which may exist; the files are renamed in this order.
        inputs: Files that the command reads, so that an error can say that a path is one of them.
        or_same: Accept a path that exists with the same bytes; the existing file is kept.

    Raises:
        OutputError: If a path exists, or the files cannot be written.
    """

    def __init__(self, paths: Sequence[str], *, inputs: Iterable[str] = (), or_same: bool = False) -> None:
        self._paths = tuple(paths)
        self._or_same = or_same
        self._inputs = tuple(inputs)
        self._files: list[NewFile] = []
        self._named: list[NewFile] = []

    def __enter__(self) -> list[NewFile]:
        for path in self._paths:
            require_path(path)
        if not self._or_same:
            refuse_existing(self._paths, inputs=self._inputs)
        for path in self._paths:
            try:
                self._files.append(NewFile(path))
            except OSError as error:
                self._remove()
                raise new_file_error(path, error) from error
        return self._files

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, OSError):
                raise new_file_error(self._paths[0], error) from error
            if error is None:
                self._name()
        finally:
            self._remove()

    def _name(self) -> None:
        for new in self._files:
            try:
                new.file.flush()
                os.fsync(new.file.fileno())
            except OSError as error:
                raise new_file_error(new.path, error) from error
        try:
            for new in self._files:
                self._named.append(new)
                try:
                    give_name(new.temporary, new.path)
                except FileExistsError:
                    if not self._or_same or not _hold_the_same(new.temporary, new.path):
                        raise
            for folder in {os.path.dirname(path) for path in self._paths}:
                sync_folder(folder)
        except BaseException as error:
            self._take_back()
            if isinstance(error, FileExistsError) and self._or_same:
                msg = f"{self._named[-1].path}: exists and differs from the new file; remove it or choose another name"
                raise OutputError(msg) from error
            if isinstance(error, OSError):
                raise new_file_error(self._named[-1].path, error) from error
            raise

    def _take_back(self) -> None:
        """Remove the files that were renamed already, unless someone replaced them."""
        for new in self._named:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(new.path, follow_symlinks=False), os.fstat(new.file.fileno())):
                    os.unlink(new.path)

    def _remove(self) -> None:
        for new in self._files:
            with contextlib.suppress(OSError):  # such as a full disk, which was reported already
                new.file.close()
            with contextlib.suppress(OSError):
                os.unlink(new.temporary)


def give_name(temporary: str, path: str) -> None:
    """Rename a finished file to its final path, which must not exist.

    Raises:
        FileExistsError: If it exists.
        OSError: If the file system refuses.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
        os.rename(temporary, path)
    else:
        os.unlink(temporary)


_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES})


def refuse_existing(paths: Iterable[str], *, inputs: Iterable[str] = ()) -> None:
    """Refuse paths that exist, pointing out those that are inputs.

    Raises:
        OutputError: If a path exists, even as a broken link.
    """
    inputs = tuple(inputs)
    for path in paths:
        if os.path.lexists(path):
            for read in inputs:
                if is_same_file(path, read):
                    raise OutputError(f"{path}: expected another file than the input {read}; choose another name")
            raise OutputError(_taken(path))


def is_same_file(one: str, other: str) -> bool:
    """Tell whether two paths lead to the same file, following links."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _hold_the_same(one: str, other: str) -> bool:
    return os.path.isfile(other) and os.path.getsize(one) == os.path.getsize(other) and filecmp.cmp(one, other, False)


def new_file_error(path: str, error: OSError) -> OutputError:
    """Return an error that says why a new file cannot be written, and that nothing was kept."""
    if isinstance(error, FileExistsError):
        return OutputError(_taken(path))
    again = "and run the same command again; nothing was kept"
    return output_error(
        path, error, room=f"make room, or choose another folder, {again}", check=f"check the folder {again}"
    )


def _taken(path: str) -> str:
    return f"{path}: expected a file that does not exist yet; remove it or choose another name"
