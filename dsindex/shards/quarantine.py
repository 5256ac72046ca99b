"""Records that were set aside: `<prefix>.quarantine.jsonl.zst`, one JSON line each, in the order of the inputs.

    file     the input, as it was given
    offset   byte offset of the line in that input
    line     1-based line number in that input
    reason   what is wrong
    raw      the line itself, where it is UTF-8; else
    raw_base64

Lines longer than --max-record-size are cut there. Shards write the same uncompressed, with lines counted from 0 at the
range's start. The compressor gets chunks of a fixed size, so that the file does not depend on how the build was cut.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError, InputError
from dsindex.json_text import decode_json, encode_json
from dsindex.storage import ArrowSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.storage import DigestingWriter
    from dsindex.text.records import BadRecord

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardQuarantine:
    """The `.quarantine` of one shard and what its lines count from."""

    path: str
    file: str
    """The input as it was given."""
    first_line: int
    """1-based line number of the shard's first line in its input."""


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
    """Write what all shards set aside, in order, compressed; a line and a chunk in memory at a time.

    Raises:
        InputError: If a shard's file is gone.
        FormatError: If it is damaged.
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


def _renumbered(shard: ShardQuarantine) -> Iterator[bytes]:
    """Yield a shard's lines with the input's name as given and the line numbers of the whole input."""
    try:
        with open(shard.path, "rb") as file:
            for line in file:
                entry = decode_json(line)
                entry["file"] = shard.file
                entry["line"] += shard.first_line
                yield encode_json(entry, newline=True)
    except OSError as error:
        msg = f"{shard.path}: cannot be read ({error.strerror}); run the same command again: the shard is made again"
        raise InputError(msg) from error
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{shard.path}: expected lines of a quarantine ({error}); run the same command again: it is made again"
        raise FormatError(msg) from error
