"""By what a file or an object is recognised, also after a rename."""

from __future__ import annotations

import contextlib
import os

import xxhash

from dsindex.store.urls import ObjectUrl
from dsindex.store.writing import find_object

FileIdentity = tuple[int, int, int, int]
"""Device, inode, size in bytes and modification time in ns, which a rename keeps; of an object, a hash of its tag."""


def identify_file(status: os.stat_result) -> FileIdentity:
    """Return the identity by which a file is recognised after a rename."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def identify_tag(tag: str) -> FileIdentity:
    """Return the identity of an object that an upload of this tag made, or will make."""
    return 0, xxhash.xxh3_64_intdigest(tag.encode()), 0, 0


def is_tagged(identity: FileIdentity) -> bool:
    """Tell whether an identity is that of an object which an upload of a job made."""
    return identity[0] == identity[2] == identity[3] == 0


def identify(path: str) -> FileIdentity | None:
    """Return the identity of the file that a path leads to, of a link that leads nowhere, or of an object.

    That of an object without a tag has a time, as it may be newer than a manifest.

    Returns:
        None if there is nothing.

    Raises:
        OutputError: If a store refuses.
    """
    if not isinstance(path, ObjectUrl):
        with contextlib.suppress(OSError):
            return identify_file(os.stat(path) if os.path.exists(path) else os.lstat(path))
        return None
    found = find_object(path)
    if found is None or found.tag is not None:
        return None if found is None else identify_tag(found.tag or "")
    return 0, identify_tag(found.etag)[1], found.size_bytes, found.written_ns


def is_same_folder(recorded: str, folder: str) -> bool:
    """Whether a folder is the one of a recorded path or address."""
    if isinstance(folder, ObjectUrl):
        return recorded == str(folder)
    with contextlib.suppress(OSError):
        return os.path.samefile(recorded, folder)
    return False
