"""The work folder's ledger: lines of receipts, to which only the driver appends.

It governs nothing but what is done. A line is a checksum and a JSON object; one that a crash cut off, or that is
damaged otherwise, is ignored, and its work is done again. Its kinds:

plan         a run began: its plan
shard        a shard was made: its key and its receipt
range        bytes of an output's partial file were merged: digests of their blocks
file         a file of an output is complete under its partial name; in a bucket, under its final name
restart      what was recorded of an output is void: its partial file is begun again
publishing   files of the plan get their final names from now on
finished     everything is published
"""

from __future__ import annotations

import contextlib
import os
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
    from collections.abc import Mapping, Sequence

    from dsindex.engine.plan import Plan
    from dsindex.engine.tasks import MergeRange, ShardTask


class Ledger:
    """What is done in one work folder, as it was read once when it was opened, and as it is recorded since.

    Args:
        work_dir: The work folder.
    """

    def __init__(self, work_dir: str) -> None:
        self._journal = open_journal(ledger_path(work_dir))
        self._synced = time.monotonic()
        self.plan: dict[str, Any] | None = None
        """The last run's plan, as `Plan.to_json` wrote it; None if no run began."""
        self.shards: dict[str, ShardResult] = {}
        """Key of a shard → its receipt."""
        self.is_publishing = self.is_finished = False
        self._ranges: dict[str, dict[str, list[str]]] = {}
        """Output → identity of a range → digests of its blocks."""
        self._ends: dict[str, int] = {}
        self._files: dict[tuple[str, str], tuple[str, StoredFile]] = {}
        """Output and suffix → what the file was made from, and its size and digest."""
        for line in self._journal.read():
            entry = read_entry(line)
            if entry is not None:
                with contextlib.suppress(KeyError, TypeError, ValueError, msgspec.ValidationError):
                    self._take(entry)

    @property
    def has_work(self) -> bool:
        """Whether anything is made."""
        return bool(self.shards or self._ranges or self._files)

    def forget_all(self) -> None:
        """Begin again, since the ledger was removed."""
        self.plan, self.shards = None, {}
        self._ranges, self._ends, self._files = {}, {}, {}
        self.is_publishing = self.is_finished = False

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
                self._ranges.setdefault(entry["output"], {})[entry["range"]] = entry["blocks"]
                self._ends[entry["output"]] = max(entry["end"], self._ends.get(entry["output"], 0))
            case "file":
                file = StoredFile(name=entry["suffix"], size_bytes=entry["size_bytes"], digest=entry["digest"])
                self._files[entry["output"], entry["suffix"]] = entry["of"], file
            case "restart":
                self._forget(entry["output"])
            case "publishing":
                self.is_publishing = True
            case "finished":
                self.is_finished = True

    def _forget(self, output: str) -> None:
        self._ranges.pop(output, None)
        self._ends.pop(output, None)
        self._files = {key: file for key, file in self._files.items() if key[0] != output}

    def record_plan(self, plan: Plan) -> None:
        """Record that a run of a plan begins."""
        stored = plan.decoded()
        if self.plan != stored or self.is_finished:
            self._record({"kind": "plan", "plan": stored}, sync=True)

    def shard(self, task: ShardTask) -> ShardResult | None:
        """Return the receipt of a shard."""
        return self.shards.get(task.key)

    def record_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Record an attempt at a shard, which thereby counts."""
        self._append({"kind": "shard", "task": task.key, "result": result})
        self.shards[task.key] = result

    def range(self, task: MergeRange) -> list[str] | None:
        """Return the digests of a merged range's blocks, if it was merged from exactly these pieces."""
        return self._ranges.get(os.path.basename(task.output), {}).get(task.identity)

    def record_range(self, task: MergeRange, blocks: Sequence[str]) -> None:
        """Record a merged range."""
        entry = {
            "output": os.path.basename(task.output),
            "range": task.identity,
            "end": task.end,
            "blocks": list(blocks),
        }
        self._record({"kind": "range", **entry}, sync=False)

    def merged_bytes(self, output: str) -> int:
        """Return where the last merged range of an output ends: its file must have at least this size."""
        return self._ends.get(os.path.basename(output), 0)

    def file(self, output: str, suffix: str, made_of: str) -> StoredFile | None:
        """Return a complete file of an output, if it was made from these parts."""
        recorded, file = self._files.get((output, suffix), ("", None))
        return file if recorded == made_of else None

    def record_file(self, output: str, suffix: str, made_of: str, file: StoredFile) -> None:
        """Record a complete file of an output."""
        entry = {"output": output, "suffix": suffix, "of": made_of}
        self._record({"kind": "file", **entry, "size_bytes": file.size_bytes, "digest": file.digest}, sync=True)

    def record_restart(self, output: str) -> None:
        """Record that what was recorded of an output is void, before its partial file is begun again."""
        if output in self._ranges or any(key[0] == output for key in self._files):
            self._record({"kind": "restart", "output": output}, sync=True)

    def record_publishing(self) -> None:
        """Record that files get their final names from now on."""
        if not self.is_publishing:
            self._record({"kind": "publishing"}, sync=True)

    def record_finished(self) -> None:
        """Record that everything is published."""
        self._record({"kind": "finished"}, sync=True)

    def _record(self, entry: dict[str, Any], *, sync: bool) -> None:
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
