"""Read CSV and TSV in UTF-8 with pyarrow: a header row, then records of strings; cells in quotes may have newlines.

pyarrow has limits, around which this works:

- No row may be larger than a block. If one is, the file is read again, up to where it was, with larger blocks.
- A quote that is never closed takes the rest of the file. So a row with a cell too many is added at the end: if it is
  not reported as wrong, it is inside quotes.
- It does not say where a byte is that is not UTF-8. So all bytes are checked on their way to it.
"""

from __future__ import annotations

import codecs
import csv
import io
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.text.tables.files import errors_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow.csv as pa_csv

    from dsindex.text.forms import TableFormat
    from dsindex.text.streams import SourceFile
    from dsindex.text.tables.files import TableFile

    Source: TypeAlias = TableFile | SourceFile
    """The content of a file; it can be read again if it is seekable, and one that is decoded is not."""

DELIMITERS = {"csv": ",", "tsv": "\t"}
_BOM = b"\xef\xbb\xbf"
_HEADER_BYTES = 1 << 20
"""Largest header row."""
MOST_COLUMNS = 1 << 14
"""As many as a spreadsheet has; pyarrow takes 10 KiB for each."""
_BLOCK_BYTES = 4 << 20
_UNSEEKABLE_BLOCK_BYTES = 64 << 20
"""Size of a block, and so of the largest row, of a source that cannot be read again."""
_LARGEST_BLOCK_BYTES = 256 << 20
_WAIT_SECONDS = 0.2
_LEAVE_SECONDS = 0.01
"""Time for pyarrow's thread to return from the last call."""


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


def read_csv_rows(
    path: str, source: Source, *, format: TableFormat, choose: Callable[[pa.Schema], Sequence[str]]
) -> Iterator[CsvRows | WrongRow]:
    """Yield all rows, in order; blank lines are no rows. An empty cell is an empty string.

    Args:
        path: The file, for messages.
        source: Its content, at position 0. If it is not seekable, a row has at most 64 MiB.
        format: csv or tsv.
        choose: Returns the names of the wanted columns, out of all columns.

    Raises:
        InputError: If the file cannot be read, is not UTF-8, has a row of more than 256 MiB, or ends inside quotes.
    """
    head, schema = read_header(path, source, format)
    can_restart = source.seekable()
    block_bytes = _BLOCK_BYTES if can_restart else _UNSEEKABLE_BLOCK_BYTES
    largest = _LARGEST_BLOCK_BYTES if can_restart else _UNSEEKABLE_BLOCK_BYTES
    reading = _Reading(path=path, format=format, names=list(choose(schema)), num_columns=len(schema))
    end = f"\n{DELIMITERS[format] * len(schema)}\n".encode()
    while True:
        try:
            yield from reading.rows(_Content(path, source, head, end), block_bytes)
        except _RowTooLargeError as error:
            block_bytes *= 4
            if block_bytes > largest:
                raise InputError(
                    f"{path}: expected rows of at most {largest >> 20} MiB, got a larger one after row {reading.row}; "
                    "a quote may be left open there"
                ) from error
        else:
            return
        with errors_named(path, "a table that can be read again"):
            source.seek(0)
            head = _read_up_to(source, _HEADER_BYTES)


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

    def rows(self, content: _Content, block_bytes: int) -> Iterator[CsvRows | WrongRow]:
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
            raise InputError(
                f"{self.path}: expected a table that ends outside quotes, got a quote that is still open at its end, "
                f"after {row:,} rows or in one of them; it may be cut off, fetch it again"
            )

    def unless_passed(self, wrong: WrongRow) -> Iterator[WrongRow]:
        if wrong.row >= self.row:
            yield wrong

    def batches(self, content: _Content, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows as pyarrow reads them, as large strings."""
        import pyarrow.csv as pa_csv

        wrong = self.wrong

        def set_aside(row: pa_csv.InvalidRow) -> str:
            number = row.number - 2  # counted from 1, with the header
            cells, columns = row.actual_columns, self.num_columns
            wrong.append(WrongRow(row=number, text=row.text.encode(), num_cells=cells, num_columns=columns))
            return "skip"

        opened = None
        try:
            while True:
                with errors_named(self.path, f"a table of {self.num_columns} columns"):
                    try:
                        opened = opened or pa_csv.open_csv(
                            pa.PythonFile(content, mode="r"),
                            read_options=pa_csv.ReadOptions(use_threads=False, block_size=block_bytes),
                            parse_options=pa_csv.ParseOptions(
                                delimiter=DELIMITERS[self.format],
                                newlines_in_values=True,
                                invalid_row_handler=set_aside,
                            ),
                            convert_options=pa_csv.ConvertOptions(
                                include_columns=self.names,
                                column_types=dict.fromkeys(self.names, pa.large_string()),
                                check_utf8=False,
                                strings_can_be_null=False,
                            ),
                        )
                        batch = next(opened, None)
                    except pa.ArrowInvalid as error:
                        if "straddl" in str(error):
                            raise _RowTooLargeError from error
                        raise
                if batch is None:
                    return
                yield batch
        finally:
            content.stop()
            with suppress(pa.ArrowException, OSError, InputError):
                while opened is not None and next(opened, None) is not None:
                    pass
            content.wait()


class _Content:
    """The content as pyarrow reads it in a thread: without a BOM, known to be UTF-8, and with a row added at the end.

    No block ends with a carriage return.
    """

    def __init__(self, path: str, source: Source, head: bytes, end: bytes) -> None:
        self.closed = False
        self._path = path
        self._source = source
        self._pending = head.removeprefix(_BOM)
        self._end = end
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._num_lines = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_stopped = False

    def read(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes` bytes; pyarrow calls this in a thread of its own.

        Raises:
            InputError: If the content is not UTF-8.
        """
        with self._lock:
            data = b""
            try:
                if not self._is_stopped:
                    data = self._take(num_bytes)
            finally:
                if not data:
                    self._ended.set()
            return data

    def _take(self, num_bytes: int) -> bytes:
        if len(self._pending) < num_bytes and self._end:
            wanted = num_bytes - len(self._pending)
            more = _read_up_to(self._source, wanted)
            self._pending += more
            if len(more) < wanted:
                self._pending, self._end = self._pending + self._end, b""
        # pyarrow drops a newline at the start of a block if the block before ends with a carriage return.
        end = num_bytes - 1 if self._pending[num_bytes - 1 : num_bytes] == b"\r" and num_bytes > 1 else num_bytes
        data, self._pending = self._pending[:end], self._pending[end:]
        _check_utf8(self._path, self._decoder, data, self._num_lines)
        self._num_lines += data.count(b"\n")
        return data

    def stop(self) -> None:
        """Leave the source alone from now on: pyarrow reads ahead even after an error."""
        with self._lock:
            self._is_stopped = True

    def wait(self) -> None:
        """Wait until pyarrow's thread has seen the end, since it must not run when the process ends.

        It does not look for the end if it has read ahead as far as it may.
        """
        self._ended.wait(_WAIT_SECONDS)
        time.sleep(_LEAVE_SECONDS)

    def close(self) -> None:
        """Do nothing."""


def _check_utf8(path: str, decoder: codecs.IncrementalDecoder, data: bytes, num_lines: int) -> str:
    """Decode the next bytes of a file, after a number of lines.

    Raises:
        InputError: If they are not UTF-8.
    """
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        line = num_lines + error.object[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}, line {line}: expected UTF-8, got byte 0x{error.object[error.start]:02x}; "
            "convert the text from its encoding, as in `iconv -f WINDOWS-1252 -t UTF-8 old.csv > new.csv`"
        ) from error


def read_header(path: str, source: Source, format: TableFormat) -> tuple[bytes, pa.Schema]:
    """Return the first bytes of a file, and the columns that its header row names, as strings.

    Raises:
        InputError: If there is no header, it is larger than 1 MiB, or it is not UTF-8.
    """
    with errors_named(path, "a table that can be read"):
        head = _read_up_to(source, _HEADER_BYTES)
    text = _check_utf8(path, codecs.getincrementaldecoder("utf-8")(), head.removeprefix(_BOM), 0)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=DELIMITERS[format])
    try:
        names = next((row for row in rows if row), None)
        is_whole = len(head) < _HEADER_BYTES or next(rows, None) is not None
    except csv.Error:  # a cell of more than 128 KiB
        is_whole = False
    if not is_whole or names is None:
        raise InputError(
            f"{path}: expected a header row with the names of the columns, of at most 1 MiB, got none; "
            f"check that it is {format}"
        )
    if len(names) > MOST_COLUMNS:
        raise InputError(
            f"{path}: expected at most {MOST_COLUMNS:,} columns, got more in the header row; check that it is {format}"
        )
    return head, pa.schema([(name, pa.large_string()) for name in names])


def _read_up_to(source: Source, num_bytes: int) -> bytes:
    """Read until there are `num_bytes` bytes or no more: a decompressed source returns fewer at a time."""
    pieces, left = [], num_bytes
    while left and (piece := source.read(left) or b""):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
