"""The work folder's ledger: lines of receipts, to which only the driver appends.

It governs nothing but what is done. A line is a JSON object; one that a crash cut off is ignored, and its work is done
again. An output's name in it has the plan's id, so what is recorded of it holds however the plan is cut into shards.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from dsindex.engine.plan import Plan  # noqa: TC001 - lines are decoded by their types
from dsindex.engine.tasks import ShardResult  # noqa: TC001
from dsindex.json_text import decode_json, encode_json
from dsindex.store.journal import ledger_path, open_journal
from dsindex.store.storage import StoredFile  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.engine.tasks import ShardTask


class _Line(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A line, which has the name of its class."""


class Began(_Line, frozen=True):
    """A run of a plan began."""

    plan: Plan


class Shard(_Line, frozen=True):
    """A shard was made: its key and its receipt."""

    task: str
    result: ShardResult


class Range(_Line, frozen=True):
    """A block of an output's token file was merged."""

    output: str
    number: int
    digest: str


class File(_Line, frozen=True):
    """A file of an output is complete under its partial name; in a bucket, under its final name."""

    output: str
    file: StoredFile


class Restart(_Line, frozen=True):
    """What was recorded of an output is void: its token file is begun again."""

    output: str


class Publishing(_Line, frozen=True):
    """Files of the plan get their final names from now on."""


class Finished(_Line, frozen=True):
    """Everything is published."""


Line: TypeAlias = Began | Shard | Range | File | Restart | Publishing | Finished


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
        self.shards: dict[str, ShardResult] = {}
        """Key of a shard → its receipt."""
        self.is_publishing = self.is_finished = False
        self._ranges: dict[str, dict[int, str]] = {}
        """Output → number of a range → its digest."""
        self._files: dict[tuple[str, str], StoredFile] = {}
        """Output and suffix → the complete file."""

    @property
    def has_work(self) -> bool:
        """Whether anything is made."""
        return bool(self.shards or self._ranges or self._files)

    def _take(self, line: Line) -> None:
        match line:
            case Began(plan):
                self.plan = plan
                self.is_publishing = self.is_finished = False
            case Shard(task, result):
                self.shards[task] = result
            case Range(output, number, digest):
                self._ranges.setdefault(output, {})[number] = digest
            case File(output, file):
                self._files[output, file.name] = file
            case Restart(output):
                self._ranges.pop(output, None)
                self._files = {key: file for key, file in self._files.items() if key[0] != output}
            case Publishing():
                self.is_publishing = True
            case Finished():
                self.is_finished = True

    def begin(self, plan: Plan) -> None:
        """Open the ledger for what is recorded from now on, by a run of a plan.

        Raises:
            OutputError: If it cannot be written.
        """
        self._journal.begin()
        if self.plan != plan or self.is_finished:
            self._record(Began(plan))

    def shard(self, task: ShardTask) -> ShardResult | None:
        """Return the receipt of a shard."""
        return self.shards.get(task.key)

    def record_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Record an attempt at a shard, which thereby counts; not yet synced."""
        self._record(Shard(task.key, result), sync=False)

    def ranges(self, output: str) -> Mapping[int, str]:
        """Return the digests of an output's merged ranges, by number."""
        return self._ranges.get(output, {})

    def record_range(self, output: str, number: int, digest: str) -> None:
        """Record a merged range, not yet synced."""
        self._record(Range(output, number, digest), sync=False)

    def file(self, output: str, suffix: str) -> StoredFile | None:
        """Return a complete file of an output."""
        return self._files.get((output, suffix))

    def record_file(self, output: str, file: StoredFile) -> None:
        """Record a complete file of an output, whose name is its suffix."""
        self._record(File(output, file))

    def record_restart(self, output: str) -> None:
        """Record that what was recorded of an output is void, before its token file is begun again."""
        self._record(Restart(output))

    def record_publishing(self) -> None:
        """Record that files get their final names from now on."""
        if not self.is_publishing:
            self._record(Publishing())

    def record_finished(self) -> None:
        """Record that everything is published."""
        self._record(Finished())

    def _record(self, line: Line, *, sync: bool = True) -> None:
        """Write a line. State follows only afterwards, so it never exceeds what is on file."""
        self._journal.append(encode_json(msgspec.to_builtins(line, enc_hook=str), newline=True))
        self._take(line)
        if sync or time.monotonic() - self._synced > self._journal.sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Sync, so that everything recorded survives a power cut."""
        self._synced = time.monotonic()
        self._journal.sync()

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()
