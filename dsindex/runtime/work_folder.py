"""A job's work folder. A marked folder is dsindex's own: `rm -r` of it gives a job up, and nothing else is lost.

dsindex-work-folder.json   the marker; a folder without it must be empty
owner.json                 the lock of the driver that works here
ledger.jsonl               receipts of finished work; in a bucket ledger/00000001.jsonl and so on
inputs/stdin               standard input, if the job reads it
shards/                    files of attempts, each under a name that is used once

Only the driver appends to the ledger. It governs nothing but what is done. A line is a JSON object; one that a crash
cut off is ignored, and its work is done again. Shards belong to their inputs, whatever the plan; ranges and files to
the run that began last.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from dsindex.errors import PlanError
from dsindex.formats.manifest import Plan  # noqa: TC001 - lines are decoded by their types
from dsindex.runtime.tasks import ShardResult  # noqa: TC001
from dsindex.store.journal import ledger_path, open_journal
from dsindex.store.json_text import decode_json, encode_json
from dsindex.store.local import StoredFile  # noqa: TC001
from dsindex.store.lock import hold_lock
from dsindex.store.protocol import replace_file, store_of
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.store.lock import Lock

MARKER_FILE = "dsindex-work-folder.json"
MARKER = b'{"format":"dsindex work folder 3","note":"made and removed by dsindex"}\n'
LOCK_FILE = "owner.json"
SHARDS_FOLDER = "shards"
INPUTS_FOLDER = "inputs"
_WORK = (SHARDS_FOLDER, "ledger.jsonl", "ledger")


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
    # A lock is refused when it is taken, if it is none; a killed driver may have left half a marker.
    own = (LOCK_FILE, f"{MARKER_FILE}.")
    if not is_marked(path) and (foreign := [name for name in _files(path) if not name.startswith(own)]):
        raise PlanError(
            f"{path}: expected a new, an empty or a dsindex work folder of this version, found {foreign[0]!r} in "
            f"another folder; choose another --work-dir"
        )
    try:
        with hold_lock(joined(path, LOCK_FILE), what=f"the work folder {path}") as lock:
            write_marker(path)
            try:
                yield lock
            finally:
                if all(name.startswith((LOCK_FILE, MARKER_FILE)) for name in _files(path)):
                    remove_work_folder(path)
    finally:
        _remove_empty(path)


def remove_work(path: str) -> None:
    """Remove shards and ledger, to begin again; marker, lock and standard input stay."""
    _remove(path, _WORK)


def remove_work_folder(path: str) -> None:
    """Remove what jobs wrote in their folder, except the held lock; the marker goes last."""
    _remove(path, (*_WORK, INPUTS_FOLDER, f"{MARKER_FILE}."))
    store_of(path).delete([joined(path, MARKER_FILE)])
    remove_work(path)  # what a worker wrote that had seen the marker before


def _files(path: str) -> list[str]:
    """Return the paths of all files in a work folder, relative to it."""
    return [each.path[len(path) :].lstrip("/") for each in store_of(path).list(path)]


def _remove(path: str, beginnings: tuple[str, ...]) -> None:
    store_of(path).delete(joined(path, name) for name in _files(path) if name.startswith(beginnings))
    _remove_empty(path)


def _remove_empty(path: str) -> None:
    """Remove the empty folders below one of this machine, and itself if it is empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# The ledger.


class _Line(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A line, which has the name of its class."""


class Began(_Line, frozen=True):
    """The outputs of a plan are begun; ranges and files that are recorded before are void."""

    plan: Plan


class ShardMade(_Line, frozen=True, tag="shard"):
    """A shard was made: its key and its receipt."""

    task: str
    result: ShardResult


class RangeMerged(_Line, frozen=True, tag="range"):
    """A block of an output's token file was merged."""

    output: str
    number: int
    digest: str


class FileComplete(_Line, frozen=True, tag="file"):
    """A file of an output, named by its suffix, is complete under its partial name, in a bucket its final one."""

    output: str
    file: StoredFile


class Publishing(_Line, frozen=True):
    """Files of the plan get their final names from now on."""


class Finished(_Line, frozen=True):
    """Everything is published."""


Line: TypeAlias = Began | ShardMade | RangeMerged | FileComplete | Publishing | Finished


class Ledger:
    """What is done in one work folder, as it was read once when it was opened, and as it is recorded since.

    Args:
        work_dir: The work folder.
    """

    def __init__(self, work_dir: str) -> None:
        self._journal = open_journal(ledger_path(work_dir))
        self._synced = time.monotonic()
        self.plan: Plan | None = None
        """The last run's plan; None if no run began."""
        self.is_publishing = self.is_finished = False
        self.shards: dict[str, ShardResult] = {}
        """Key of a shard → its receipt."""
        self.ranges: defaultdict[str, dict[int, str]] = defaultdict(dict)
        """Output → number of a merged range → its digest."""
        self.files: defaultdict[str, dict[str, StoredFile]] = defaultdict(dict)
        """Output → suffix → the complete file, but for tokens of which there are ranges."""
        for line in self._journal.read():
            with contextlib.suppress(ValueError, msgspec.ValidationError):
                self._take(msgspec.convert(decode_json(line), Line))

    @property
    def has_work(self) -> bool:
        """Whether anything is made."""
        return bool(self.shards) or any(self.ranges.values()) or any(self.files.values())

    def _take(self, line: Line) -> None:
        match line:
            case Began(plan):
                self.is_publishing &= plan == self.plan and not self.is_finished
                self.plan, self.is_finished = plan, False
                self.ranges.clear()
                self.files.clear()
            case ShardMade(task, result):
                self.shards[task] = result
            case RangeMerged(output, number, digest):
                self.ranges[output][number] = digest
            case FileComplete(output, file):
                self.files[output][file.name] = file
            case Publishing():
                self.is_publishing = True
            case Finished():
                self.is_finished = True

    def begin(self) -> None:
        """Open the ledger for what is recorded from now on.

        Raises:
            OutputError: If it cannot be written.
        """
        self._journal.begin()

    def record(self, line: Line) -> None:
        """Write a line, then take it, so that no state exceeds what is on file; shards and ranges sync in batches."""
        self._journal.append(encode_json(msgspec.to_builtins(line, enc_hook=str), newline=True))
        self._take(line)
        in_batches = isinstance(line, ShardMade | RangeMerged)
        if not in_batches or time.monotonic() - self._synced > self._journal.sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Sync, so that everything recorded survives a power cut."""
        self._synced = time.monotonic()
        self._journal.sync()

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()
