"""How an input stores its records: the compression around it, and the format inside; tables are told by content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dsindex.errors import InputError
from dsindex.store.storage import InputStatus
from dsindex.store.store import store_of
from dsindex.text.compressed import HEAD_BYTES, SUFFIXES, detect_container, require_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.store.storage import Readable
    from dsindex.text.compressed import Container

TableFormat: TypeAlias = Literal["parquet", "arrow-file", "arrow-stream"]
Format: TypeAlias = Literal["jsonl", "lines", "document"] | TableFormat
"""JSON lines; plain text with a document per line or per file; tables."""
InputFormat: TypeAlias = Literal["auto", "jsonl", "lines", "document"]
"""The formats that can be asked for; Parquet and Arrow are told by content."""
Columns: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Names of the fields that lead to each wanted column of a table, by its name."""


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


JSON_LINES = InputForm()
TABLES: frozenset[Format] = frozenset({"parquet", "arrow-file", "arrow-stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart(InputStatus):
    """A part of a file as it was looked at, which is read by itself: the lines that begin in it, or some row groups."""

    form: InputForm = JSON_LINES
    begin: int = 0
    """First byte of the part; in a table, the first row group. A compressed file has one part."""
    end: int
    stored_bytes: int = 0
    """Size of the part in the file, or of the first records that are wanted of it."""
    text_bytes: int = 0
    """Size of its text, which is an estimate if it is compressed; of a table, of the wanted columns."""

    @classmethod
    def of(cls, file: InputStatus, form: InputForm = JSON_LINES) -> TextPart:
        """Return the whole of a file, by its bytes."""
        size = file.size_bytes
        return cls(path=file.path, size_bytes=size, version=file.version, form=form, end=size, stored_bytes=size)


_TAIL_BYTES = 8
_PARQUET = (b"PAR1", b"PARE")
"""Plain and encrypted; reading the latter says what is wrong."""
_TABLE_SUFFIXES = {".parquet", ".arrow", ".feather"}


def detect_form(
    path: str, *, shown_as: str, wanted: InputFormat = "auto", known: InputStatus | None = None
) -> InputForm:
    """Return the form of a file: compression and tables by content, else the format that is wanted, or JSON lines.

    Args:
        path: The file or the object.
        shown_as: Its name, for messages.
        wanted: The format of what is no table.
        known: What is known of an object, to spare a request.

    Raises:
        InputError: If it is of a kind that is not supported, or its name promises another.
        OSError: If it cannot be read.
    """
    with store_of(path).open(path, known) as file:
        head = file.read_at(HEAD_BYTES, 0)
        container = detect_container(head)
        require_known(shown_as, head, container)
        table = _detect_table(file, head) if container == "plain" else None
    if table is not None:
        return InputForm(format=table)
    if wanted == "auto":
        _require_jsonl(shown_as, container)
        wanted = "jsonl"
    return JSON_LINES if (container, wanted) == ("plain", "jsonl") else InputForm(container=container, format=wanted)


def _detect_table(file: Readable, head: bytes) -> TableFormat | None:
    """Tell the format of a table by its content, also of one that is cut off: reading it says what is wrong."""
    if head.startswith(_PARQUET):
        # 0x15 begins a page header or footer, which tells a Parquet file that is cut off from text.
        tail = file.read_at(_TAIL_BYTES, max(0, file.size_bytes - _TAIL_BYTES))
        return "parquet" if tail.endswith(_PARQUET) or head[4:5] == b"\x15" else None
    if head.startswith(b"ARROW1\0\0"):
        return "arrow-file"
    if head.startswith(b"\xff\xff\xff\xff") and 0 < int.from_bytes(head[4:8], "little") < 2**31:
        return "arrow-stream"
    return None


def _require_jsonl(name: str, container: Container) -> None:
    """Check that the name of a file of lines promises nothing else.

    Raises:
        InputError: If the format must be asked for, or the name promises a table that the file is not.
    """
    stem, suffix = os.path.splitext(name.lower())
    if suffix in SUFFIXES:
        suffix = os.path.splitext(stem)[1]
    if suffix in _TABLE_SUFFIXES:
        got = "other data" if container == "plain" else f"{container} data"
        msg = f"{name}: expected a Parquet or Arrow file as its name says, got {got}; unpack it, or fetch it again"
        raise InputError(msg)
    if suffix == ".txt":
        raise InputError(
            f"{name}: expected to know what a document of plain text is; choose --input-format lines (each line is "
            f"one) or --input-format document (each file is one)"
        )
    if suffix in {".csv", ".tsv"}:
        raise InputError(f"{name}: expected JSON lines, Parquet or Arrow, got {suffix}; write it as Parquet")
