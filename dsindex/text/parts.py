"""Read a part of an input of any form: as blocks of records, or as lines of JSON."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from dsindex.text.byte_sources import SourceFile, open_source
from dsindex.text.lines import read_lines
from dsindex.text.plain_text import read_text_file, read_text_lines
from dsindex.text.records import DEFAULT_BLOCK_BYTES, parse_all, read_records
from dsindex.text.wanted_texts import WantedTexts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from dsindex.text.forms import TextPart
    from dsindex.text.lines import LineBlock, LongLine
    from dsindex.text.patterns import TextPattern
    from dsindex.text.record_blocks import RecordBlock
    from dsindex.text.selection import Selection
    from dsindex.text.tables.formats import TableFormat


LARGEST_RECORD_BYTES = 2 << 30
"""Limit on a record if none is given, so that a file that unpacks to one endless line does not take all memory."""


def read_part(
    part: TextPart,
    *,
    keys: Sequence[str],
    pattern: TextPattern | None = None,
    selection: Selection | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records of a part, as `read_records` reads those of JSON lines.

    Rows of tables are records whose keys are the columns; a document of plain text has the key `text`.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged, or does not have the wanted columns.
        RecordLimitError: At the first record for which a jq program takes too much time or memory.
        ValueError: If the part or the options are invalid.
    """
    max_record_bytes = LARGEST_RECORD_BYTES if max_record_bytes is None else max_record_bytes
    if part.form.format == "jsonl":
        return read_records(
            part,
            keys=keys,
            pattern=pattern,
            selection=selection,
            block_bytes=block_bytes,
            max_record_bytes=max_record_bytes,
        )
    names = tuple(keys) if selection is None else selection.names
    wanted = WantedTexts(path=part.input, begin=part.begin, keys=names, pattern=pattern, selection=selection)
    if part.form.is_table and wanted.vocabulary_size is None and wanted.paths is not None:
        return _read_columns(part, wanted, block_bytes=block_bytes, max_record_bytes=max_record_bytes)
    if part.form.format in {"parquet", "arrow-file", "arrow-stream"} and wanted.paths is not None:
        # Token ids: of the table, only the column that leads to them becomes lines.
        columns = {path[0]: path[:1] for path in wanted.paths.values()}
        return parse_all(_read_rows(part, block_bytes=block_bytes, columns=columns), wanted, max_record_bytes)
    lines = read_part_lines(part, block_bytes=block_bytes, max_line_bytes=max_record_bytes)
    return parse_all(lines, wanted, max_record_bytes)


def read_part_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Read the records of a part as lines of JSON, as `read_lines` reads them.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged.
    """
    max_line_bytes = LARGEST_RECORD_BYTES if max_line_bytes is None else max_line_bytes
    if part.form.format == "jsonl":
        return read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    if part.form.format == "lines":
        return read_text_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    if part.form.format == "document":
        return read_text_file(part, max_line_bytes=max_line_bytes)
    return _read_rows(part, block_bytes=block_bytes)


def _read_columns(
    part: TextPart, wanted: WantedTexts, *, block_bytes: int, max_record_bytes: int | None
) -> Iterator[RecordBlock]:
    from dsindex.text.tables.records import read_table_records  # loads more of pyarrow

    with _unpacked(part) as source:
        for block in read_table_records(
            part.path,
            part.begin,
            part.end,
            format=cast("TableFormat", part.form.format),
            columns=wanted.paths or {},
            block_bytes=block_bytes,
            max_record_bytes=max_record_bytes,
            expected_size=part.expected_size,
            source=source,
        ):
            yield wanted.finish(block)


def _read_rows(
    part: TextPart, *, block_bytes: int, columns: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[LineBlock]:
    from dsindex.text.tables.lines import read_table_lines

    with _unpacked(part) as source:
        yield from read_table_lines(
            part.path,
            part.begin,
            part.end,
            format=cast("TableFormat", part.form.format),
            columns=columns,
            block_bytes=block_bytes,
            expected_size=part.expected_size,
            source=source,
        )


@contextlib.contextmanager
def _unpacked(part: TextPart) -> Iterator[BinaryIO | None]:
    """Open a table that is compressed as a whole, such as `.csv.gz`; None for one that is not."""
    if part.form.container == "plain":
        yield None
        return
    with open_source(part) as (source, _):
        yield cast("BinaryIO", SourceFile(source))
