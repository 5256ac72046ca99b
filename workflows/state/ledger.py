"""The work folder's ledger of finished work, to which only the driver appends.

One line per committed shard, merged range or task of a shuffle, after a checksum. A line that a crash cut off or that
is damaged otherwise is ignored, and its work is done again. workflows.state.journal tells when a line is safe.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import TypeAdapter

from dsindex.json_text import decode_json, encode_json
from dsindex.merging.ranges import MergeRange, RangeResult
from dsindex.shards.shuffle import SortResult
from dsindex.shards.tasks import ShardResult, ShardTask
from workflows.state.history import DAMAGE, HistoryReader, read_entry
from workflows.state.journal import open_journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsindex.objects.uploads import Upload
    from dsindex.storage import StoredFile
    from workflows.state.history import FileIdentity, History


_SHARD = TypeAdapter(ShardResult)
_RANGE = TypeAdapter(RangeResult)
_SORTED = TypeAdapter(SortResult)


def task_key(task: ShardTask) -> str:
    """Return a shard's key, made of what it reads: it stays the same when inputs are added."""
    share = "" if task.share is None else f"\0{task.share}"
    return f"{task.path}\0{task.input_size_bytes}\0{task.input_version}\0{task.begin}\0{task.end}{share}"


def output_key(path: str) -> str:
    """Return the key of a partial file of tokens: its name, which contains the plan's id. Its folder may be moved."""
    return os.path.basename(path)


def stored_files(result: ShardResult) -> list[StoredFile]:
    """Return all files that a shard's result names."""
    files = [result.provenance, result.quarantine]
    for key in result.keys:
        files += [key.bin, key.idx, key.provenance]
    return [file for file in files if file is not None]


def _inside(result: ShardResult) -> ShardResult:
    """Return a result whose files are below the work folder's `shards/` and whose counts are not negative.

    Raises:
        ValueError: If it is another one.
    """
    counts = [result.num_lines, result.num_blank, result.num_records, result.num_quarantined, result.num_filtered]
    counts += [count for _, count in result.counts]
    for key in result.keys:
        counts += [key.num_sequences, key.num_documents, key.num_tokens, key.num_empty_documents]
        counts += [key.eod_in_text, key.num_reference_texts]
    files = stored_files(result)
    _require_inside(files, counts)
    return result


def _sorted_inside(result: SortResult) -> SortResult:
    """Return a result of which the same is true as of `_inside`.

    Raises:
        ValueError: If it is another one.
    """
    counts = [group.num_documents for group in result.groups]
    counts += [part.num_sequences for group in result.groups for part in group.parts]
    _require_inside(result.files, counts)
    return result


def _require_inside(files: Sequence[StoredFile], counts: Sequence[int]) -> None:
    if min([*counts, *(file.size_bytes for file in files)]) < 0:
        msg = "expected counts of at least 0"
        raise ValueError(msg)
    for file in files:
        if not file.name.startswith("shards/") or os.path.normpath(file.name) != file.name or "\0" in file.name:
            msg = f"expected a file below shards/, got {file.name!r}"
            raise ValueError(msg)


def _digested(result: RangeResult) -> RangeResult:
    for digest in result.block_digests:
        bytes.fromhex(digest)  # raises ValueError if it is damaged
    return result


def _described(files: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a dataset's files, each of which is a plain suffix with a size and a digest.

    Raises:
        ValueError: If one is not.
    """
    for suffix, file in files.items():
        size_bytes, digest = file["size_bytes"], file["digest"]
        if "/" in suffix or len(file) != 2 or not isinstance(size_bytes, int) or not isinstance(digest, str):
            msg = f"expected a suffix with a size and a digest, got {suffix!r}: {file!r}"
            raise ValueError(msg)
    return files


def read_committed_shards(path: str) -> dict[str, ShardResult]:
    """Read the committed shards of a ledger, by `task_key`, without changing it.

    Raises:
        FormatError: If it cannot be read.
    """
    shards = {}
    for line in open_journal(path).read():
        entry = read_entry(line)
        if entry is not None and entry.get("kind") == "shard":
            with contextlib.suppress(*DAMAGE):
                shards[entry["task"]] = _inside(_SHARD.validate_python(entry["result"]))
    return shards


class Ledger:
    """The committed shards and ranges of one work folder.

    Args:
        path: Its file, or the folder of its segments, as `workflows.state.journal.ledger_path` returns it; it is read,
            or created empty.
    """

    def __init__(self, path: str) -> None:
        self._journal = open_journal(path)
        self._shards: dict[str, ShardResult] = {}
        self._ranges: dict[str, dict[str, RangeResult]] = {}
        """Output's key → range's identity → result."""
        self._sorted: dict[str, SortResult] = {}
        """Identity of a task of a shuffle → result."""
        self._written: dict[str, int] = {}
        self._assembled: dict[str, tuple[str, dict[str, Any]]] = {}
        self._history = HistoryReader()
        self._synced = time.monotonic()
        for line in self._journal.read():
            self._read_line(line)
            self._history.add(line)
        self._journal.begin()

    def _read_line(self, line: bytes) -> None:
        entry = read_entry(line)
        if entry is None:
            return
        try:
            if entry["kind"] == "shard":
                self._shards[entry["task"]] = _inside(_SHARD.validate_python(entry["result"]))
            elif entry["kind"] == "range":
                result = _digested(_RANGE.validate_python(entry["result"]))
                self._keep_range(entry["output"], entry["range"], int(entry["end"]), result)
            elif entry["kind"] == "sorted":
                self._sorted[entry["task"]] = _sorted_inside(_SORTED.validate_python(entry["result"]))
            elif entry["kind"] == "assembled":
                self._assembled[entry["output"]] = entry["merge"], _described(entry["files"])
            elif entry["kind"] == "merge again":
                self._forget_merge(entry["output"])
        except DAMAGE:
            return

    @property
    def history(self) -> History:
        """The history of the ledger's runs, this one included."""
        return self._history.history()

    def record_run(self, plan: dict[str, Any], *, keep: bool, fresh: bool, outputs: Sequence[str] = ()) -> None:
        """Record that a run of a plan begins, and the prefixes of its outputs."""
        before = self.history
        if (before.plan, before.keep, before.fresh, before.finished) != (
            decode_json(encode_json(plan)),
            keep,
            fresh,
            False,
        ):
            entry = {"plan": plan, "keep": keep, "fresh": fresh, "outputs": list(map(str, outputs))}
            self._record({"kind": "run", **entry})
            self.sync()

    def record_finished(self) -> None:
        """Record that everything is published."""
        self._record({"kind": "finished"})
        self.sync()

    def record_partials(self, paths: Iterable[str]) -> None:
        """Record partial files before they are created, so that a later run knows that dsindex wrote them."""
        known = self.history.partials
        for path in paths:
            if path not in known:
                self._record({"kind": "partial", "path": path})
        self.sync()

    def record_uploading(self, url: str, others: Iterable[str]) -> None:
        """Record that uploads to a final name are about to be begun, beside those of others that are there."""
        self._record({"kind": "uploading", "url": str(url), "others": sorted(others)})
        self.sync()

    def record_upload(self, upload: Upload, partial: str) -> None:
        """Record an upload that was begun for a partial file; nothing is written to it before."""
        entry = {"url": str(upload.url), "partial": output_key(partial), "id": upload.upload_id, "tag": upload.tag}
        entry["checksum"] = upload.checksum
        self._record({"kind": "upload", **entry})
        self.sync()

    def record_publishing(self, prefix: str, files: Iterable[FileIdentity], *, obsolete: Sequence[str] = ()) -> None:
        """Record that a dataset's files are about to get their final names and replace the files that have them.

        Args:
            prefix: The dataset's prefix.
            files: The new files, and those that they replace.
            obsolete: Prefixes of datasets of an earlier plan that are removed with the replaced files.
        """
        self._record({"kind": "publishing", "prefix": prefix, "files": sorted(files), "obsolete": list(obsolete)})
        self.sync()

    def _record(self, entry: dict[str, Any]) -> None:
        """Write an entry about the run."""
        self._history.add(self._append(entry))

    def shard(self, task: ShardTask) -> ShardResult | None:
        """Return the committed result of a shard."""
        return self._shards.get(task_key(task))

    def record_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Commit an attempt at a shard."""
        self._append({"kind": "shard", "task": task_key(task), "result": result})
        self._shards[task_key(task)] = result
        self.sync_if_due()

    def sorted(self, identity: str) -> SortResult | None:
        """Return the committed result of a task of a shuffle."""
        return self._sorted.get(identity)

    def record_sorted(self, identity: str, result: SortResult) -> None:
        """Commit an attempt at a task of a shuffle, and sync, since the files that it read may be removed."""
        self._append({"kind": "sorted", "task": identity, "result": result})
        self._sorted[identity] = result
        self.sync()

    def range(self, task: MergeRange) -> RangeResult | None:
        """Return the committed result of an output range, if it was merged from exactly these pieces."""
        return self._ranges.get(output_key(task.output), {}).get(task.identity)

    def record_range(self, task: MergeRange, result: RangeResult) -> None:
        """Commit an attempt at an output range."""
        output, identity = output_key(task.output), task.identity
        self._append({"kind": "range", "output": output, "range": identity, "end": task.end, "result": result})
        self._keep_range(output, identity, task.end, result)
        self.sync_if_due()

    def _keep_range(self, output: str, identity: str, end: int, result: RangeResult) -> None:
        self._ranges.setdefault(output, {})[identity] = result
        self._written[output] = max(end, self.written_bytes(output))

    def written_bytes(self, output: str) -> int:
        """Return where the last committed range of an output ends: the file must have at least this size."""
        return self._written.get(output_key(output), 0)

    def merged_ranges(self, output: str) -> set[int]:
        """Return the numbers of the committed ranges of an output."""
        return {result.number for result in self._ranges.get(output_key(output), {}).values()}

    def assembled(self, output: str, merge_id: str) -> dict[str, Any] | None:
        """Return sizes and digests of the files that were assembled from these parts; None if they were not."""
        recorded, files = self._assembled.get(output_key(output), (None, None))
        return files if recorded == merge_id else None

    def record_assembled(self, output: str, merge_id: str, files: dict[str, Any]) -> None:
        """Record that all files of a dataset are complete under their partial names; `output` is its token file."""
        self._append({"kind": "assembled", "output": output_key(output), "merge": merge_id, "files": files})
        self._assembled[output_key(output)] = merge_id, files
        self.sync()

    def record_merge_again(self, output: str) -> None:
        """Revoke what was recorded of a partial file, before it is recreated empty."""
        if self._forget_merge(output_key(output)):
            self._append({"kind": "merge again", "output": output_key(output)})
            self.sync()

    def _forget_merge(self, output: str) -> bool:
        self._written.pop(output, None)
        had_ranges = self._ranges.pop(output, None) is not None
        return self._assembled.pop(output, None) is not None or had_ranges

    def _append(self, entry: dict[str, Any]) -> bytes:
        """Write a line. Callers update their state only afterwards, so it never exceeds what is on file."""
        body = encode_json(entry)
        line = xxhash.xxh3_64_hexdigest(body).encode() + b" " + body + b"\n"
        self._journal.append(line)
        return line

    def sync_if_due(self) -> None:
        """Sync if that is due, for lines that nothing waits for."""
        if time.monotonic() - self._synced > self._journal.sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Sync the file, so that everything recorded survives a power cut."""
        self._synced = time.monotonic()
        self._journal.sync()

    def close(self) -> None:
        """Sync and close."""
        self._journal.close()
