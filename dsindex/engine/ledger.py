"""The work folder's ledger: lines of receipts, to which only the driver appends.

It governs nothing but what is done. A line is a JSON object; one that a crash cut off is ignored, and its work is done
again. Shards belong to their inputs, whatever the plan; ranges and files to the run that began last.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import TypeAlias

import msgspec

from dsindex.engine.tasks import ShardResult  # noqa: TC001
from dsindex.formats.manifest import Plan  # noqa: TC001 - lines are decoded by their types
from dsindex.json_text import decode_json, encode_json
from dsindex.store.journal import ledger_path, open_journal
from dsindex.store.storage import StoredFile  # noqa: TC001


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
        self.forget_all()
        for line in self._journal.read():
            with contextlib.suppress(ValueError, msgspec.ValidationError):
                self._take(msgspec.convert(decode_json(line), Line))

    def forget_all(self) -> None:
        """Begin again, since the ledger was removed."""
        self.plan: Plan | None = None
        """The last run's plan; None if no run began."""
        self.is_publishing = self.is_finished = False
        self.shards: dict[str, ShardResult] = {}
        """Key of a shard → its receipt."""
        self._forget_outputs()

    def _forget_outputs(self) -> None:
        self.ranges: defaultdict[str, dict[int, str]] = defaultdict(dict)
        """Output → number of a merged range → its digest."""
        self.files: defaultdict[str, dict[str, StoredFile]] = defaultdict(dict)
        """Output → suffix → the complete file, but for tokens of which there are ranges."""

    @property
    def has_work(self) -> bool:
        """Whether anything is made."""
        return bool(self.shards) or any(self.ranges.values()) or any(self.files.values())

    def _take(self, line: Line) -> None:
        match line:
            case Began(plan):
                self.is_publishing &= plan == self.plan and not self.is_finished
                self.plan, self.is_finished = plan, False
                self._forget_outputs()
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

    def begin(self, plan: Plan, *, again: bool) -> None:
        """Open the ledger for what is recorded from now on, by a run of a plan.

        Args:
            plan: The plan.
            again: Whether its outputs are to be begun again.

        Raises:
            OutputError: If it cannot be written.
        """
        self._journal.begin()
        if again or self.plan != plan or self.is_finished:
            self.record(Began(plan))

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
