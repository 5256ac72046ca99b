"""Read CSV and TSV with pyarrow: a header row, then records of strings, whose cells in quotes may have newlines.

pyarrow has limits, around which `read_csv_rows` works by reading the file again, up to where it was:

- No row may be larger than a block. Blocks grow if one is.
- A wrong row that is not UTF-8 cannot be reported. Such a file is read as Latin-1, and its cells are encoded back.
- A quote that is never closed takes the rest of the file. So a row with a cell too many is added at the end: if it is
  not reported as wrong, it is inside quotes.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.text.tables.csv_content import BOM, CsvContent, NotUtf8Error, read_up_to
from dsindex.text.tables.files import errors_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow.csv as pa_csv

    from dsindex.text.tables.csv_content import Source
    from dsindex.text.tables.formats import TableFormat

DELIMITERS = {"csv": ",", "tsv": "\t"}
_HEADER_BYTES = 1 << 20
"""Largest header row."""
MOST_COLUMNS = 1 << 14
"""As many as a spreadsheet has; pyarrow takes 10 KiB for each."""
_BLOCK_BYTES = 4 << 20
_UNSEEKABLE_BLOCK_BYTES = 64 << 20
"""Size of a block, and so of the largest row, of a source that cannot be read again."""
_LARGEST_BLOCK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRows:
    """Consecutive rows that have all their cells."""

    rows: pa.RecordBatch
    """Large strings, whose encoding is not checked."""
    first_row: int
    """Number of the first row, counted from 0 after the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRow:
    """A row with another number of cells than the header."""

    row: int
    """Number of the row, counted from 0 after the header."""
    text: bytes
    """The row as stored."""
    num_cells: int
    num_columns: int

    @property
    def reason(self) -> str:
        """Return why the row is bad."""
        return f"expected {self.num_columns} cells, one for each column, got {self.num_cells}"


def read_csv_schema(path: str, source: Source, format: TableFormat) -> pa.Schema:
    """Return the columns that the header row names, as strings.

    Args:
        path: The file, for messages.
        source: Its content, at the start; left at another position.
        format: csv or tsv.

    Raises:
        InputError: If there is no header, or it is larger than 1 MiB.
    """
    with errors_named(path, "a table that can be read"):
        head = read_up_to(source, _HEADER_BYTES)
    return _read_schema(path, head, format)


def read_csv_rows(
    path: str, source: Source, *, format: TableFormat, choose: Callable[[pa.Schema], Sequence[str]]
) -> Iterator[CsvRows | WrongRow]:
    """Yield all rows, in order; blank lines are no rows. An empty cell is an empty string.

    Args:
        path: The file, for messages.
        source: Its content, at position 0. If it is not seekable, a row has at most 64 MiB, and all must be UTF-8.
        format: csv or tsv.
        choose: Returns the names of the wanted columns, out of all columns.

    Raises:
        InputError: If the file cannot be read, has a row of more than 256 MiB, or ends inside quotes.
    """
    with errors_named(path, "a table that can be read"):
        head = read_up_to(source, _HEADER_BYTES)
    schema = _read_schema(path, head, format)
    can_restart = source.seekable()
    block_bytes = _BLOCK_BYTES if can_restart else _UNSEEKABLE_BLOCK_BYTES
    largest = _LARGEST_BLOCK_BYTES if can_restart else _UNSEEKABLE_BLOCK_BYTES
    reading = _Reading(path=path, format=format, names=list(choose(schema)), num_columns=len(schema))
    end = f"\n{DELIMITERS[format] * len(schema)}\n".encode()
    is_utf8 = True
    content = CsvContent(source, head, end=end, is_utf8=is_utf8)
    while True:
        try:
            yield from reading.rows(content, block_bytes)
        except NotUtf8Error as error:
            if not can_restart:
                msg = f"{path}: expected UTF-8, got bytes that are not after row {reading.row}; decompress it first"
                raise InputError(msg) from error
            is_utf8 = False
        except _RowTooLargeError as error:
            block_bytes *= 4
            if block_bytes > largest:
                msg = (
                    f"{path}: expected rows of at most {largest >> 20} MiB, got a larger one after row {reading.row}; "
                    "a quote may be left open there"
                )
                raise InputError(msg) from error
        else:
            return
        with errors_named(path, "a table that can be read again"):
            source.seek(0)
        content = CsvContent(source, b"", end=end, is_utf8=is_utf8)


class _RowTooLargeError(Exception):
    """A row is larger than a block."""


@dataclass(slots=True, kw_only=True)
class _Reading:
    """The state of one reading of a file, which starts from the beginning more than once."""

    path: str
    format: TableFormat
    names: list[str]
    num_columns: int
    row: int = 0
    """Number of rows yielded so far."""
    wrong: deque[WrongRow] = field(default_factory=deque)
    """Wrong rows that were found and not passed yet."""

    def rows(self, content: CsvContent, block_bytes: int) -> Iterator[CsvRows | WrongRow]:
        """Yield the rows after those that were yielded before."""
        self.wrong = deque()  # the reader before may still add to its own
        row = 0
        for batch in self.batches(content, block_bytes):
            done = 0
            # The last wrong row may be the one that was added at the end.
            while done < batch.num_rows or (len(self.wrong) > 1 and self.wrong[0].row == row):
                if self.wrong and self.wrong[0].row == row:
                    yield from self.unless_passed(self.wrong.popleft())
                    row += 1
                else:
                    until_wrong = self.wrong[0].row - row if self.wrong else batch.num_rows
                    num_rows = min(batch.num_rows - done, until_wrong)
                    passed = min(num_rows, max(0, self.row - row))
                    if num_rows > passed:
                        rows = batch.slice(done + passed, num_rows - passed)
                        yield CsvRows(rows=rows, first_row=row + passed)
                    done, row = done + num_rows, row + num_rows
                self.row = max(self.row, row)
        while len(self.wrong) > 1:
            yield from self.unless_passed(self.wrong.popleft())
            row += 1
            self.row = max(self.row, row)
        if not self.wrong or (self.wrong[0].row, self.wrong[0].num_cells) != (row, self.num_columns + 1):
            msg = (
                f"{self.path}: expected a table that ends outside quotes, got a quote that is still open at its end, "
                f"after {row:,} rows or in one of them; it may be cut off, fetch it again"
            )
            raise InputError(msg)

    def unless_passed(self, wrong: WrongRow) -> Iterator[WrongRow]:
        if wrong.row >= self.row:
            yield wrong

    def batches(self, content: CsvContent, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as pyarrow reads them, as large strings."""
        import pyarrow.csv as pa_csv

        names = self.names if content.is_utf8 else [name.encode("utf-8").decode("latin1") for name in self.names]
        opened = None
        try:
            while True:
                with self.errors(content):
                    if opened is None:
                        opened = pa_csv.open_csv(
                            pa.PythonFile(content, mode="r"),
                            read_options=pa_csv.ReadOptions(use_threads=False, block_size=block_bytes),
                            parse_options=_parse_options(self.format, self.handler(content)),
                            convert_options=pa_csv.ConvertOptions(
                                include_columns=names,
                                column_types=dict.fromkeys(names, pa.large_string()),
                                check_utf8=False,
                                strings_can_be_null=False,
                            ),
                        )
                    batch = next(opened, None)
                if batch is None:
                    return
                yield batch if content.is_utf8 else _from_latin1(batch, self.names)
        finally:
            content.stop()
            with suppress(pa.ArrowException, OSError, InputError, NotUtf8Error):
                while opened is not None and next(opened, None) is not None:
                    pass
            content.wait()

    @contextmanager
    def errors(self, content: CsvContent) -> Iterator[None]:
        """Tell errors that another reading avoids from those of the file."""
        with errors_named(self.path, f"a table of {self.num_columns} columns"):
            try:
                yield
            except Exception as error:
                if content.error is not None:
                    raise content.error from error
                if isinstance(error, pa.ArrowInvalid) and "straddl" in str(error):
                    raise _RowTooLargeError from error
                raise

    def handler(self, content: CsvContent) -> Callable[[pa_csv.InvalidRow], str]:
        """Return what notes a wrong row, and tells pyarrow to go on."""
        wrong = self.wrong

        def set_aside(row: pa_csv.InvalidRow) -> str:
            text = row.text.encode("utf-8" if content.is_utf8 else "latin1")
            number = row.number - 2  # counted from 1, with the header
            wrong.append(WrongRow(row=number, text=text, num_cells=row.actual_columns, num_columns=self.num_columns))
            return "skip"

        return set_aside


def _read_schema(path: str, head: bytes, format: TableFormat) -> pa.Schema:
    import pyarrow.csv as pa_csv

    if not _has_few_cells(head.removeprefix(BOM).lstrip(b"\r\n"), DELIMITERS[format]):
        msg = (
            f"{path}: expected at most {MOST_COLUMNS:,} columns, got more in the header row; check that it is {format}"
        )
        raise InputError(msg)
    with errors_named(path, "a header row with the names of the columns"):
        # Whatever is in the rows can be read as Latin-1. A row without a line end would not be complete for pyarrow.
        text = (head.removeprefix(BOM) + b"\n").decode("latin1").encode("utf-8")
        opened = pa_csv.open_csv(
            pa.BufferReader(text),  # a file of Python's own would be read by a thread
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=_parse_options(format, lambda _: "skip"),
        )
        names = [name.encode("latin1").decode("utf-8") for name in opened.schema.names]
        return pa.schema([(name, pa.large_string()) for name in names])


def _has_few_cells(row: bytes, delimiter: str) -> bool:
    """Tell whether the row at the start of some bytes has MOST_COLUMNS cells or less."""
    mark = delimiter.encode()
    cell = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"?)?[^\r\n%b]*' % mark)
    position = 0
    for _ in range(MOST_COLUMNS):
        found = cell.match(row, position)
        position = len(row) if found is None else found.end()
        if row[position : position + 1] != mark:
            return True
        position += 1
    return False


def _parse_options(format: TableFormat, handler: Callable[[pa_csv.InvalidRow], str]) -> pa_csv.ParseOptions:
    import pyarrow.csv as pa_csv

    return pa_csv.ParseOptions(delimiter=DELIMITERS[format], newlines_in_values=True, invalid_row_handler=handler)


def _from_latin1(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return the cells with the bytes that they have in the file, under the columns' names."""
    columns = []
    for column in batch.columns:
        cells = pa.array([cell.encode("latin1") for cell in column.to_pylist()], pa.large_binary())
        columns.append(cells.view(pa.large_string()))
    return pa.RecordBatch.from_arrays(columns, names)
