"""The work folder's ledger: lines of receipts, to which only the driver appends.

It governs nothing but what is done. A line is a checksum and a JSON object; one that a crash cut off, or that is
damaged otherwise, is ignored, and its work is done again. Its kinds:

plan         a run began: its plan
shard        a shard was made: its key and its receipt
range        a block of an output's token file was merged: its digest
file         a file of an output is complete under its partial name; in a bucket, under its final name
restart      what was recorded of an output is void: its token file is begun again
publishing   files of the plan get their final names from now on
finished     everything is published

An output's name in the ledger has the plan's id, so what is recorded of it holds however the plan is cut into shards.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from dsindex.engine.plan import is_plan
from dsindex.engine.tasks import ShardResult
from dsindex.json_text import decode_json, encode_json
from dsindex.store.journal import BODY_OFFSET, ledger_path, open_journal
from dsindex.store.storage import StoredFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.engine.plan import Plan
    from dsindex.engine.tasks import ShardTask


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
            entry = read_entry(line)
            if entry is not None:
                with contextlib.suppress(KeyError, TypeError, ValueError, msgspec.ValidationError):
                    self._take(entry)

    def forget_all(self) -> None:
        """Begin again, since the ledger was removed."""
        self.plan: dict[str, Any] | None = None
        """The last run's plan, as `Plan.to_json` wrote it; None if no run began."""
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

    def begin(self) -> None:
        """Open the ledger for what is recorded from now on.

        Raises:
            OutputError: If it cannot be written.
        """
        self._journal.begin()

    def _take(self, entry: Mapping[str, Any]) -> None:
        match entry["kind"]:
            case "plan":
                self.plan = entry["plan"] if is_plan(entry["plan"]) else None
                self.is_publishing = self.is_finished = False
            case "shard":
                self.shards[entry["task"]] = msgspec.convert(entry["result"], ShardResult)
            case "range":
                digest = bytes.fromhex(entry["digest"]).hex()
                self._ranges.setdefault(entry["output"], {})[int(entry["number"])] = digest
            case "file":
                file = StoredFile(name=entry["suffix"], size_bytes=entry["size_bytes"], digest=entry["digest"])
                self._files[entry["output"], entry["suffix"]] = file
            case "restart":
                self._ranges.pop(entry["output"], None)
                self._files = {key: file for key, file in self._files.items() if key[0] != entry["output"]}
            case "publishing":
                self.is_publishing = True
            case "finished":
                self.is_finished = True

    def record_plan(self, plan: Plan) -> None:
        """Record that a run of a plan begins."""
        stored = plan.decoded()
        if self.plan != stored or self.is_finished:
            self._record({"kind": "plan", "plan": stored})

    def shard(self, task: ShardTask) -> ShardResult | None:
        """Return the receipt of a shard."""
        return self.shards.get(task.key)

    def record_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Record an attempt at a shard, which thereby counts."""
        self._append({"kind": "shard", "task": task.key, "result": msgspec.to_builtins(result)})
        self.shards[task.key] = result

    def ranges(self, output: str) -> Mapping[int, str]:
        """Return the digests of an output's merged ranges, by number."""
        return self._ranges.get(output, {})

    def record_range(self, output: str, number: int, digest: str) -> None:
        """Record a merged range, not yet synced."""
        self._record({"kind": "range", "output": output, "number": number, "digest": digest}, sync=False)

    def file(self, output: str, suffix: str) -> StoredFile | None:
        """Return a complete file of an output."""
        return self._files.get((output, suffix))

    def record_file(self, output: str, file: StoredFile) -> None:
        """Record a complete file of an output, whose name is its suffix."""
        entry = {"suffix": file.name, "size_bytes": file.size_bytes, "digest": file.digest}
        self._record({"kind": "file", "output": output, **entry})

    def record_restart(self, output: str) -> None:
        """Record that what was recorded of an output is void, before its token file is begun again."""
        self._record({"kind": "restart", "output": output})

    def record_publishing(self) -> None:
        """Record that files get their final names from now on."""
        if not self.is_publishing:
            self._record({"kind": "publishing"})

    def record_finished(self) -> None:
        """Record that everything is published."""
        self._record({"kind": "finished"})

    def _record(self, entry: dict[str, Any], *, sync: bool = True) -> None:
        self._append(entry)
        self._take(entry)
        if sync:
            self.sync()

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Write a line. State follows only afterwards, so it never exceeds what is on file."""
        body = encode_json(entry)
        self._journal.append(xxhash.xxh3_64_hexdigest(body).encode() + b" " + body + b"\n")
        if time.monotonic() - self._synced > self._journal.sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Sync, so that everything recorded survives a power cut."""
        self._synced = time.monotonic()
        self._journal.sync()

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Return a line's entry; None if its checksum is wrong."""
    body = line[BODY_OFFSET:].rstrip(b"\n")
    if line[: BODY_OFFSET - 1] != xxhash.xxh3_64_hexdigest(body).encode():
        return None
    entry = decode_json(body)
    return entry if isinstance(entry, dict) else None
