"""How an input stores its records: the compression around it, and the format inside; tables are told by content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dsindex.store.storage import InputStatus

if TYPE_CHECKING:
    from dsindex.text.compressed import Container

TableFormat: TypeAlias = Literal["parquet", "arrow-file", "arrow-stream"]
Format: TypeAlias = Literal["jsonl", "lines", "document"] | TableFormat
"""JSON lines; plain text with a document per line or per file; tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputForm:
    """Compression and format of an input."""

    container: Container = "plain"
    format: Format = "jsonl"

    @property
    def is_table(self) -> bool:
        """Whether its records are rows."""
        return self.format in TABLES

    @property
    def can_seek(self) -> bool:
        """Whether it can be cut anywhere, by bytes."""
        return self.container == "plain" and self.format in ("jsonl", "lines")

    @property
    def has_absolute_offsets(self) -> bool:
        """Whether a part of the input knows its records' offsets; otherwise they count from its first line."""
        return self.container == "plain" or self.is_table


JSON_LINES = InputForm()
TABLES: frozenset[Format] = frozenset({"parquet", "arrow-file", "arrow-stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A part of a file that is read by itself."""

    path: str
    begin: int
    """First byte of the part; in a compressed file, where a member begins; in a table, the first row group."""
    end: int
    form: InputForm = JSON_LINES
    expected_size: int | None = None
    """Size of the file in bytes when the job was planned."""
    is_file_start: bool = True
    """Whether its first line is the first of the input, where alone a BOM is skipped."""
    name: str | None = None
    """Path of the input, if `path` holds text that was unpacked from it."""
    is_sample: bool = False
    """Whether only its first records are read, so that a store is asked for no range ahead of its reader."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            raise ValueError(f"expected a range with 0 <= begin <= end, got [{self.begin}, {self.end})")

    @property
    def input(self) -> str:
        """Path of the input, for messages."""
        return self.name or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFile(InputStatus):
    """An input as it was when the job was planned, which is read as a whole, together with others."""

    form: InputForm = JSON_LINES
    end: int = 0
    """Where its only part ends: in bytes, or in row groups."""

    @property
    def part(self) -> TextPart:
        """All of it."""
        return TextPart(path=self.path, begin=0, end=self.end, form=self.form, expected_size=self.size_bytes)


HEAD_BYTES = 8
"""Bytes at either end of a file that `detect_table` needs."""
PARQUET_MAGIC = b"PAR1"
ENCRYPTED_PARQUET_MAGIC = b"PARE"
ARROW_FILE_MAGIC = b"ARROW1"
CONTINUATION = b"\xff\xff\xff\xff"
"""The first bytes of every message of an Arrow stream."""


def detect_table(head: bytes, tail: bytes) -> TableFormat | None:
    r"""Tell the format of a table by its content.

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
