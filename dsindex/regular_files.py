"""Open paths from users for reading if they are files, and refuse pipes, devices and sockets.

Opening a pipe waits for a writer, perhaps forever, and a device may be endless. Besides, an input is read in ranges, in
parallel, more than once and by other processes, which only a file supports. So such a path is refused with an OSError
that names its kind, and every reader reports that like a missing file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader, FileIO

STANDARD_INPUT_KIND = "standard input"
_STANDARD_INPUT = re.compile(r"/dev/(stdin|fd/0)|/proc/self/fd/0")
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|thread-self|\d+)/fd/\d+")
"""Paths that lead to different files in different processes."""


def what_is_no_file(path: str) -> str | None:
    """Return the kind of an existing path that is neither a file nor a folder; None for all others.

    >>> what_is_no_file("-"), what_is_no_file("/dev/null")
    ('standard input', 'a device')
    """
    absolute = os.path.abspath(path)
    if _STANDARD_INPUT.fullmatch(absolute) or (path == "-" and not os.path.exists(path)):
        return STANDARD_INPUT_KIND
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a name with a NUL byte
        return None
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "a device"
    return "a descriptor of one process" if _DESCRIPTOR.fullmatch(absolute) else None


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading in binary mode.

    Raises:
        OSError: If it cannot be opened, or is not a file; then `strerror` says what it is.
    """
    return open(path, "rb", opener=_open_regular)


def open_unbuffered(path: str | os.PathLike[str]) -> FileIO:
    """Open a file without a buffer, for a reader that has its own.

    Raises:
        OSError: As `open_file`.
    """
    return open(path, "rb", buffering=0, opener=_open_regular)


def open_descriptor(path: str) -> int:
    """Open a file for reading, as a descriptor for the caller to close.

    Raises:
        OSError: As `open_file`.
    """
    return _open_regular(path, os.O_RDONLY | os.O_CLOEXEC)


def _open_regular(path: str, flags: int) -> int:
    kind = what_is_no_file(path)
    if kind is None:
        descriptor = os.open(path, flags | os.O_NONBLOCK)  # no effect on files; a pipe does not wait
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        kind = "no longer a file"
    raise OSError(errno.EINVAL, f"it is {kind}, and only a file will do", path)
