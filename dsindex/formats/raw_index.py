"""Raw indices: the position of each line of a JSONL file, as written by Modalities' `create_raw_index`.

`<stem>.idx` beside the JSONL is a pickled list of (byte offset, byte length), one pair per line, counting a carriage
return but not the newline (docs/formats.md §3). MMIDIDX uses the same suffix; the first bytes tell them apart.
Ranges of the file are indexed independently, and the result does not depend on how the file was cut.
"""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.errors import BadRecordError, FormatError, InputError, OutputError
from dsindex.formats.new_files import NewFiles, is_same_file
from dsindex.formats.pickled_pairs import read_pairs, write_pairs
from dsindex.store.storage import describe_empty, open_file, open_unbuffered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray


def is_json(line: bytes) -> bool:
    """Tell whether json.loads accepts a line, as Modalities asks.

    msgspec is several times as fast and stricter: it refuses NaN, a BOM, UTF-16 and lone surrogates.

    >>> is_json(b'{"a": NaN}'), is_json(b""), is_json(b"{'a': 1}")
    (True, False, False)
    """
    import msgspec  # not there in an environment that only reads

    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return False
    return True


if TYPE_CHECKING:
    RunTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
    """Run a function on every task, anywhere, and return the results in the order of the tasks."""

RANGE_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20

MAX_REPORTED = 10
"""Dropped lines that are reported by position; all of them are counted."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """The lines of a file that begin in the byte range [begin, end)."""

    path: str
    begin: int
    end: int
    size_bytes: int
    """Size of the whole file when the ranges were planned."""
    drop_faulty_entries: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRange:
    """The index of one range."""

    pairs: NDArray[np.int64]
    """(offset, length) in bytes of each line that is kept, shape [lines kept, 2]."""
    num_lines: int
    """Lines that begin in the range, or up to the first faulty line if faulty lines are an error."""
    num_faulty: int
    faulty: tuple[tuple[int, int], ...]
    """(0-based line in the range, byte offset) of the first faulty lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawIndexAccount:
    """Line counts of an indexed file, which has num_entries + num_dropped lines."""

    index_path: str
    num_entries: int
    num_dropped: int
    dropped: tuple[tuple[int, int], ...]
    """(1-based line, byte offset) of the first MAX_REPORTED dropped lines."""


def raw_index_path(path: str) -> str:
    """Return the path at which Modalities looks for a file's raw index.

    >>> raw_index_path("data/news.jsonl")
    'data/news.idx'
    """
    return os.path.splitext(path)[0] + ".idx"


def create_raw_index(
    path: str,
    index_path: str | None = None,
    *,
    drop_faulty_entries: bool = False,
    range_bytes: int = RANGE_BYTES,
    run_tasks: RunTasks | None = None,
) -> RawIndexAccount:
    """Write the raw index of a JSONL file, byte-identical to Modalities' own; the file appears complete or not at all.

    A line is faulty if json.loads refuses it; this includes blank lines. Each running task holds one range's index in
    memory.

    Args:
        path: The JSONL file.
        index_path: Where to write; if None, beside the file with the suffix `.idx`. An existing file is never
            replaced: an identical index is kept, and anything else is an error.
        drop_faulty_entries: Leave faulty lines out; otherwise the first one is an error.
        range_bytes: Bytes of the file per task.
        run_tasks: Runs the tasks; threads of this process if None.

    Raises:
        InputError: If the file cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
        OutputError: If `index_path` is another file, or cannot be written.
    """
    target = raw_index_path(path) if index_path is None else index_path
    _check_target(path, target)
    tasks = plan_ranges(path, range_bytes=range_bytes, drop_faulty_entries=drop_faulty_entries)
    places = _Places(path, drop_faulty_entries=drop_faulty_entries)
    with NewFiles([target], or_same=True) as [new]:
        write_pairs(new.file, places.find((run_tasks or run_in_threads)(index_range, tasks)))
    return places.account(target)


def find_lines(path: str) -> NDArray[np.int64]:
    """Return what `create_raw_index` would write: (offset, length) in bytes of each line, shape [lines, 2].

    Raises:
        InputError: If the file is empty, cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
    """
    places = _Places(path, drop_faulty_entries=False)
    tasks = plan_ranges(path, range_bytes=RANGE_BYTES, drop_faulty_entries=False)
    return places.find(run_in_threads(index_range, tasks))


class _Places:
    """Counts lines over ranges that arrive in order, and locates the faulty ones."""

    def __init__(self, path: str, *, drop_faulty_entries: bool) -> None:
        self._path = path
        self._drop = drop_faulty_entries
        self._num_lines = self._num_entries = self._num_dropped = 0
        self._dropped: list[tuple[int, int]] = []

    def find(self, results: Iterable[IndexedRange]) -> NDArray[np.int64]:
        """Return the pairs of all ranges, which come in order.

        Raises:
            BadRecordError: At the first faulty line, unless faulty lines are dropped.
        """
        parts = [np.empty((0, 2), np.int64)]
        for result in results:
            self._add(result)
            parts.append(result.pairs)
        return np.concatenate(parts)

    def _add(self, result: IndexedRange) -> None:
        """Add the next range.

        Raises:
            BadRecordError: At the first faulty line, unless faulty lines are dropped.
        """
        places = [(self._num_lines + line + 1, offset) for line, offset in result.faulty]
        if places and not self._drop:
            line, offset = places[0]
            what = "a blank line" if _is_blank(self._path, offset) else "something else"
            reason = f"expected JSON, got {what}; correct it, or leave such lines out with --drop-faulty-entries"
            raise BadRecordError(self._path, offset, reason, line)
        self._dropped += places[: MAX_REPORTED - len(self._dropped)]
        self._num_lines += result.num_lines
        self._num_entries += len(result.pairs)
        self._num_dropped += result.num_faulty

    def account(self, target: str) -> RawIndexAccount:
        """Return the counts over all lines."""
        return RawIndexAccount(
            index_path=target,
            num_entries=self._num_entries,
            num_dropped=self._num_dropped,
            dropped=tuple(self._dropped),
        )


def plan_ranges(path: str, *, range_bytes: int, drop_faulty_entries: bool) -> list[IndexRange]:
    """Cut a file into ranges.

    Raises:
        InputError: If the file cannot be read, or is empty and faulty lines are an error.
    """
    try:
        with open_unbuffered(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    if size_bytes == 0 and not drop_faulty_entries:
        # Modalities counts an empty file as one faulty line.
        msg = f"{path}: expected at least one line, got {describe_empty(path)}; index it with --drop-faulty-entries"
        raise InputError(msg)
    return [
        IndexRange(
            path=path,
            begin=begin,
            end=min(begin + range_bytes, size_bytes),
            size_bytes=size_bytes,
            drop_faulty_entries=drop_faulty_entries,
        )
        for begin in range(0, size_bytes, range_bytes)
    ]


def index_range(task: IndexRange) -> IndexedRange:
    """Find the lines of one range and check each.

    Raises:
        InputError: If the file changed since the ranges were planned.
    """
    parts = [np.empty((0, 2), dtype=np.int64)]
    num_lines = num_faulty = 0
    reported: list[tuple[int, int]] = []
    from dsindex.text.forms import TextPart
    from dsindex.text.streams import LineBlock, read_lines  # only who reads lines imports what decompresses

    part = TextPart(path=task.path, begin=task.begin, end=task.end, expected_size=task.size_bytes)
    for block in read_lines(part, block_bytes=BLOCK_BYTES):
        if not isinstance(block, LineBlock):
            continue  # oversized lines are only yielded where a limit is set
        view = memoryview(block.data)
        pairs = np.stack((block.offsets(), block.line_sizes()), axis=1)
        # `pairs` includes a BOM, which json.loads must judge.
        bounds = zip((pairs[:, 0] - block.offset).tolist(), block.ends.tolist(), strict=True)
        faulty = [number for number, (begin, end) in enumerate(bounds) if not is_json(bytes(view[begin:end]))]
        named = faulty[: MAX_REPORTED - len(reported)]
        reported.extend((num_lines + number, int(pairs[number, 0])) for number in named)
        num_lines += len(pairs)
        num_faulty += len(faulty)
        parts.append(np.delete(pairs, faulty, axis=0) if len(faulty) else pairs)
        if len(faulty) and not task.drop_faulty_entries:
            break
    return IndexedRange(pairs=np.concatenate(parts), num_lines=num_lines, num_faulty=num_faulty, faulty=tuple(reported))


def read_raw_index(index_path: str, *, size_bytes: int) -> NDArray[np.int64]:
    """Read a raw index.

    Args:
        index_path: The index.
        size_bytes: Size of the JSONL file that it belongs to.

    Returns:
        (offset, length) in bytes of each line, shape [lines, 2].

    Raises:
        FormatError: If it is not a raw index, or points outside the file.
    """
    pairs = read_pairs(index_path)
    # A difference, since the sum of two int64 could wrap.
    outside = np.flatnonzero((pairs[:, 0] > size_bytes) | (pairs[:, 1] > size_bytes - pairs[:, 0]))
    if len(outside):
        offset, length = pairs[outside[0]].tolist()
        raise FormatError(
            f"{index_path}: expected lines within the file's {size_bytes} bytes, got entry {outside[0]} at byte "
            f"{offset} with {length} bytes; the file changed since it was indexed, index it again"
        )
    return pairs


def run_in_threads(
    function: Callable[[_Task], _Result], tasks: Iterable[_Task], *, workers: int | None = None
) -> Iterator[_Result]:
    """Run a function on every task in threads and yield the results in order; only a few tasks run ahead."""
    threads = workers or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads, thread_name_prefix="dsindex") as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(function, task))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _is_blank(path: str, offset: int) -> bool:
    with open_file(path) as file:
        file.seek(offset)
        return file.read(2).lstrip(b"\r")[:1] in {b"", b"\n"}


def _check_target(path: str, target: str) -> None:
    """Refuse a target that cannot be this index before any work is done: `.idx` is also MMIDIDX's suffix."""
    if is_same_file(path, target):
        raise OutputError(f"{target}: expected an index path other than the file itself; choose another --output")
    try:
        with open_file(target) as file:
            head = file.read(1)
    except FileNotFoundError:
        return
    except OSError as error:
        msg = f"{target}: expected no file or the same index, got an unreadable file ({error.strerror})"
        raise OutputError(f"{msg}; choose another --output") from error
    if head != b"\x80":
        msg = f"{target}: expected no file or the same index, got a file that is no raw index; choose another --output"
        raise OutputError(msg)
