"""A job's work folder. A marked folder is dsindex's own: `rm -r` of it gives a job up, and nothing else is lost.

dsindex-work-folder.json   the marker; a folder without it must be empty
owner.json                 the lock of the driver that works here
journal.jsonl              what is done; in a bucket journal/00000001.jsonl and so on
inputs/stdin               standard input, if the job reads it
shard-size.txt             the smallest shard size that was chosen when the work began
shards/                    files of attempts, each under a name that is used once

Only the driver appends to the journal. It records completed work and decides nothing else: a line that was damaged or
cut off is ignored, and its work is done again. Shards belong to their inputs, whatever the plan; ranges and files
belong to a plan, whose id is also in the name of the partial files.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from dsindex.errors import PlanError
from dsindex.formats.manifest import Plan  # noqa: TC001 - lines are decoded by their types
from dsindex.runtime.tasks import ShardResult  # noqa: TC001
from dsindex.store.journal import JOURNAL_FILE, JOURNAL_FOLDER, open_log
from dsindex.store.json_text import decode_json, encode_json
from dsindex.store.local import StoredFile  # noqa: TC001
from dsindex.store.lock import hold_lock
from dsindex.store.protocol import replace_file, store_of
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.store.lock import Lock

MARKER_FILE = "dsindex-work-folder.json"
MARKER = b'{"format":"dsindex work folder 4","note":"made and removed by dsindex"}\n'
LOCK_FILE = "owner.json"
SHARDS_FOLDER = "shards"
INPUTS_FOLDER = "inputs"
SHARD_SIZE_FILE = "shard-size.txt"
_WORK = (SHARDS_FOLDER, SHARD_SIZE_FILE, JOURNAL_FILE, JOURNAL_FOLDER)


def is_marked(path: str) -> bool:
    """Tell whether a folder is a work folder of this version.

    Raises:
        OutputError: If the store refuses.
    """
    found = store_of(path).read(joined(path, MARKER_FILE))
    return found is not None and found[0] == MARKER


def write_marker(path: str) -> None:
    """Write the marker.

    Raises:
        OutputError: If the folder or the store refuses.
    """
    replace_file(joined(path, MARKER_FILE), MARKER)


@contextlib.contextmanager
def hold_work_folder(path: str) -> Iterator[Lock]:
    """Hold a new, empty or marked folder while the block runs; one in which nothing is done is removed.

    Raises:
        PlanError: If the folder is another program's or of another version, or another driver works there.
        OutputError: If it cannot be created.
    """
    # Another file in place of the lock is refused when it is taken. A disk may have damaged the marker: then a line of
    # the journal, which has its digest, is as good, and before the journal there is nothing but standard input.
    own: tuple[str, ...] = (LOCK_FILE, f"{MARKER_FILE}.")
    found = store_of(path).read(joined(path, MARKER_FILE))
    if found is not None and (b"dsindex" in found[0] or MARKER.startswith(found[0])):
        own = (LOCK_FILE, MARKER_FILE, f"{INPUTS_FOLDER}/")
    if (
        not is_marked(path)
        and (foreign := [name for name in _files(path) if not name.startswith(own)])
        and next(open_log(path).read(), None) is None
    ):
        hint = "choose another --work-dir, or remove it if an earlier version of dsindex made it"
        raise PlanError(f"{path}: not a work folder of this version of dsindex; it has {foreign[0]!r}", hint=hint)
    try:
        with hold_lock(joined(path, LOCK_FILE), what=f"the work folder {path}") as lock:
            if not is_marked(path):
                write_marker(path)
            try:
                yield lock
            finally:
                if all(name.startswith((LOCK_FILE, MARKER_FILE)) for name in _files(path)):
                    remove_work_folder(path)
    finally:
        _remove_empty(path)


def read_shard_size(path: str) -> int | None:
    """Return the smallest shard size that was chosen when the work began; None if none was."""
    found = store_of(path).read(joined(path, SHARD_SIZE_FILE))
    size = int(found[0]) if found is not None and found[0].isdigit() else 0
    return size if size.bit_count() == 1 else None


def keep_shard_size(path: str, smallest: int) -> None:
    """Record the smallest shard size, so that inputs which are added later leave other shards as they are."""
    if read_shard_size(path) is None:
        replace_file(joined(path, SHARD_SIZE_FILE), b"%d" % smallest)


def remove_work(path: str) -> None:
    """Remove shards and journal, to begin again; marker, lock and standard input stay."""
    _remove(path, _WORK)


def remove_unused(path: str, used: Iterable[str]) -> None:
    """Remove temporary files, and shards' files but for those that are used, by their names relative to the folder."""
    removable = {name for name in _files(path) if name.startswith(f"{SHARDS_FOLDER}/") or name.endswith(".tmp")}
    _delete(path, removable.difference(used))


def remove_work_folder(path: str) -> None:
    """Remove what jobs wrote in their folder, except the held lock; the marker goes last."""
    _remove(path, (*_WORK, INPUTS_FOLDER, f"{MARKER_FILE}."))
    _delete(path, [MARKER_FILE])
    remove_work(path)  # what a worker wrote that had seen the marker before


def _files(path: str) -> list[str]:
    """Return the paths of all files in a work folder, relative to it."""
    return [each.path[len(path) :].lstrip("/") for each in store_of(path).list(path)]


def _remove(path: str, beginnings: tuple[str, ...]) -> None:
    """Remove files; the journal goes last, since it tells whose folder this is."""
    names = [name for name in _files(path) if name.startswith(beginnings)]
    _delete(path, [name for name in names if not name.startswith("journal")])
    _delete(path, [name for name in names if name.startswith("journal")])
    _remove_empty(path)


def _delete(path: str, names: Iterable[str]) -> None:
    """Delete files of a folder, many at a time: each waits for the file system, not for this process."""
    paths = [joined(path, name) for name in names]
    batches = [paths[begin : begin + _DELETED_AT_ONCE] for begin in range(0, len(paths), _DELETED_AT_ONCE)]
    with ThreadPoolExecutor(max(1, min(_DELETING_THREADS, len(batches))), thread_name_prefix="dsindex-delete") as pool:
        list(pool.map(store_of(path).delete, batches))


_DELETED_AT_ONCE = 256
_DELETING_THREADS = 16


def _remove_empty(path: str) -> None:
    """Remove the empty folders below one of this machine, and itself if it is empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# The journal.


class _Line(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A line, which has the name of its class."""


class Began(_Line, frozen=True):
    """A run of a plan began."""

    plan: Plan
    output_prefix: str
    """Where its outputs are."""


class ShardMade(_Line, frozen=True, tag="shard"):
    """A shard was made: its key and its receipt. A later line of the same key replaces it, if files were damaged."""

    task: str
    result: ShardResult


class RangeMerged(_Line, frozen=True, tag="range"):
    """A block of an output's token file was merged."""

    plan: str
    output: str
    number: int
    size_bytes: int
    digest: str


class FileComplete(_Line, frozen=True, tag="file"):
    """A file of an output, named by its suffix, is complete under its partial name, in a bucket its final one."""

    plan: str
    output: str
    file: StoredFile


class Finished(_Line, frozen=True):
    """Everything is published."""


Line: TypeAlias = Finished | Began | ShardMade | RangeMerged | FileComplete


class Journal:
    """What is done in one work folder: as it was read once when it was opened, and as it is recorded since.

    Args:
        work_dir: The work folder.
    """

    def __init__(self, work_dir: str) -> None:
        self.log = open_log(work_dir)
        self.began: Began | None = None
        """How the last run began; None if none did."""
        self.is_finished = False
        """Whether it published everything."""
        self.shards: dict[str, ShardResult] = {}
        """Key of a shard → its receipt."""
        self._merged: defaultdict[tuple[str, str], dict[int | str, RangeMerged | FileComplete]] = defaultdict(dict)
        for line in self.log.read():
            with contextlib.suppress(ValueError):
                self._take(_decode(line))

    @property
    def has_work(self) -> bool:
        """Whether anything is made."""
        return bool(self.shards) or any(self._merged.values())

    def merged(self, plan: str, output: str) -> dict[int | str, RangeMerged | FileComplete]:
        """Return what is merged of a plan's output: ranges of a token file by number, other files by suffix."""
        return self._merged[plan, output]

    def _take(self, line: Line) -> None:
        match line:
            case Began():
                self.began, self.is_finished = line, False
            case Finished():
                self.is_finished = True
            case ShardMade(task, result):
                self.shards[task] = result
            case RangeMerged(plan, output, number):
                self._merged[plan, output][number] = line
            case FileComplete(plan, output, file):
                self._merged[plan, output][file.name] = line

    def record(self, line: Line) -> None:
        """Append a line, then take it, so that no state exceeds what is on file.

        Raises:
            OutputError: If it cannot be written.
        """
        self.log.append(_encode(line))
        self._take(line)


def _encode(line: Line) -> bytes:
    try:
        return msgspec.json.encode(line, enc_hook=str)
    except UnicodeEncodeError:  # a name that is not UTF-8
        return encode_json(msgspec.to_builtins(line, enc_hook=str))


def _decode(line: bytes) -> Line:
    try:
        decoded: Line = msgspec.json.decode(line, type=Line)
    except msgspec.DecodeError:
        decoded = msgspec.convert(decode_json(line), Line)
    return decoded
