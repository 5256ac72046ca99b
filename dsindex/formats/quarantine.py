"""Quarantined records: `<prefix>.quarantine.jsonl.zst`, one JSON line each, in the order of the inputs.

    file     the input, as it was given
    offset   byte offset of the line in that input's (unpacked) text; in a table, the row group
    line     1-based number of the line, or of the row, in that input
    reason   why it is bad
    raw      the line itself if it is UTF-8, otherwise
    raw_base64

Of a line longer than --max-record-size, the first bytes are stored: at most that many, and at most 1 MiB.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsindex.store.local import DigestingWriter

QUARANTINE_SUFFIX = "quarantine.jsonl.zst"
_CHUNK_BYTES = 1 << 20
"""What the compressor gets at once, so that the file does not depend on how the build was cut into shards."""


def quarantine_entry(file: int, offset: int, line: int, reason: str, raw: bytes) -> dict[str, Any]:
    """Return the entry of a bad record, whose file and line still count from those of its shard."""
    entry: dict[str, Any] = {"file": file, "offset": offset, "line": line, "reason": reason}
    try:
        return entry | {"raw": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return entry | {"raw_base64": base64.b64encode(raw).decode("ascii")}


def write_quarantine(file: DigestingWriter, lines: Iterable[bytes]) -> None:
    """Compress encoded entries, each of which ends with a newline, with a line and a chunk in memory."""
    import pyarrow as pa

    with pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), "zstd") as compressor:
        pending = bytearray()
        for line in lines:
            pending += line
            while len(pending) >= _CHUNK_BYTES:
                compressor.write(bytes(pending[:_CHUNK_BYTES]))
                del pending[:_CHUNK_BYTES]
        compressor.write(bytes(pending))
