"""A job's work folder. A marked folder belongs to dsindex: removing it (`rm -r`) abandons the job and nothing else.

dsindex-work-folder.json   the marker; a folder without it must be empty
owner.json                 the lock of the driver that works here
journal.jsonl              completed work; in a bucket journal/00000001.jsonl and so on
dsindex-stdin              standard input, if the job reads it
shard-size.txt             the smallest shard size that was chosen when the work began
shards/                    files of attempts, each under a unique name

Only the driver appends to the journal. It records completed work and decides nothing else: a line that was damaged or
cut off is ignored, and its work is done again. Shards belong to their inputs, under any plan; ranges and files belong
to a plan, whose id is also in the names of the partial files.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
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
from dsindex.store.urls import join_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.store.lock import Lock

MARKER_FILE = "dsindex-work-folder.json"
MARKER = b'{"format":"dsindex work folder 4","note":"made and removed by dsindex"}\n'
LOCK_FILE = "owner.json"
SHARDS_FOLDER = "shards"
STDIN_FILE = "dsindex-stdin"
SHARD_SIZE_FILE = "shard-size.txt"
_WORK = (SHARDS_FOLDER, SHARD_SIZE_FILE, JOURNAL_FILE, JOURNAL_FOLDER)


def is_marked(path: str) -> bool:
    """Tell whether a folder is a work folder of this version.

    Raises:
        OutputError: If the store refuses.
    """
    content, _ = store_of(path).read(join_path(path, MARKER_FILE)) or (b"", "")
    return content == MARKER


def write_marker(path: str) -> None:
    """Write the marker.

    Raises:
        OutputError: If the folder or the store refuses.
    """
    replace_file(join_path(path, MARKER_FILE), MARKER)


@contextlib.contextmanager
def hold_work_folder(path: str) -> Iterator[Lock]:
    """Lock a new, empty or marked folder while the block runs; remove it afterwards if it holds no work.

    Raises:
        PlanError: If the folder belongs to another program or version, or another driver works there.
        OutputError: If it cannot be created.
    """
    # A foreign file in place of the lock is refused when the lock is taken. If the marker was damaged or lost, a line
    # of the journal (with its digest) proves the same; before the journal, only standard input can be in the folder.
    # A disk may have left zeros in the marker.
    marker, own_names = store_of(path).read(join_path(path, MARKER_FILE)), [LOCK_FILE, STDIN_FILE, f"{MARKER_FILE}."]
    if marker is not None and (b"dsindex" in marker[0] or b"\0" in marker[0] or MARKER.startswith(marker[0])):
        own_names.append(MARKER_FILE)
    if (
        not is_marked(path)
        and (foreign_names := [name for name in _list_files(path) if not name.startswith(tuple(own_names))])
        and next(open_log(path).read(), None) is None
    ):
        hint = "choose another --work-dir, or remove it if an earlier version of dsindex made it"
        raise PlanError(f"{path}: not a work folder of this version of dsindex; it has {foreign_names[0]!r}", hint=hint)
    try:
        with hold_lock(join_path(path, LOCK_FILE), resource=f"the work folder {path}") as lock:
            if not is_marked(path):
                write_marker(path)
            try:
                yield lock
            finally:
                names = _list_files(path)
                is_lost = not any(name.startswith((MARKER_FILE, "journal")) for name in names)  # removed under way
                if is_lost or all(name.startswith((LOCK_FILE, MARKER_FILE)) for name in names):
                    remove_work_folder(path)
    finally:
        _remove_empty_folders(path)


def read_shard_size(path: str) -> int | None:
    """Return the smallest shard size that was chosen when the work began; None if none is recorded."""
    content, _ = store_of(path).read(join_path(path, SHARD_SIZE_FILE)) or (b"", "")
    size = int(content) if content.isdigit() and len(content) < 20 else 0
    return size if size.bit_count() == 1 else None


def record_shard_size(path: str, smallest: int) -> None:
    """Record the smallest shard size, so that inputs added later do not change the shards of the other inputs."""
    if read_shard_size(path) is None:
        replace_file(join_path(path, SHARD_SIZE_FILE), b"%d" % smallest)


def remove_work(path: str) -> None:
    """Remove shards and journal, to start over; marker, lock and standard input stay."""
    _remove(path, _WORK)


def remove_unused(path: str, used_names: Iterable[str]) -> None:
    """Remove temporary files, and shards' files except the used ones, which are named relative to the work folder."""
    names = {name for name in _list_files(path) if name.startswith(f"{SHARDS_FOLDER}/") or name.endswith(".tmp")}
    store_of(path).delete(join_path(path, name) for name in names.difference(used_names))


def remove_work_folder(path: str) -> None:
    """Remove everything that jobs wrote in their folder, except the held lock; the marker goes last."""
    _remove(path, (*_WORK, STDIN_FILE, f"{MARKER_FILE}."))
    store_of(path).delete([join_path(path, MARKER_FILE)])
    remove_work(path)  # files of a worker that had checked the marker before it was removed


def _list_files(path: str) -> list[str]:
    """Return the paths of all files in a work folder, relative to it."""
    return [status.path[len(path) :].lstrip("/") for status in store_of(path).list(path)]


def _remove(path: str, beginnings: tuple[str, ...]) -> None:
    """Remove files; the journal goes last, since it proves that the folder belongs to dsindex."""
    names = [name for name in _list_files(path) if name.startswith(beginnings)]
    for is_journal in (False, True):
        store_of(path).delete(join_path(path, name) for name in names if name.startswith("journal") == is_journal)
    _remove_empty_folders(path)


def _remove_empty_folders(path: str) -> None:
    """Remove the empty folders below a local folder, and the folder itself if it is empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# The journal.


class _Line(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A line of the journal; its `kind` is the name of its class."""


class Began(_Line, frozen=True):
    """A run of a plan began."""

    plan: Plan
    output_prefix: str
    """Absolute prefix of the outputs."""


class ShardMade(_Line, frozen=True, tag="shard"):
    """A shard was made. A later line with the same key replaces this one, for example after damage."""

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
    """The completed work in one work folder: read once when the journal is opened, then updated with each record.

    Args:
        work_dir: The work folder.
    """

    def __init__(self, work_dir: str) -> None:
        self.log = open_log(work_dir)
        self.began: Began | None = None
        """How the last run began; None before the first run."""
        self.is_finished = False
        """Whether the last run published everything."""
        self.shards: dict[str, ShardResult] = {}
        """Key of a shard → its receipt."""
        self.records: defaultdict[tuple[str, str], dict[int | str, RangeMerged | FileComplete]] = defaultdict(dict)
        """Plan's id and output's name → the merged parts: ranges of the token file by number, other files by suffix."""
        for line in self.log.read():
            with contextlib.suppress(ValueError):
                self._apply(_decode_line(line))

    @property
    def has_work(self) -> bool:
        """Whether any shard, range or file is recorded."""
        return bool(self.shards) or any(self.records.values())

    def _apply(self, line: Line) -> None:
        match line:
            case Began():
                self.began, self.is_finished = line, False
            case Finished():
                self.is_finished = True
            case ShardMade(task, result):
                self.shards[task] = result
            case RangeMerged(plan, output, number):
                self.records[plan, output][number] = line
            case FileComplete(plan, output, file):
                self.records[plan, output][file.name] = line

    def record(self, line: Line) -> None:
        """Append a line, then apply it, so that the state in memory never exceeds the file.

        Raises:
            OutputError: If it cannot be written.
        """
        self.log.append(_encode_line(line))
        self._apply(line)


def _encode_line(line: Line) -> bytes:
    try:
        return msgspec.json.encode(line, enc_hook=str)
    except UnicodeEncodeError:  # a name that is not UTF-8
        return encode_json(msgspec.to_builtins(line, enc_hook=str))


def _decode_line(line: bytes) -> Line:
    try:
        decoded: Line = msgspec.json.decode(line, type=Line)
    except msgspec.DecodeError:
        decoded = msgspec.convert(decode_json(line), Line)
    return decoded
