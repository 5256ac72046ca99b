"""Opening what a user named for reading, where only a file will do: never a pipe, a device or a socket.

Opening a pipe waits for somebody who writes to it, perhaps for ever; a device may have no end. And an input is read in
ranges, side by side, more than once and by other processes, which nothing but a file can give. So such a path is
refused with an OSError that names what it is, and every reader reports that as it reports a missing file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader, FileIO

_STANDARD_INPUT = re.compile(r"/dev/(stdin|fd/0)|/proc/self/fd/0")
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|thread-self|\d+)/fd/\d+")
"""Names that stand for another file in another process."""


def what_is_no_file(path: str) -> str | None:
    """Say what a path names that is there and is neither a file nor a folder; None for all others.

    >>> what_is_no_file("-"), what_is_no_file("/dev/null")
    ('standard input', 'a device')
    """
    absolute = os.path.abspath(path)
    if _STANDARD_INPUT.fullmatch(absolute) or (path == "-" and not os.path.exists(path)):
        return "standard input"
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
    """Open a file for reading, in binary.

    Raises:
        OSError: If it cannot be opened, or is no file; `strerror` says what it is instead.
    """
    return open(path, "rb", opener=_open_regular)


def open_unbuffered(path: str | os.PathLike[str]) -> FileIO:
    """Open a file whose reader has a buffer of its own.

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
        descriptor = os.open(path, flags | os.O_NONBLOCK)  # means nothing to a file, and a pipe does not wait
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        kind = "no file any more"
    raise OSError(errno.EINVAL, f"it is {kind}, and only a file will do", path)
