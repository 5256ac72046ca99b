"""A ledger's record of the runs that wrote it: plans, partial files, and datasets about to be published.

Shards and ranges are only noted as present and not decoded, so that a ledger with a million of them is read quickly.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import ValidationError

from dsindex.json_text import decode_json
from dsindex.objects.checksums import Checksum
from workflows.state.identity import is_plan
from workflows.state.journal import open_journal

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A ledger's record of the runs that wrote it, without its shards and ranges."""

    plan: dict[str, Any] | None = None
    """The last run's plan, as `Plan.to_json` wrote it; None if no readable one is recorded."""
    keep: bool = False
    """The last run had --keep-shards."""
    fresh: bool = False
    """The last run had --fresh."""
    outputs: tuple[str, ...] = ()
    """Prefixes of the last run's outputs."""
    finished: bool = False
    """The last run published everything."""
    has_work: bool = False
    """Shards or ranges are committed."""
    partials: tuple[str, ...] = ()
    """Paths of partial files that runs began beside their outputs."""
    publishing: Mapping[str, frozenset[FileIdentity]] = field(default_factory=dict)
    """Prefix → the files that were about to get its final names, and the files that they were to replace."""
    obsolete: tuple[str, ...] = ()
    """Prefixes of datasets of an earlier plan, which are removed when the new ones are published."""
    uploads: tuple[RecordedUpload, ...] = ()
    """Uploads that runs began to final names in object stores, in order."""
    uploading: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Final name to which uploads were begun → the ids of uploads to it that were there before the first."""


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
        self._partials: dict[str, None] = {}
        self._publishing: dict[str, frozenset[FileIdentity]] = {}
        self._obsolete: dict[str, None] = {}
        self._uploads: list[RecordedUpload] = []
        self._uploading: dict[str, frozenset[str]] = {}

    def add(self, line: bytes) -> None:
        """Add the next line; a damaged one is skipped."""
        if line.partition(b" ")[2].startswith(_WORK_BODIES):
            self._has_work = True
            return
        entry = read_entry(line)
        if entry is None:
            return
        with contextlib.suppress(*DAMAGE):
            self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "run":
            if is_plan(entry["plan"]):
                tuple(map(_text, entry.get("outputs", ())))  # raises like all damage
                self._run = entry
                self._finished = False
        elif kind == "finished":
            self._finished = True
        elif kind == "partial":
            self._partials[_text(entry["path"])] = None
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
            self._obsolete |= dict.fromkeys(map(_text, entry["obsolete"]))

    def history(self) -> History:
        """Return the history of the lines added so far."""
        run = self._run
        return History(
            plan=run.get("plan"),
            keep=bool(run.get("keep")),
            outputs=tuple(map(_text, run.get("outputs", ()))),
            fresh=bool(run.get("fresh")),
            finished=self._finished,
            has_work=self._has_work,
            partials=tuple(self._partials),
            publishing=dict(self._publishing),
            obsolete=tuple(self._obsolete),
            uploads=tuple(self._uploads),
            uploading=dict(self._uploading),
        )


FileIdentity = tuple[int, int, int, int]
"""Device, inode, size in bytes and modification time in ns, which a rename keeps; of an object, a hash of its tag."""


def identify_file(status: os.stat_result) -> FileIdentity:
    """Return the identity by which a file is recognised after a rename."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def identify_tag(tag: str) -> FileIdentity:
    """Return the identity of an object that an upload of this tag made, or will make."""
    return 0, xxhash.xxh3_64_intdigest(tag.encode()), 0, 0


def is_tagged(identity: FileIdentity) -> bool:
    """Tell whether an identity is that of an object which an upload of a job made."""
    return identity[0] == identity[2] == identity[3] == 0


def _identity(value: object) -> FileIdentity:
    device, inode, size_bytes, modified = map(int, value)  # type: ignore[call-overload]  # raises like all damage
    return device, inode, size_bytes, modified


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        msg = f"expected a path, got {value!r}"
        raise ValueError(msg)
    return value
