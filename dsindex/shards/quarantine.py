"""Quarantined records: `<prefix>.quarantine.jsonl.zst`, one JSON line each, in the order of the inputs.

    file     the input, as it was given
    offset   byte offset of the line in that input's (unpacked) text; in a table, the row group
    line     1-based number of the line, or of the row, in that input
    reason   why it is bad
    raw      the line itself if it is UTF-8, otherwise
    raw_base64

Of a line longer than --max-record-size, the first bytes are stored: at most that many, and at most 1 MiB. Shards write
the same format uncompressed, with lines counted from 0 at the start of the range. The compressor gets chunks of a fixed
size, so the file does not depend on how the build was cut into shards.
"""

from __future__ import annotations

import base64
import contextlib
import io
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from dsindex.errors import FormatError, InputError
from dsindex.json_text import decode_json, encode_json
from dsindex.objects.urls import is_url
from dsindex.readable import open_readable
from dsindex.storage import ArrowSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.storage import DigestingWriter
    from dsindex.text.record_blocks import BadRecord

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardQuarantine:
    """The `.quarantine` of one shard, and the input and first line that its lines refer to."""

    path: str
    file: str
    """The path of the input as the user gave it."""
    first_line: int
    """1-based line number of the shard's first line in its input."""
    first_offset: int = 0
    """Offset of the shard's first line, if its records' offsets count from there."""


def quarantine_line(path: str, record: BadRecord) -> bytes:
    """Return one line of a shard's quarantine file."""
    entry: dict[str, Any] = {
        "file": path,
        "offset": record.offset,
        "line": record.line,
        "reason": record.reason,
    }
    try:
        entry["raw"] = record.line_bytes.decode("utf-8")
    except UnicodeDecodeError:
        entry["raw_base64"] = base64.b64encode(record.line_bytes).decode("ascii")
    return encode_json(entry, newline=True)


def write_quarantine(file: DigestingWriter, shards: Iterable[ShardQuarantine]) -> None:
    """Write the quarantined records of all shards, in order, compressed, with one line and one chunk in memory.

    Raises:
        InputError: If a shard's file is missing.
        FormatError: If a shard's file is damaged.
    """
    import pyarrow as pa

    compressor = pa.CompressedOutputStream(pa.PythonFile(ArrowSink(file), mode="w"), "zstd")
    with compressor:
        pending = bytearray()
        for shard in shards:
            for line in _renumbered(shard):
                pending += line
                while len(pending) >= CHUNK_BYTES:
                    compressor.write(bytes(pending[:CHUNK_BYTES]))
                    del pending[:CHUNK_BYTES]
        compressor.write(bytes(pending))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open a shard's file, or its object, which is about as large as the bad records of a shard."""
    if not is_url(path):
        with open(path, "rb") as file:
            yield file
        return
    with open_readable(path) as source:
        yield io.BytesIO(source.read_at(source.size_bytes, 0))


def _renumbered(shard: ShardQuarantine) -> Iterator[bytes]:
    """Yield a shard's lines with the input's path as given and line numbers that count from the start of the input."""
    try:
        with _opened(shard.path) as file:
            for line in file:
                entry = decode_json(line)
                entry["file"] = shard.file
                entry["line"] += shard.first_line
                entry["offset"] += shard.first_offset
                yield encode_json(entry, newline=True)
    except OSError as error:
        msg = f"{shard.path}: cannot be read ({error.strerror}); run the same command again to rebuild the shard"
        raise InputError(msg) from error
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{shard.path}: expected quarantined records ({error}); run the same command again to rebuild the shard"
        raise FormatError(msg) from error
