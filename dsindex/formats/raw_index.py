"""Raw indices: where each line of a JSONL file lies, as Modalities' `create_raw_index` writes it.

`<stem>.idx` beside the JSONL is a pickled list of (byte offset, byte length), one pair per line, the newline not
counted, a carriage return counted (docs/formats.md §3). The suffix is also MMIDIDX's: the first bytes tell them apart.
Ranges of the file are indexed independently; the result does not depend on how the file was cut.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.errors import BadRecordError, FormatError, InputError, OutputError
from dsindex.formats.json_lines import find_faulty_lines
from dsindex.formats.new_files import NewFiles, is_same_file
from dsindex.formats.safe_pickle import PairListWriter, read_pairs
from dsindex.kernels.loader import load_loops
from dsindex.regular_files import open_file, open_unbuffered
from dsindex.text.lines import LineBlock, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    RunTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
    """Runs a function on every task, anywhere, and gives the results in the order of the tasks."""

RANGE_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20

COMPILED_FROM_BYTES = 64 << 20
"""Smaller files are checked by json.loads before the compiled scanner would have been loaded."""

MAX_REPORTED = 10
"""Dropped lines that are named; all are counted."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """One byte range of a file: the lines that begin in [begin, end)."""

    path: str
    begin: int
    end: int
    size_bytes: int
    """Of the whole file when the ranges were planned."""
    drop_faulty_entries: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRange:
    """What one range gave."""

    pairs: NDArray[np.int64]
    """(offset, length) in bytes of each line that is kept, shape [lines kept, 2]."""
    num_lines: int
    """Lines that begin in the range; up to the first faulty one where that ended the work."""
    num_faulty: int
    faulty: tuple[tuple[int, int], ...]
    """(line in the range, byte offset) of the first faulty lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawIndexAccount:
    """What became of a file's lines: num_entries + num_dropped of them."""

    index_path: str
    num_entries: int
    num_dropped: int
    dropped: tuple[tuple[int, int], ...]
    """(1-based line, byte offset) of the first MAX_REPORTED dropped lines."""


def raw_index_path(path: str) -> str:
    """Return the place where Modalities looks for a file's raw index.

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
    """Write the raw index of a JSONL file, byte-identical to Modalities' own; it appears whole or not at all.

    A line is faulty if json.loads refuses it, a blank line among them. Memory is a range's index per running task.

    Args:
        path: The JSONL file.
        index_path: Where to write; beside the file, with the suffix `.idx`, if None. What is there is never replaced:
            an index that is the same stays, and anything else is an error.
        drop_faulty_entries: Leave faulty lines out; otherwise the first one is an error.
        range_bytes: Bytes of the file that are one task.
        run_tasks: Runs the tasks; threads of this process if None.

    Raises:
        InputError: If the file cannot be read or changes meanwhile.
        BadRecordError: At the first faulty line.
        OutputError: If `index_path` is another file, or cannot be written.
    """
    target = raw_index_path(path) if index_path is None else index_path
    _check_target(path, target)
    tasks = plan_ranges(path, range_bytes=range_bytes, drop_faulty_entries=drop_faulty_entries)
    places = _Places(path, drop_faulty_entries=drop_faulty_entries)
    with NewFiles([target], or_same=True) as [new]:
        writer = PairListWriter(new.file.write)
        for result in (run_tasks or run_in_threads)(index_range, tasks):
            places.add(result)
            writer.add(result.pairs)
        writer.close()
    return places.account(target)


class _Places:
    """Counts the lines of ranges that come in order, and names the faulty ones."""

    def __init__(self, path: str, *, drop_faulty_entries: bool) -> None:
        self._path = path
        self._drop = drop_faulty_entries
        self._num_lines = self._num_entries = self._num_dropped = 0
        self._dropped: list[tuple[int, int]] = []

    def add(self, result: IndexedRange) -> None:
        """Take the next range.

        Raises:
            BadRecordError: At a faulty line that is not to be dropped.
        """
        places = [(self._num_lines + line + 1, offset) for line, offset in result.faulty]
        if places and not self._drop:
            line, offset = places[0]
            what = "a blank line" if _is_blank(self._path, offset) else "something else"
            reason = f"expected JSON, got {what}; mend it, or leave such lines out with --drop-faulty-entries"
            raise BadRecordError(self._path, offset, reason, line)
        self._dropped += places[: MAX_REPORTED - len(self._dropped)]
        self._num_lines += result.num_lines
        self._num_entries += len(result.pairs)
        self._num_dropped += result.num_faulty

    def account(self, target: str) -> RawIndexAccount:
        """Return what became of all lines."""
        return RawIndexAccount(
            index_path=target,
            num_entries=self._num_entries,
            num_dropped=self._num_dropped,
            dropped=tuple(self._dropped),
        )


def plan_ranges(path: str, *, range_bytes: int, drop_faulty_entries: bool) -> list[IndexRange]:
    """Cut a file into ranges.

    Raises:
        InputError: If the file is not there, or empty while every line must count.
    """
    try:
        with open_unbuffered(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        msg = f"{path}: expected a file that can be read, got {error.strerror!r}; check the path and its permissions"
        raise InputError(msg) from error
    if size_bytes == 0 and not drop_faulty_entries:
        # Modalities sees one faulty line here.
        msg = f"{path}: expected at least one line, got an empty file; index it with --drop-faulty-entries"
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
    is_large = task.size_bytes >= COMPILED_FROM_BYTES
    if is_large:
        load_loops()
    parts = [np.empty((0, 2), dtype=np.int64)]
    num_lines = num_faulty = 0
    reported: list[tuple[int, int]] = []
    blocks = read_lines(task.path, task.begin, task.end, block_bytes=BLOCK_BYTES, expected_size=task.size_bytes)
    for block in blocks:
        if not isinstance(block, LineBlock):
            continue  # only given where a limit is set
        pairs = np.stack((block.offsets(), block.line_sizes()), axis=1)
        # From the line's first byte in the file on: json.loads knows what to do with a BOM.
        faulty = find_faulty_lines(block.data, pairs[:, 0] - block.offset, block.ends, compiled=is_large)
        named = faulty[: MAX_REPORTED - len(reported)].tolist()
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
        FormatError: If it is not a raw index, or points outside of the file.
    """
    pairs = np.concatenate([np.empty((0, 2), dtype=np.int64), *read_pairs(index_path)])
    # Compared in this order since the sum of two int64 could wrap.
    outside = np.flatnonzero((pairs[:, 0] > size_bytes) | (pairs[:, 1] > size_bytes - pairs[:, 0]))
    if len(outside):
        offset, length = pairs[outside[0]].tolist()
        msg = (
            f"{index_path}: expected lines inside of the file's {size_bytes} bytes, got entry {outside[0]} at byte "
            f"{offset} with {length} bytes; the file changed since it was indexed, index it again"
        )
        raise FormatError(msg)
    return pairs


def run_in_threads(
    function: Callable[[_Task], _Result], tasks: Iterable[_Task], *, workers: int | None = None
) -> Iterator[_Result]:
    """Run a function on every task in threads and give the results in order; a few results wait at most."""
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
    """Refuse what cannot be this index before any work is done: `.idx` is also MMIDIDX's suffix."""
    if is_same_file(path, target):
        msg = f"{target}: expected an index path other than the file itself; give another --output"
        raise OutputError(msg)
    try:
        with open_file(target) as file:
            head = file.read(1)
    except FileNotFoundError:
        return
    except OSError as error:
        msg = f"{target}: expected no file or the same index, got what cannot be read ({error.strerror})"
        raise OutputError(f"{msg}; give another --output") from error
    if head != b"\x80":
        msg = f"{target}: exists and is no raw index; it stays as it is, give another --output"
        raise OutputError(msg)
