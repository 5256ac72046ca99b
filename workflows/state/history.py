"""What a ledger says of the runs that wrote it: plans, partial files, what was about to be published.

Of the shards and ranges it is only known that there are some, so that a ledger of a million of them is read quickly.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import ValidationError

from dsindex.errors import FormatError
from dsindex.json_text import decode_json
from workflows.state.identity import is_plan

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ValidationError)
"""What an entry raises that has its checksum and is none of ours."""


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Return what a line says, if its checksum is right."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if checksum.decode("ascii", "replace") != xxhash.xxh3_64_hexdigest(body):
        return None
    try:
        entry = decode_json(body)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a ledger says of the runs that wrote it, without what each shard and range is."""

    plan: dict[str, Any] | None = None
    """Of the last run, as `Plan.to_json` wrote it; None where there is none that can be read."""
    keep: bool = False
    """The last run was to keep its work folder."""
    fresh: bool = False
    """The last run was to replace the output of another plan."""
    finished: bool = False
    """The last run published everything."""
    has_work: bool = False
    """Shards or ranges are committed."""
    partials: tuple[str, ...] = ()
    """Paths of partial files that runs began beside their outputs."""
    publishing: Mapping[str, frozenset[FileIdentity]] = field(default_factory=dict)
    """For each prefix whose files were about to get their final names: these files, and those that stood there."""
    obsolete: tuple[str, ...] = ()
    """Prefixes of datasets of an earlier plan that go when its successor is published."""


_WORK_BODIES = (b'{"kind":"shard"', b'{"kind":"range"')


def read_history(path: str) -> History:
    """Read what a ledger says of its runs, without touching it; nothing is an empty history.

    Raises:
        FormatError: If it cannot be read.
    """
    reader = HistoryReader()
    try:
        with open(path, "rb") as file:
            for line in file:
                reader.add(line)
    except FileNotFoundError:
        pass
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); mend that, or choose another --work-dir"
        raise FormatError(msg) from error
    return reader.history()


class HistoryReader:
    """Collects the history from the lines of a ledger, in order."""

    def __init__(self) -> None:
        self._run: dict[str, Any] = {}
        self._finished = self._has_work = False
        self._partials: dict[str, None] = {}
        self._publishing: dict[str, frozenset[FileIdentity]] = {}
        self._obsolete: dict[str, None] = {}

    def add(self, line: bytes) -> None:
        """Take the next line; a damaged one says nothing."""
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
                self._run = entry
                self._finished = False
        elif kind == "finished":
            self._finished = True
        elif kind == "partial":
            self._partials[_text(entry["path"])] = None
        elif kind == "publishing":
            files = frozenset(_identity(file) for file in entry["files"])
            prefix = _text(entry["prefix"])
            self._publishing[prefix] = self._publishing.get(prefix, frozenset()) | files
            self._obsolete |= dict.fromkeys(map(_text, entry["obsolete"]))

    def history(self) -> History:
        """Return what the lines so far say."""
        run = self._run
        return History(
            plan=run.get("plan"),
            keep=bool(run.get("keep")),
            fresh=bool(run.get("fresh")),
            finished=self._finished,
            has_work=self._has_work,
            partials=tuple(self._partials),
            publishing=dict(self._publishing),
            obsolete=tuple(self._obsolete),
        )


FileIdentity = tuple[int, int, int, int]
"""Device, inode, size in bytes and modification time in ns: a rename keeps them."""


def identify_file(status: os.stat_result) -> FileIdentity:
    """Return what a file is recognised by after it was renamed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _identity(value: object) -> FileIdentity:
    device, inode, size_bytes, modified = map(int, value)  # type: ignore[call-overload]  # raises like all damage
    return device, inode, size_bytes, modified


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        msg = f"expected a path, got {value!r}"
        raise ValueError(msg)
    return value
