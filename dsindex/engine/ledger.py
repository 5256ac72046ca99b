"""The work folder's ledger of finished work, to which only the driver appends.

One line per committed shard or merged range, after a checksum. A line that a crash cut off or that
is damaged otherwise is ignored, and its work is done again. dsindex.engine.ledger tells when a line is safe.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import TypeAdapter, ValidationError

from dsindex.engine.identity import id_of_plan, is_plan
from dsindex.engine.manifest import MANIFEST_SUFFIX
from dsindex.engine.merge import MergeRange, RangeResult
from dsindex.engine.partial_files import PBIN_PUBLISHING_ORDER, PUBLISHING_ORDER, partial_path
from dsindex.engine.progress import PROGRESS_SUFFIX
from dsindex.engine.shards.tokenize import Cuts, ShardResult, ShardTask, task_key
from dsindex.json_text import decode_json, encode_json
from dsindex.store.clients import Checksum
from dsindex.store.journal import BODY_OFFSET, open_journal
from dsindex.store.storage import StoredSection
from dsindex.store.urls import is_absolute
from dsindex.store.writing import FileIdentity, is_same_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsindex.engine.identity import Entry, Plan
    from dsindex.store.storage import StoredFile
    from dsindex.store.uploads import Upload


# A ledger's record of the runs that wrote it: plans, outputs, and datasets about to be published.
#
# What may be removed outside of the work folder is derived from plans and outputs. No entry names a file to remove.
#
# Shards and ranges are only noted as present and not decoded, so that a ledger with a million of them is read
# quickly.

DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ValidationError)
"""Exceptions raised by an entry that has a right checksum but a wrong form."""


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Return a line's entry; None if its checksum is wrong or it is not a JSON object."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if checksum.decode("ascii", "replace") != xxhash.xxh3_64_hexdigest(body):
        return None
    try:
        entry = decode_json(body)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Return the line of an entry."""
    body = encode_json(entry)
    return xxhash.xxh3_64_hexdigest(body).encode() + b" " + body + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUpload:
    """An upload to a final name in an object store."""

    url: str
    partial: str
    """The name of the file until it is published, which contains the plan's id."""
    upload_id: str
    tag: str
    """What the object carries in its metadata once the upload is completed."""
    checksum: Checksum
    """By what its parts are checked."""


_SUFFIXES = frozenset({*PUBLISHING_ORDER, *PBIN_PUBLISHING_ORDER, MANIFEST_SUFFIX})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What the runs of one plan may have written beside their outputs."""

    plan_id: str
    prefix: str
    """The output prefix of the job."""
    outputs: tuple[str, ...]
    """Prefixes of its datasets, all of which begin with that."""

    @property
    def finals(self) -> list[str]:
        """The final names of all files of its datasets."""
        return [f"{output}.{suffix}" for output in self.outputs for suffix in sorted(_SUFFIXES)]

    @property
    def partials(self) -> list[str]:
        """The names on a disk of its files until they are published."""
        names = [*self.finals, f"{self.prefix}.{PROGRESS_SUFFIX}"] if os.path.isabs(self.prefix) else []
        return [partial_path(name, self.plan_id) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A ledger's record of the runs that wrote it, without its shards and ranges."""

    plan: dict[str, Any] | None = None
    """The last run's plan, as `Plan.to_json` wrote it; None if no readable one is recorded."""
    keep: bool = False
    """The last run had --keep-shards."""
    fresh: bool = False
    """The last run had --fresh."""
    work_dir: str = ""
    """The folder in which the last run worked, of which this one may be a copy; empty if it is not recorded."""
    runs: tuple[RecordedRun, ...] = ()
    """Runs with the output prefix of the last one, each plan once."""
    finished: bool = False
    """The last run published everything."""
    has_work: bool = False
    """Shards or ranges are committed."""
    publishing: Mapping[str, frozenset[FileIdentity]] = field(default_factory=dict)
    """Prefix → the files that were about to get its final names, and the files that they were to replace."""
    uploads: tuple[RecordedUpload, ...] = ()
    """Uploads that runs began to final names in object stores, in order."""
    uploading: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Final name to which uploads were begun → the ids of uploads to it that were there before the first."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Prefixes of the outputs of all runs."""
        return tuple(sorted({output for run in self.runs for output in run.outputs}))

    @property
    def partials(self) -> tuple[str, ...]:
        """Paths on a disk that partial files of the runs may have."""
        return tuple(path for run in self.runs for path in run.partials)

    def belongs_to(self, work_dir: str) -> bool:
        """Tell whether the last run worked in this folder; a copy of a folder owns nothing outside of itself."""
        if not self.runs:
            return False
        recorded = self.work_dir or f"{self.runs[-1].prefix}.build"
        return is_same_folder(recorded, work_dir)


_WORK_BODIES = (b'{"kind":"shard"', b'{"kind":"range"')


def read_history(path: str) -> History:
    """Read a ledger's history of its runs without changing it; a missing ledger has an empty history.

    Raises:
        FormatError: If it cannot be read.
    """
    reader = HistoryReader()
    for line in open_journal(path).read():
        reader.add(line)
    return reader.history()


class HistoryReader:
    """Collects the history from the lines of a ledger, in order."""

    def __init__(self) -> None:
        self._run: dict[str, Any] = {}
        self._finished = self._has_work = False
        self._runs: dict[RecordedRun, None] = {}
        """In the order of their last entries."""
        self._publishing: dict[str, frozenset[FileIdentity]] = {}
        self._uploads: list[RecordedUpload] = []
        self._uploading: dict[str, frozenset[str]] = {}

    def add(self, line: bytes) -> None:
        """Add the next line; a damaged one is skipped."""
        if line.startswith(_WORK_BODIES, BODY_OFFSET):
            self._has_work = True
            return
        entry = read_entry(line)
        if entry is not None:
            self.add_entry(entry)

    def add_entry(self, entry: dict[str, Any]) -> None:
        """Add the next entry; a damaged one is skipped."""
        with contextlib.suppress(*DAMAGE):
            self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "run":
            if is_plan(entry["plan"]):
                run = _recorded_run(entry)
                self._runs.pop(run, None)
                self._runs[run] = None
                self._run = {**entry, "places": (), "work-dir": _text(entry.get("work-dir", ""))}
                self._finished = False
        elif kind == "finished":
            self._finished = True
        elif kind == "uploading":
            self._uploading.setdefault(_text(entry["url"]), frozenset(map(_text, entry["others"])))
        elif kind == "upload":
            url, upload_id, tag = _text(entry["url"]), _text(entry["id"]), _text(entry["tag"])
            partial, checksum = _text(entry["partial"]), Checksum(entry.get("checksum", Checksum.MD5))
            upload = RecordedUpload(url=url, partial=partial, upload_id=upload_id, tag=tag, checksum=checksum)
            self._uploads.append(upload)
        elif kind == "publishing":
            files = frozenset(_identity(file) for file in entry["files"])
            prefix = _text(entry["prefix"])
            self._publishing[prefix] = self._publishing.get(prefix, frozenset()) | files

    def history(self) -> History:
        """Return the history of the lines added so far."""
        run = self._run
        last = next(reversed(self._runs), None)
        runs = tuple(each for each in self._runs if last is not None and each.prefix == last.prefix)
        finals = {final for each in runs for final in each.finals}
        return History(
            plan=run.get("plan"),
            keep=bool(run.get("keep")),
            work_dir=run.get("work-dir", ""),
            runs=runs,
            fresh=bool(run.get("fresh")),
            finished=self._finished,
            has_work=self._has_work,
            publishing=dict(self._publishing),
            uploads=tuple(self._uploads),
            uploading={url: others for url, others in self._uploading.items() if url in finals},
        )


def _recorded_run(entry: dict[str, Any]) -> RecordedRun:
    """Return a run with those of its outputs that are named by the plan's output prefix.

    Raises:
        ValueError: If a prefix is not a path.
    """
    plan = entry["plan"]
    settings = plan["settings"]
    prefix = _text(settings.get("output-prefix", "")) or _text(settings.get("output", "")).removesuffix(".pbin")
    outputs = [
        output
        for output in map(_text, entry.get("outputs", ()))
        if output == prefix or (output.startswith(f"{prefix}_") and "/" not in output.removeprefix(prefix))
    ]
    is_place = is_absolute(prefix)
    return RecordedRun(plan_id=id_of_plan(plan), prefix=prefix, outputs=tuple(outputs) if is_place else ())


def _identity(value: object) -> FileIdentity:
    device, inode, size_bytes, modified = map(int, value)  # type: ignore[call-overload]  # raises like all damage
    return device, inode, size_bytes, modified


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"expected a path, got {value!r}")
    return value


_form_of = functools.cache(TypeAdapter)
"""Checks stored results of a class; made when an earlier run left some."""


def output_key(path: str) -> str:
    """Return the key of a partial file of tokens: its name, which contains the plan's id. Its folder may be moved."""
    return os.path.basename(path)


def stored_files(result: ShardResult) -> list[StoredFile]:
    """Return all files, and sections of files, that a shard's result names."""
    files = [result.provenance, result.quarantine, result.files]
    for key in result.keys:
        files += [key.bin, key.idx, key.provenance]
    return list(dict.fromkeys(file for file in files if file is not None))


def _inside(result: ShardResult) -> ShardResult:
    """Return a result whose files are below the work folder's `shards/` and whose counts are not negative.

    Raises:
        ValueError: If it is another one.
    """
    counts = [result.num_lines, result.num_blank, result.num_records, result.num_quarantined, result.num_filtered]
    counts += [count for _, count in result.counts]
    for key in result.keys:
        counts += [key.num_sequences, key.num_documents, key.num_tokens, key.num_empty_documents]
        counts += [key.eod_in_text, key.num_reference_texts, key.tokenized_bytes or 0]
    files = stored_files(result)
    _require_inside(files, counts)
    return result


def _require_inside(files: Sequence[StoredFile], counts: Sequence[int]) -> None:
    begins = [file.begin for file in files if isinstance(file, StoredSection)]
    if min([*counts, *begins, *(file.size_bytes for file in files)]) < 0:
        raise ValueError("expected counts of at least 0")
    for file in files:
        if not file.name.startswith("shards/") or os.path.normpath(file.name) != file.name or "\0" in file.name:
            raise ValueError(f"expected a file below shards/, got {file.name!r}")


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
            raise ValueError(f"expected a suffix with a size and a digest, got {suffix!r}: {file!r}")
    return files


def parse_shard(entry: Mapping[str, Any] | None) -> ShardResult | None:
    """Return the shard of an entry; None if it is damaged or of another kind."""
    if entry is None or entry.get("kind") != "shard":
        return None
    try:
        return _inside(_form_of(ShardResult).validate_python(entry["result"]))
    except DAMAGE:
        return None


def read_committed_shards(path: str) -> dict[str, ShardResult]:
    """Read the committed shards of a ledger, by `task_key`, without changing it.

    Raises:
        FormatError: If it cannot be read.
    """
    shards = {}
    for line in open_journal(path).read():
        entry = read_entry(line)
        result = parse_shard(entry)
        if entry is not None and result is not None and "task" in entry:
            shards[entry["task"]] = result
    return shards


def read_cuts(path: str) -> Cuts:
    """Read from a ledger how earlier runs cut their inputs, without changing it; nothing but cuts follows from it.

    Raises:
        FormatError: If it cannot be read.
    """
    places: dict[Entry, int] = {}
    shards: dict[str, tuple[str, int]] = {}
    for line in open_journal(path).read():
        with contextlib.suppress(*DAMAGE):
            if line.startswith(_SHARD_BODY, BODY_OFFSET):
                key = decode_json(line[BODY_OFFSET + len(_SHARD_BODY) : line.index(b',"result":')])
                path, size_bytes, _, begin, *_ = key.split("\0")
                shards |= {key: (path, int(size_bytes))} if begin == "0" else {}
            elif line.startswith(_RUN_BODY, BODY_OFFSET):
                entry = read_entry(line) or {}
                if is_plan(entry["plan"]):
                    inputs = map(tuple, entry["plan"]["inputs"])
                    places |= zip(inputs, map(operator.index, entry["places"]), strict=True)
    return Cuts(places=places, shards=shards)


_RUN_BODY = b'{"kind":"run"'
_SHARD_BODY = b'{"kind":"shard","task":'


class Ledger:
    """The committed shards and ranges of one work folder.

    Args:
        path: Its file, or the folder of its segments, as `dsindex.engine.ledger.ledger_path` returns it; it is read,
            or created empty.
    """

    def __init__(self, path: str) -> None:
        self._journal = open_journal(path)
        self._shards: dict[str, ShardResult] = {}
        self._ranges: dict[str, dict[str, RangeResult]] = {}
        """Output's key → range's identity → result."""
        self._merged: set[tuple[str, str]] = set()
        """Output's key and identity of the ranges of this run."""
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
                self._shards[entry["task"]] = _inside(_form_of(ShardResult).validate_python(entry["result"]))
            elif entry["kind"] == "range":
                result = _digested(_form_of(RangeResult).validate_python(entry["result"]))
                self._keep_range(entry["output"], entry["range"], int(entry["end"]), result)
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

    def record_run(
        self, plan: Plan, *, keep: bool, fresh: bool, outputs: Sequence[str] = (), work_dir: str = ""
    ) -> None:
        """Record that a run of a plan begins, the prefixes of its outputs, and the folder in which it works."""
        before, stored = self.history, plan.decoded()
        recorded = before.runs[-1].outputs if before.runs else None
        if (before.plan, before.keep, before.fresh, before.finished, before.work_dir, recorded) != (
            stored,
            keep,
            fresh,
            False,
            work_dir,
            tuple(map(str, outputs)),
        ):
            entry = {"plan": stored, "keep": keep, "fresh": fresh, "outputs": list(map(str, outputs))}
            self._record({"kind": "run", **entry, "work-dir": work_dir, "places": plan.places})
            self.sync()

    def record_finished(self) -> None:
        """Record that everything is published."""
        self._record({"kind": "finished"})
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

    def record_publishing(self, prefix: str, files: Iterable[FileIdentity]) -> None:
        """Record that a dataset's files are about to get their final names and replace the files that have them.

        Args:
            prefix: The dataset's prefix.
            files: The new files, and those that they replace.
        """
        self._record({"kind": "publishing", "prefix": prefix, "files": sorted(files)})
        self.sync()

    def _record(self, entry: dict[str, Any]) -> None:
        """Write an entry about the run."""
        self._append(entry)
        self._history.add_entry(entry)

    def shard(self, task: ShardTask) -> ShardResult | None:
        """Return the committed result of a shard."""
        return self._shards.get(task_key(task))

    def record_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Commit an attempt at a shard."""
        self._append({"kind": "shard", "task": task_key(task), "result": result})
        self._shards[task_key(task)] = result
        self.sync_if_due()

    def range(self, task: MergeRange) -> RangeResult | None:
        """Return the committed result of an output range, if it was merged from exactly these pieces."""
        return self._ranges.get(output_key(task.output), {}).get(task.identity)

    def is_of_this_run(self, task: MergeRange) -> bool:
        """Tell whether a range was committed by this run, so that nobody can have changed its bytes."""
        return (output_key(task.output), task.identity) in self._merged

    def record_range(self, task: MergeRange, result: RangeResult) -> None:
        """Commit an attempt at an output range."""
        output, identity = output_key(task.output), task.identity
        self._append({"kind": "range", "output": output, "range": identity, "end": task.end, "result": result})
        self._keep_range(output, identity, task.end, result)
        self._merged.add((output, identity))
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

    def _append(self, entry: dict[str, Any]) -> None:
        """Write a line. Callers update their state only afterwards, so it never exceeds what is on file."""
        self._journal.append(encode_entry(entry))

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
