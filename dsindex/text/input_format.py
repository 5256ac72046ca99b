"""How an input stores its records: its compression and its format; tables are detected from the content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dsindex.errors import InputError
from dsindex.store.local import InputStatus
from dsindex.text.compressed import HEAD_BYTES, SUFFIXES, detect_container, require_supported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.store.local import Readable
    from dsindex.text.compressed import Container

TableFormat: TypeAlias = Literal["parquet", "arrow-file", "arrow-stream"]
Format: TypeAlias = Literal["jsonl", "lines", "document"] | TableFormat
"""JSON lines; plain text with a document per line or per file; tables."""
InputFormat: TypeAlias = Literal["auto", "jsonl", "lines", "document"]
"""The formats that a user can choose; Parquet and Arrow are detected from the content."""
Columns: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Name of each wanted column → names of the fields that lead to it in the table's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputForm:
    """Compression and format of an input."""

    container: Container = "plain"
    format: Format = "jsonl"

    @property
    def is_table(self) -> bool:
        """Whether the records are rows of a table."""
        return self.format in TABLES

    @property
    def can_seek(self) -> bool:
        """Whether the input can be split at any byte."""
        return self.container == "plain" and self.format in ("jsonl", "lines")


JSON_LINES = InputForm()
TABLES: frozenset[Format] = frozenset({"parquet", "arrow-file", "arrow-stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart(InputStatus):
    """A part of a file that can be read independently: the lines that begin in it, or a range of row groups."""

    form: InputForm = JSON_LINES
    begin: int = 0
    """First byte of the part; in a table, the first row group. A compressed file has one part."""
    end: int
    stored_bytes: int = 0
    """Size of the part in the file, or of its first records if only those are read."""
    text_bytes: int = 0
    """Size of the part's text, estimated if it is compressed; for a table, the size of the wanted columns."""

    @classmethod
    def of_file(cls, file: InputStatus, form: InputForm = JSON_LINES) -> TextPart:
        """Return a part with all bytes of a file."""
        size = file.size_bytes
        return cls(path=file.path, size_bytes=size, version=file.version, form=form, end=size, stored_bytes=size)


_TAIL_BYTES = 8
_PARQUET = (b"PAR1", b"PARE")
"""Magic bytes of Parquet, plain and encrypted. An encrypted file is refused when it is opened, with the reason."""
_OTHER_SUFFIXES = {
    ".txt": "choose --input-format lines (each line is a document) or --input-format document (each file is one)",
    **dict.fromkeys((".csv", ".tsv", ".orc", ".avro", ".npy", ".pkl", ".h5", ".tfrecord"), "write it as Parquet"),
    **dict.fromkeys((".warc", ".wet", ".wat", ".xml", ".html"), "write its texts as JSON lines"),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".br", ".lzo", ".z"), "unpack it, or fetch it again"),
}
"""Suffix of a file that is neither JSON lines nor a table → hint."""


def detect_form(file: Readable, *, shown_as: str, input_format: InputFormat = "auto") -> InputForm:
    """Detect the compression of a file, and its format if it is a table; any other file has the wanted format.

    Args:
        file: The file or the object.
        shown_as: The file's name in messages.
        input_format: The format of a file that is not a table.

    Raises:
        InputError: If the format is not supported, or does not match the suffix.
        OSError: If the file cannot be read.
    """
    head = file.read_at(HEAD_BYTES, 0)
    container = detect_container(head)
    require_supported(shown_as, head, container)
    table = _detect_table(file, head) if container == "plain" else None
    if table is not None:
        return InputForm(format=table)
    stem, suffix = os.path.splitext(shown_as.lower())
    if suffix in SUFFIXES:
        suffix = os.path.splitext(stem)[1]
    if input_format == "auto" and suffix in _OTHER_SUFFIXES:
        raise InputError(f"{shown_as}: not JSON lines, Parquet or Arrow", hint=_OTHER_SUFFIXES[suffix])
    form = InputForm(container=container, format="jsonl" if input_format == "auto" else input_format)
    return JSON_LINES if form == JSON_LINES else form


def _detect_table(file: Readable, head: bytes) -> TableFormat | None:
    """Return the format of a table, even if it is truncated, so that reading it reports why; None for other files."""
    if head.startswith(_PARQUET):
        # Text may begin with PAR1, too; in a truncated Parquet file, the next byte begins a page header: 0x15.
        tail = file.read_at(_TAIL_BYTES, max(0, file.size_bytes - _TAIL_BYTES))
        return "parquet" if tail.endswith(_PARQUET) or head[4:5] == b"\x15" else None
    if head.startswith(b"ARROW1\0\0"):
        return "arrow-file"
    if head.startswith(b"\xff\xff\xff\xff") and 0 < int.from_bytes(head[4:8], "little") < 2**31:
        return "arrow-stream"
    return None
