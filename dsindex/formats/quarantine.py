"""Quarantined records: `<prefix>.quarantine.jsonl.zst`, one JSON line each, in the order of the inputs.

    file     the input, as it was given
    offset   byte offset of the line in that input's (unpacked) text; in a table, the row group
    line     1-based number of the line, or of the row, in that input
    reason   why it is bad
    raw      the line, if it is UTF-8; otherwise raw_base64, the line in Base64

A line longer than --max-record-size is truncated to that size, and to at most 1 MiB.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import TYPE_CHECKING, Any

from dsindex.store.protocol import store_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.store.local import DigestingWriter

QUARANTINE_SUFFIX = "quarantine.jsonl.zst"
_CHUNK_BYTES = 1 << 20
"""Bytes compressed at a time, so that the file does not depend on how the build was cut into shards."""


def quarantine_entry(file: int, offset: int, line: int, reason: str, raw: bytes) -> dict[str, Any]:
    """Return the entry of a bad record, with file and line still counted from the start of its shard."""
    entry: dict[str, Any] = {"file": file, "offset": offset, "line": line, "reason": reason}
    try:
        return entry | {"raw": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return entry | {"raw_base64": base64.b64encode(raw).decode("ascii")}


def write_quarantine(file: DigestingWriter, lines: Iterable[bytes]) -> None:
    """Compress encoded entries, each of which ends with a newline; memory holds an entry and a chunk."""
    import pyarrow as pa

    with pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), "zstd") as compressor:
        pending = bytearray()
        for line in lines:
            pending += line
            while len(pending) >= _CHUNK_BYTES:
                compressor.write(bytes(pending[:_CHUNK_BYTES]))
                del pending[:_CHUNK_BYTES]
        compressor.write(bytes(pending))


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecords:
    """Bad records of one input with the same kind of reason."""

    file: str
    reason: str
    """The reason of the first record."""
    line: int
    number: int = 1


def group_bad_records(records: Iterable[BadRecords]) -> tuple[BadRecords, ...]:
    """Add up bad records of the same input and reason, the most frequent first.

    Reasons are the same if they only differ in quoted names and numbers.
    """
    groups: dict[tuple[str, str], BadRecords] = {}
    for record in records:
        key = (record.file, re.sub(r"'[^']*'|\d+", "", record.reason))
        group = groups.get(key)
        groups[key] = record if group is None else replace(group, number=group.number + record.number)
    return tuple(sorted(groups.values(), key=lambda group: -group.number))


def summarize_quarantines(paths: Iterable[str]) -> tuple[BadRecords, ...]:
    """Group the bad records of quarantine files, reading at most a million of each file."""
    return group_bad_records(record for path in paths for record in _read_quarantine(path))


def _read_quarantine(path: str) -> Iterator[BadRecords]:
    import pyarrow as pa

    with store_of(path).open(path) as file, pa.input_stream(pa.PythonFile(file, "r"), compression="zstd") as stream:
        for entry in map(json.loads, itertools.islice(BufferedReader(stream), 1_000_000)):
            yield BadRecords(file=entry["file"], reason=entry["reason"], line=entry["line"])
