"""How an input stores its records: the compression around it, and the format inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dsindex.text.compressed import Container

Format = Literal["jsonl", "lines", "document", "csv", "tsv", "parquet", "arrow-file", "arrow-stream"]
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
TABLES: frozenset[Format] = frozenset({"csv", "tsv", "parquet", "arrow-file", "arrow-stream"})


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

    @property
    def input(self) -> str:
        """Path of the input, for messages."""
        return self.name or self.path
