"""The formats of tables, and how to tell them by content."""

from __future__ import annotations

from typing import Literal, TypeAlias

TableFormat: TypeAlias = Literal["parquet", "arrow-file", "arrow-stream", "csv", "tsv"]

HEAD_BYTES = 8
"""Bytes at either end of a file that `detect_table` needs."""
PARQUET_MAGIC = b"PAR1"
ENCRYPTED_PARQUET_MAGIC = b"PARE"
ARROW_FILE_MAGIC = b"ARROW1"
CONTINUATION = b"\xff\xff\xff\xff"
"""The first bytes of every message of an Arrow stream."""


def detect_table(head: bytes, tail: bytes) -> TableFormat | None:
    r"""Tell the format of a table by its content; CSV and TSV are told by the file's name.

    A Parquet file that is encrypted, and a file that is cut off, are recognised too: reading them says what is wrong.

    Args:
        head: The first bytes of the file, at least HEAD_BYTES unless the file is shorter.
        tail: The last bytes of the file, likewise.

    >>> detect_table(b"PAR1\x15\x04\x15\x00", b"\x00\x00\x00\x00PAR1")
    'parquet'
    >>> detect_table(b'{"text":', b' "abc"}\n') is None
    True
    """
    if head.startswith((PARQUET_MAGIC, ENCRYPTED_PARQUET_MAGIC)):
        # 0x15 begins a page header or footer, which tells a Parquet file that is cut off from text.
        ends_well = tail.endswith((PARQUET_MAGIC, ENCRYPTED_PARQUET_MAGIC))
        return "parquet" if ends_well or head[4:5] == b"\x15" else None
    if head.startswith(ARROW_FILE_MAGIC + b"\0\0"):
        return "arrow-file"
    if head.startswith(CONTINUATION) and 0 < int.from_bytes(head[4:8], "little") < 2**31:
        return "arrow-stream"
    return None
