"""Files that a command makes: whole, under names that were free, or not there at all.

Several files that belong together are written under temporary names first and get their own names one after the other
when all are on the disk. A name that somebody took meanwhile is left to him.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import uuid
from typing import IO, TYPE_CHECKING

from dsindex.errors import OutputError
from dsindex.storage import BUFFER_BYTES, FULL_DISK_ERRORS, sync_folder, temporary_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType


class NewFile:
    """One of them, open for writing."""

    def __init__(self, path: str) -> None:
        self.path = path
        """Its name when it is done."""
        self.temporary = temporary_name(path, uuid.uuid4().hex)
        """Its name until then."""
        self.file: IO[bytes] = open(self.temporary, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed by NewFiles


class NewFiles:
    """Files that appear together when the block ends without an error.

    Args:
        paths: Their names, none of which may exist, in the order in which they are given.
        inputs: Files that the command reads, so that a name which is one of theirs is called that.
        or_same: A name may be taken by a file with the same bytes, which then stays.

    Raises:
        OutputError: If a name is taken, or the folder or the disk refuses.
    """

    def __init__(self, paths: Sequence[str], *, inputs: Iterable[str] = (), or_same: bool = False) -> None:
        self._paths = tuple(paths)
        self._or_same = or_same
        self._inputs = tuple(inputs)
        self._files: list[NewFile] = []
        self._named: list[NewFile] = []

    def __enter__(self) -> list[NewFile]:
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
                msg = (
                    f"{self._named[-1].path}: exists and differs from what is made now; remove it or give another name"
                )
                raise OutputError(msg) from error
            if isinstance(error, OSError):
                raise new_file_error(self._named[-1].path, error) from error
            raise

    def _take_back(self) -> None:
        """Remove the names that were given, where they are still those of these files."""
        for new in self._named:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(new.path, follow_symlinks=False), os.fstat(new.file.fileno())):
                    os.unlink(new.path)

    def _remove(self) -> None:
        for new in self._files:
            with contextlib.suppress(OSError):  # a full disk, which was reported already when it was written
                new.file.close()
            with contextlib.suppress(OSError):
                os.unlink(new.temporary)


def give_name(temporary: str, path: str) -> None:
    """Give a finished file its own name, which must be free.

    Raises:
        FileExistsError: If it is not.
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
    """Refuse names that are taken, and say so where it is an input that has one.

    Raises:
        OutputError: If a path exists, be it a link that leads nowhere.
    """
    inputs = tuple(inputs)
    for path in paths:
        if os.path.lexists(path):
            for read in inputs:
                if is_same_file(path, read):
                    msg = f"{path}: expected another file than the input {read}; give another name"
                    raise OutputError(msg)
            raise OutputError(_taken(path))


def is_same_file(one: str, other: str) -> bool:
    """Tell whether two names lead to the same file, through whatever links."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _hold_the_same(one: str, other: str) -> bool:
    return os.path.isfile(other) and os.path.getsize(one) == os.path.getsize(other) and filecmp.cmp(one, other, False)


def new_file_error(path: str, error: OSError) -> OutputError:
    """Say in one sentence why a new file cannot be written, and that nothing of it was kept."""
    if isinstance(error, FileExistsError):
        return OutputError(_taken(path))
    transient = False
    if error.errno in FULL_DISK_ERRORS:
        remedy = "make room, or choose another place, and run the same command again; nothing was kept"
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        remedy = "choose a place that you may write to"
    else:
        remedy = "check the folder and run the same command again; nothing was kept"
        transient = True
    refusal = OutputError(f"{path}: cannot be written ({error.strerror}); {remedy}")
    refusal.transient = transient
    return refusal


def _taken(path: str) -> str:
    return f"{path}: expected a file that does not exist yet; remove it or give another name"
