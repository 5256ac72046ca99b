"""Where the lines of a JSONL file are: from a raw index that is proven to be of this file, or found and remembered.

What is found is kept in the user's cache folder, `$XDG_CACHE_HOME` or `~/.cache`, as `dsindex/lines/PATH-STATE.idx`: a
raw index, named after hashes of the file's path and of its state. So the index of another state is never read, nothing
is left beside the file, and processes that open it at once write the same bytes under the same name. Without a folder
that only this user can write to, nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.formats.new_files import NewFiles
from dsindex.formats.pickled_pairs import write_pairs
from dsindex.formats.raw_index import create_raw_index, find_lines, is_json, raw_index_path, read_raw_index
from dsindex.store.storage import open_unbuffered, remove_if_present
from dsindex.text.forms import TextPart
from dsindex.text.streams import LineBlock, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

WHOLE_BYTES = 64 << 20
"""Size up to which the state of a file covers every byte; of a larger one, 64 samples of 1 MiB."""
SETTLED_SECONDS = 2.0
"""How long a larger file must have been unchanged for its index to be kept: times are as coarse as that."""
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 20
_BLOCK_BYTES = 4 << 20
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What tells one state of a file from another."""

    size_bytes: int
    times: tuple[int, int]
    """Of the last change of the content, and of the file's entry; in ns."""
    fingerprint: str
    """Of the content: of all bytes up to WHOLE_BYTES, otherwise of samples that include the first and the last."""

    @classmethod
    def of(cls, path: str) -> FileState:
        """Return the state of a file.

        Raises:
            InputError: If it cannot be read.
        """
        try:
            with open_unbuffered(path) as file:
                found = os.fstat(file.fileno())
                digest = xxhash.xxh3_128()
                for offset in _sample_offsets(found.st_size):
                    digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL byte
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{path}: cannot be read ({reason}); check the path") from error
        return cls(
            size_bytes=found.st_size,
            times=(found.st_mtime_ns, found.st_ctime_ns),
            fingerprint=digest.hexdigest(),
        )

    def has_content_of(self, other: FileState) -> bool:
        """Tell whether size and content are the same, whatever the times."""
        return (self.size_bytes, self.fingerprint) == (other.size_bytes, other.fingerprint)

    def is_settled(self) -> bool:
        """Tell whether a later change would change the state for certain."""
        return self.size_bytes <= WHOLE_BYTES or time.time() - max(self.times) / 1e9 > SETTLED_SECONDS


def open_lines(path: str, index_path: str | None = None) -> tuple[NDArray[np.int64], FileState]:
    """Return (offset, length) in bytes of each line of a JSONL file, shape [lines, 2], and the state that has them.

    Args:
        path: The JSONL file.
        index_path: A raw index to use, which is built if it is missing. If None, the one that Modalities looks for
            beside the file is used if it is of this file as it is now; otherwise the lines are found.

    Raises:
        InputError: If the file cannot be read, or changes all the time.
        BadRecordError: If a line is faulty, and no index leaves it out.
        FormatError: If the index at `index_path` is damaged, or not of this file as it is now.
    """
    for _ in range(_TRIES):
        before = FileState.of(path)
        pairs = _open(path, index_path, before)
        if FileState.of(path) == before:
            return pairs, before
    raise InputError(f"{path}: expected a file that nobody writes to, but it changes while it is read; open it later")


def check_index(index_path: str, pairs: NDArray[np.int64], path: str) -> None:
    """Check that a raw index is of a file as it is now; it may leave out faulty lines.

    Raises:
        FormatError: If it is not.
        InputError: If the file cannot be read.
    """
    line = _first_difference(path, pairs)
    if line is not None:
        raise FormatError(
            f"{index_path}: expected the index of {path} as it is now, but it differs from line {line} on; "
            "remove it, or index the file again"
        )


def check_samples(index_path: str, pairs: NDArray[np.int64], path: str) -> None:
    """Check the lines that begin in samples of a large file, where a whole check would take seconds.

    A change that moves lines is found, since the end of the file is among the samples.

    Raises:
        FormatError: If the index is not of the file as it is now.
        InputError: If the file cannot be read.
    """
    size_bytes = os.path.getsize(path)
    for begin in _sample_offsets(size_bytes):
        end = min(begin + _SAMPLE_BYTES, size_bytes)
        done, after = np.searchsorted(pairs[:, 0], (begin, end)).tolist()
        wrong = None
        for block in _blocks(path, begin, end):
            wrong, done = _compare(block, pairs, done)
            if wrong is not None:
                break
        if wrong is not None or done != after:
            raise FormatError(
                f"{index_path}: expected the index of {path} as it is now, but it differs between the bytes {begin} "
                f"and {end}; remove it, or index the file again"
            )


def _open(path: str, index_path: str | None, state: FileState) -> NDArray[np.int64]:
    if index_path is not None:
        if not os.path.exists(index_path):
            create_raw_index(path, index_path)
        pairs = read_raw_index(index_path, size_bytes=state.size_bytes)
        check_index(index_path, pairs, path)
        return pairs
    beside = raw_index_path(path)
    if beside != path and os.path.isfile(beside):
        with contextlib.suppress(DsindexError):
            pairs = read_raw_index(beside, size_bytes=state.size_bytes)
            if _first_difference(path, pairs) is None:
                return pairs
    return _find(path, state)


def _find(path: str, state: FileState) -> NDArray[np.int64]:
    kept_at = _cache_path(path, state)
    if kept_at is None:
        return find_lines(path)
    if os.path.isfile(kept_at):
        try:
            return read_raw_index(kept_at, size_bytes=state.size_bytes)
        except DsindexError:  # damaged, by a fault of the disk
            with contextlib.suppress(DsindexError, OSError):
                remove_if_present(kept_at)
    pairs = find_lines(path)
    if state.is_settled() and FileState.of(path) == state:
        with contextlib.suppress(DsindexError, OSError):  # a full disk: found again next time
            _keep(kept_at, pairs)
    return pairs


def _keep(kept_at: str, pairs: NDArray[np.int64]) -> None:
    """Store an index in place of those of former states of the same file."""
    with NewFiles([kept_at], or_same=True) as [new]:
        write_pairs(new.file, pairs)
    folder, name = os.path.split(kept_at)
    for other in os.listdir(folder):
        if other.endswith(".idx") and other != name and other.partition("-")[0] == name.partition("-")[0]:
            remove_if_present(os.path.join(folder, other))


def _cache_path(path: str, state: FileState) -> str | None:
    """Return where the index of a file's state is kept; None if there is no folder for this user alone."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = os.path.join(base, "dsindex", "lines")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    is_private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not is_private or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return None
    place = xxhash.xxh3_64_hexdigest(os.fsencode(os.path.realpath(path)))
    return os.path.join(folder, f"{place}-{xxhash.xxh3_128_hexdigest(repr(state).encode())}.idx")


def _first_difference(path: str, pairs: NDArray[np.int64]) -> int | None:
    """Return the first line, counted from 1, that an index lacks or has wrongly; None if there is none."""
    done = first = 0
    for block in _blocks(path, 0, os.path.getsize(path)):
        wrong, done = _compare(block, pairs, done)
        if wrong is not None:
            return first + 1 + wrong
        first += len(block.starts)
    return None if done == len(pairs) else first + 1


def _compare(block: LineBlock, pairs: NDArray[np.int64], done: int) -> tuple[int | None, int]:
    """Compare the lines of a block with an index from its entry `done` on.

    Returns:
        The first line, counted from 0, that the index lacks or has wrongly, or None; and the first entry after the
        block.
    """
    lines = np.stack((block.offsets(), block.line_sizes()), axis=1)
    end = int(np.searchsorted(pairs[:, 0], lines[-1, 0], side="right")) if len(lines) else done
    own = pairs[done:end]
    places = np.searchsorted(lines[:, 0], own[:, 0])
    nearest = lines[np.minimum(places, len(lines) - 1)]
    is_line = (nearest == own).all(axis=1) & (np.diff(places, prepend=-1) > 0)
    if not is_line.all():
        return min(int(places[int(np.argmin(is_line))]), len(lines) - 1), end
    missing: list[int] = np.setdiff1d(np.arange(len(lines)), places).tolist()
    return next((number for number in missing if is_json(bytes(block.line(number)))), None), end


def _blocks(path: str, begin: int, end: int) -> Iterator[LineBlock]:
    """Yield the lines that begin in a range of bytes."""
    size_bytes = os.path.getsize(path)
    part = TextPart(path=path, begin=begin, end=end, expected_size=size_bytes, is_file_start=begin == 0)
    for block in read_lines(part, block_bytes=_BLOCK_BYTES):
        if isinstance(block, LineBlock):  # longer lines are only set apart where a limit is set
            yield block


def _sample_offsets(size_bytes: int) -> list[int]:
    if size_bytes <= WHOLE_BYTES:
        return list(range(0, size_bytes, _SAMPLE_BYTES))
    last = max(0, size_bytes - _SAMPLE_BYTES)
    return [last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
