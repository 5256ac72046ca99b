"""Read byte ranges of a JSONL file as blocks of records: the wanted texts in Arrow arrays, and the bad records.

`fields.py` defines what a record is, one line at a time. `parse_block` returns the same for a whole block: with the
kernels of `scanning.py` once they are loaded, which accept only lines that are certainly records, otherwise with
pyarrow.json, which accepts more than JSON lines. Blocks that neither can vouch for go to `parse_lines`. For pyarrow:

- It accepts two objects on a line, an object over two lines, and text between them. If every line begins with `{` and
  ends with `}`, no object can cross the end of a line: `}` newline `{` occurs only between objects, since inside one a
  comma would be missing, and inside a string a newline is refused. Each line then holds at least one object, and a row
  count equal to the line count means exactly one each.
- It returns null for a missing key, so any null is refused.
- It does not check UTF-8, accepts the numbers Inf and -NaN, and nests without limit, so these are checked first.
- If it accepts a block when told to refuse all but the wanted keys, the block contains neither numbers nor nesting, and
  only the encoding is checked.
- Blocks that it refuses (a wanted key twice, a lone surrogate or NUL byte anywhere, 1e400) go to `parse_lines`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from dsindex.errors import RecordLimitError
from dsindex.guarded.process import LimitReachedError
from dsindex.kernels.loader import count_bytes
from dsindex.text.fields import JSON_WHITESPACE, MAX_NESTING, is_too_deep, read_fields
from dsindex.text.joining import join_texts
from dsindex.text.lines import LineBlock, LongLine, cut_large, read_lines
from dsindex.text.nested_columns import are_disjoint, find_column, nested_fields
from dsindex.text.scanning import scan_ids, scan_texts
from dsindex.text.selection import FILTERED
from dsindex.text.token_ids import TokenColumn, build_token_column, read_token_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.text.fields import Path, Texts
    from dsindex.text.forms import TextPart
    from dsindex.text.patterns import TextPattern
    from dsindex.text.selection import Judgement, Selection, Values

DEFAULT_BLOCK_BYTES = 2 << 20
"""Small enough that gigatoken does not divide a block among threads (text.fast_tokenizers); 1 MiB is slower."""
_TEXT, _LIST = pa.large_string(), pa.list_(pa.large_string())
_IDS, _ID_LISTS = pa.list_(pa.int64()), pa.list_(pa.list_(pa.int64()))
_ARROW_BLOCK_LIMIT = 2**31 - 2**10
"""Largest block for pyarrow.json, which counts bytes in int32."""
SCAN_BYTES = 256 << 10
"""Bytes scanned at a time; the piece and its masks fit the second-level cache."""
_CELL_BYTES = 1 << 10
"""Size of the cells in which brackets are counted; divides SCAN_BYTES."""
_TRIM_STEPS = 8
"""Whitespace bytes at either end of a line beyond which it takes the slow path."""
_IS_WHITESPACE = np.isin(np.arange(256), list(JSON_WHITESPACE))
_IS_BLANK = np.isin(np.arange(256), list(JSON_WHITESPACE + b"\n"))
_CASE_BIT = np.uint8(0x20)
"""The bit that turns `[` into `{`, and upper case into lower case."""
MAX_PATH_KEYS = 64
"""Keys of a path that the fast parsers follow."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_WRONG_NUMBER = re.compile(rb"Inf[ \t\r]*[,\]}]|-NaN")
"""Numbers that pyarrow accepts and json.loads does not; also matches harmless text in strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The texts of one key."""

    texts: pa.LargeStringArray
    """All texts of the block, in order."""
    texts_per_record: NDArray[np.int64] | None
    """Number of texts of each record, shape [records]; None if each record has one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A line that is neither blank nor a record with all wanted keys."""

    offset: int
    """Byte offset in the file of the line's first byte."""
    line: int
    """Line number, counted from 0 at the start of the range."""
    line_bytes: bytes
    """The line as stored in the file, excluding the newline, cut at the limit."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBlock:
    """Consecutive lines of a range, in file order: num_lines = num_blank + num_filtered + records + bad."""

    num_lines: int
    num_blank: int
    offsets: NDArray[np.int64]
    """Byte offset in the file of each record's line, shape [records]."""
    lines: NDArray[np.int64]
    """Line number of each record, counted from 0 at the start of the range, shape [records]."""
    columns: dict[str, TextColumn | TokenColumn]
    """The texts or token ids of each wanted key; all columns have the same records."""
    bad: tuple[BadRecord, ...]
    """Bad records, in file order; they are in no column."""
    num_filtered: int = 0
    """Number of records that a condition or a sample leaves out; they are in no column."""
    num_bytes: int = 0
    """Size of its lines in the text, with newlines."""
    stopped: RecordLimitError | None = None
    """Error that ends the reading after these lines; raised when the next block is requested, so that a bad record
    before it is reported first."""


def read_records(
    part: TextPart,
    *,
    keys: Sequence[str],
    pattern: TextPattern | None = None,
    selection: Selection | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records of a part of JSONL text; the last one may extend beyond its end.

    Lines end at newline bytes. A UTF-8 byte order mark at the start of the file is skipped. A line of JSON whitespace
    is counted but is no record. Bad records are returned, not raised. A few blocks are held in memory, or the longest
    line.

    Args:
        part: A part of a regular file.
        keys: The wanted top-level keys, each once.
        pattern: Selects the one text of a record; its column is then the only key.
        selection: The records to keep and the values to read, whose outputs are then the keys.
        block_bytes: Bytes parsed at a time.
        max_record_bytes: A longer line (without newline) is bad.

    Returns:
        Blocks of any number of records, in file order; the same records for any cut into parts and blocks.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, changes while it is read, or is
            damaged.
        RecordLimitError: At the first record for which the pattern takes too much time or memory.
        ValueError: If the part or the options are invalid.
    """
    if not 0 <= part.begin <= part.end:
        msg = f"expected a range with 0 <= begin <= end, got [{part.begin}, {part.end})"
        raise ValueError(msg)
    if block_bytes < 1 or (max_record_bytes is not None and max_record_bytes < 1):
        msg = f"expected sizes of at least 1 byte, got block_bytes={block_bytes}, max_record_bytes={max_record_bytes}"
        raise ValueError(msg)
    if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
        msg = f"expected a sequence of different keys, at least one, got {keys!r}"
        raise ValueError(msg)
    count_bytes(part.end - part.begin)
    blocks = read_lines(part, block_bytes=block_bytes, max_line_bytes=max_record_bytes)
    names = tuple(keys) if selection is None else selection.names
    wanted = WantedTexts(path=part.input, begin=part.begin, keys=names, pattern=pattern, selection=selection)
    return parse_all(blocks, wanted, max_record_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTexts:
    """The values to read from a record: texts by their keys, the one text of a pattern, or those of a selection."""

    path: str
    begin: int = 0
    """Where the part begins."""
    keys: tuple[str, ...]
    pattern: TextPattern | None = None
    selection: Selection | None = None

    def read_line(self, line: bytes) -> Judgement:
        """Return the values of a line, or the reason why it is no record."""
        return next(self.read_lines([line]))

    def read_lines(self, lines: Sequence[bytes]) -> Iterator[Judgement]:
        """Yield for each line what `read_line` returns."""
        if self.selection is not None:
            return self.selection.read_lines(lines)
        if self.pattern is not None:
            return self.pattern.read_lines(lines)
        return (read_fields(line, self.keys) for line in lines)

    @property
    def vocabulary_size(self) -> int | None:
        """Size of the vocabulary if the values are token ids; None for texts."""
        return None if self.selection is None else self.selection.vocabulary_size

    @property
    def paths(self) -> dict[str, Path] | None:
        """The path of each key; None if a whole block cannot be read at once.

        That is so with jq, with keys that are not Unicode, and with paths through more than MAX_PATH_KEYS objects.
        """
        paths: dict[str, Path] = {}
        if self.pattern is not None:
            paths = {} if self.pattern.key is None else {self.pattern.column: (self.pattern.key,)}
        elif self.selection is None:
            paths = {key: (key,) for key in self.keys}
        elif not self.selection.needs_jq:
            paths = {key.name: key.path for key in self.selection.keys if key.path is not None}
        is_plain = not any(len(path) > MAX_PATH_KEYS or any(map(_SURROGATE.search, path)) for path in paths.values())
        return paths if paths and is_plain and are_disjoint(list(paths.values())) else None

    def build_column(self, values: Sequence[Any]) -> TextColumn | TokenColumn:
        """Return the column of one key's values."""
        return _build_column(values) if self.vocabulary_size is None else build_token_column(values)

    def finish(self, block: RecordBlock) -> RecordBlock:
        """Return a block with the columns that were asked for: one if the texts of all keys are joined."""
        if self.selection is None or self.selection.join is None:
            return block
        columns = [column for column in block.columns.values() if isinstance(column, TextColumn)]
        joined = join_texts([(column.texts, column.texts_per_record) for column in columns], self.selection.join)
        [name] = self.selection.outputs
        return replace(block, columns={name: TextColumn(texts=joined, texts_per_record=None)})


def parse_all(blocks: Iterator[LineBlock | LongLine], wanted: WantedTexts, limit: int | None) -> Iterator[RecordBlock]:
    """Parse blocks of lines of JSON as `read_records` does."""
    guess = _Guess()
    for block in blocks:
        parsed = _parse(block, wanted, limit, guess)
        if len(parsed.offsets):
            guess.types = {key: _arrow_type(column) for key, column in parsed.columns.items()}
        num_bytes = block.num_bytes + 1 if isinstance(block, LongLine) else block.source_bytes
        yield replace(wanted.finish(parsed), num_bytes=num_bytes)
        if parsed.stopped is not None:
            raise parsed.stopped


@dataclass(slots=True)
class _Guess:
    """Properties of the blocks so far; a block that differs is parsed more slowly, with the same result."""

    types: dict[str, pa.DataType] | None = None
    """Arrow's type of each key; None to infer the types from the first record."""
    has_other_keys: bool = False
    """Whether records have keys that are not wanted."""


def _parse(block: LineBlock | LongLine, wanted: WantedTexts, limit: int | None, guess: _Guess) -> RecordBlock:
    if isinstance(block, LongLine):
        bad = BadRecord(
            offset=block.offset,
            line=block.line,
            line_bytes=block.head,
            reason=describe_long_line(block.num_bytes, block.limit),
        )
        nothing = np.empty(0, np.int64)
        columns = {key: wanted.build_column([]) for key in wanted.keys}
        return RecordBlock(num_lines=1, num_blank=0, offsets=nothing, lines=nothing, columns=columns, bad=(bad,))
    if limit is None or not (block.line_sizes() > limit).any():
        parsed = parse_blank(block, wanted)
        if parsed is None and wanted.paths is not None:
            parsed = parse_block(block, wanted, guess)
        if parsed is not None:
            return parsed
    return parse_lines(block, wanted, limit)


def parse_blank(block: LineBlock, wanted: WantedTexts) -> RecordBlock | None:
    """Return a block without records if all of its lines are blank, however many; otherwise None."""
    data = np.frombuffer(block.data, np.uint8, block.num_bytes)[int(block.starts[0]) if len(block.starts) else 0 :]
    if not _IS_BLANK[data[:1]].all() or not _IS_BLANK[data].all():
        return None
    nothing = np.empty(0, np.int64)
    columns = {key: wanted.build_column([]) for key in wanted.keys}
    num_lines = len(block.starts)
    return RecordBlock(
        num_lines=num_lines, num_blank=num_lines, offsets=nothing, lines=nothing, columns=columns, bad=()
    )


def parse_lines(block: LineBlock, wanted: WantedTexts, limit: int | None) -> RecordBlock:
    """Parse a block line by line; this defines what its records are."""
    kept: list[int] = []
    values: list[Values] = []
    bad: list[BadRecord] = []
    num_blank = num_filtered = 0
    stopped: RecordLimitError | None = None
    offsets = block.offsets()
    for number, fields in enumerate(_judge(block, wanted, limit)):
        if fields is None:
            num_blank += 1
        elif fields is FILTERED:
            num_filtered += 1
        elif isinstance(fields, RecordLimitError):
            stopped = fields
        elif isinstance(fields, str):
            line, line_bytes = block.first_line + number, cut_large(block.line(number), limit)
            bad.append(BadRecord(offset=int(offsets[number]), line=line, line_bytes=line_bytes, reason=fields))
        else:
            kept.append(number)
            values.append(fields)
    numbers = np.array(kept, np.int64)
    return RecordBlock(
        num_lines=len(block.starts),
        num_blank=num_blank,
        offsets=offsets[numbers],
        lines=numbers + block.first_line,
        columns={
            key: wanted.build_column([record[index] for record in values]) for index, key in enumerate(wanted.keys)
        },
        bad=tuple(bad),
        num_filtered=num_filtered,
        stopped=stopped,
    )


def _judge(block: LineBlock, wanted: WantedTexts, limit: int | None) -> Iterator[Judgement | RecordLimitError | None]:
    """Yield for each line what `WantedTexts.read_line` returns, or None if it is blank; an error comes last."""
    sizes = block.line_sizes().tolist()
    lines = [block.text(number) for number in range(len(sizes))]
    is_large = [limit is not None and size > limit for size in sizes]
    is_blank = [not line.strip(JSON_WHITESPACE) for line in lines]
    texts = wanted.read_lines(
        [line for line, *left_out in zip(lines, is_large, is_blank, strict=True) if not any(left_out)]
    )
    for number, size in enumerate(sizes):
        if is_large[number]:
            yield describe_long_line(size, limit or 0)
        elif is_blank[number]:
            yield None
        else:
            try:
                yield next(texts)
            except LimitReachedError as error:
                place = (wanted.begin, block.first_line + number)
                yield RecordLimitError(wanted.path, int(block.offsets()[number]), error.reason, part=place)
                return


def _arrow_type(column: TextColumn | TokenColumn) -> pa.DataType:
    if isinstance(column, TokenColumn):
        return _IDS if column.sequences_per_record is None else _ID_LISTS
    return _TEXT if column.texts_per_record is None else _LIST


def _build_column(values: Sequence[Texts]) -> TextColumn:
    if not any(isinstance(value, list) for value in values):
        return TextColumn(texts=pa.array(values, _TEXT), texts_per_record=None)
    lists = [value if isinstance(value, list) else [value] for value in values]
    return TextColumn(
        texts=pa.array([text for texts in lists for text in texts], _TEXT),
        texts_per_record=np.array([len(texts) for texts in lists], np.int64),
    )


def describe_long_line(num_bytes: int, limit: int) -> str:
    """Return the reason why a line longer than the limit is a bad record."""
    return f"record of {num_bytes} bytes is larger than the limit of {limit} bytes"


def parse_block(block: LineBlock, wanted: WantedTexts, guess: _Guess | None = None) -> RecordBlock | None:
    """Parse the whole block at once; None if the result might differ from `parse_lines`, or nothing is gained."""
    guess = guess or _Guess()
    is_blank = _find_blank_lines(block)
    if is_blank is None or block.num_bytes > _ARROW_BLOCK_LIMIT:
        return None
    numbers = np.flatnonzero(~is_blank)
    paths = wanted.paths
    if paths is None or not len(numbers) or not _is_utf8(block):
        return None
    scanned = _scan_columns(block, numbers, paths, wanted.vocabulary_size)
    if scanned is not None:
        return _whole_block(block, numbers, scanned)
    types = guess.types
    if types is None and len(numbers) > 1:
        first = wanted.read_line(block.text(int(numbers[0])))
        if isinstance(first, list):
            types = {key: _arrow_type(wanted.build_column([value])) for key, value in zip(paths, first, strict=True)}
    if types is None:
        return None
    layout = _Layout(paths=paths, types=types, vocabulary_size=wanted.vocabulary_size)
    read = None if guess.has_other_keys else _read_columns(block, layout, len(numbers), other_keys="error")
    if read is None and _is_trusted(block):
        read = _read_columns(block, layout, len(numbers), other_keys="ignore")
        guess.has_other_keys = read is not None
    return None if read is None else _whole_block(block, numbers, read)


def _scan_columns(
    block: LineBlock, numbers: NDArray[np.int64], paths: Mapping[str, Path], vocabulary_size: int | None
) -> Mapping[str, TextColumn | TokenColumn] | None:
    """Read the columns of the lines of these numbers with the kernels; None if they cannot."""
    starts, ends = block.starts[numbers], block.ends[numbers]
    if vocabulary_size is None:
        texts = scan_texts(block.data, starts, ends, list(dict.fromkeys(paths.values())))
        if texts is None:
            return None
        return {key: TextColumn(texts=texts[path], texts_per_record=None) for key, path in paths.items()}
    [(key, path)] = paths.items()
    scanned = scan_ids(block.data, starts, ends, path, limit=vocabulary_size)
    if scanned is None:
        return None
    tokens, lengths = scanned
    return {key: TokenColumn(tokens=tokens, lengths=lengths, sequences_per_record=None)}


def _whole_block(
    block: LineBlock, numbers: NDArray[np.int64], columns: Mapping[str, TextColumn | TokenColumn]
) -> RecordBlock:
    """Return a block in which the lines of these numbers are records and all others are blank."""
    return RecordBlock(
        num_lines=len(block.starts),
        num_blank=len(block.starts) - len(numbers),
        offsets=block.offsets()[numbers],
        lines=numbers + block.first_line,
        columns=dict(columns),
        bad=(),
    )


def _find_blank_lines(block: LineBlock) -> NDArray[np.bool_] | None:
    """Return a mask of blank lines; None unless every other line, trimmed, begins with `{` and ends with `}`."""
    data = np.frombuffer(block.data, np.uint8, block.num_bytes)
    first, last = block.starts.copy(), block.ends - 1
    for edge, step in ((first, 1), (last, -1)):
        for _ in range(_TRIM_STEPS):
            # The index for an empty line may be out of bounds; clipped, it reads a byte that does not matter.
            is_white = (first <= last) & _IS_WHITESPACE[data[edge.clip(0, len(data) - 1)]]
            if not is_white.any():
                break
            edge[is_white] += step
    is_blank: NDArray[np.bool_] = first > last
    first, last = first[~is_blank], last[~is_blank]
    return is_blank if (data[first] == ord("{")).all() and (data[last] == ord("}")).all() else None


def _is_trusted(block: LineBlock) -> bool:
    """Tell whether the block, which is UTF-8, is free of anything that pyarrow accepts and `read_fields` refuses."""
    openers, wrong_numbers = _find_suspects(block)
    # Openers up to the end of each cell; a line has at most those of the cells that it overlaps.
    up_to = np.concatenate([[0], np.cumsum(openers)])
    most = up_to[block.ends // _CELL_BYTES + 1] - up_to[block.starts // _CELL_BYTES]
    if any(is_too_deep(block.text(line)) for line in np.flatnonzero(most > MAX_NESTING).tolist()):
        return False
    lines = np.unique(np.searchsorted(block.ends, wrong_numbers))
    return not any(isinstance(read_fields(block.text(line), ()), str) for line in lines.tolist())


def _is_utf8(block: LineBlock) -> bool:
    """Check the encoding as one large Arrow string: several times faster than bytes.decode, and without a copy."""
    ends = pa.py_buffer(np.array([0, block.num_bytes], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(block.data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _find_suspects(block: LineBlock) -> tuple[NDArray[np.int64], list[int]]:
    """Count the bytes `{` and `[` in each cell of 1 KiB, and find what looks like the numbers Inf and -NaN.

    Works in pieces that fit the cache. The numbers are first searched by two bytes at a rare distance: I?f and -??N.
    """
    data = np.frombuffer(block.data, np.uint8, block.num_bytes)
    folded = np.empty(SCAN_BYTES, np.uint8)
    hits, others = np.empty(SCAN_BYTES, np.bool_), np.empty(SCAN_BYTES, np.bool_)
    openers, found = [], []
    for begin in range(0, len(data) + 1, SCAN_BYTES):  # + 1: a line may end, empty, where a cell begins
        piece = data[begin : begin + SCAN_BYTES]
        size = len(piece)
        np.equal(np.bitwise_or(piece, _CASE_BIT, out=folded[:size]), ord("{"), out=hits[:size])
        hits[size:] = False
        # Eight counts in parallel in the bytes of a uint64: each adds up 128 zeros or ones per cell.
        sums = hits.view(np.uint64).reshape(-1, _CELL_BYTES // 8).sum(axis=1)
        openers.append(sums.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.int64))
        for first, last, distance in (("I", "f", 2), ("-", "N", 3)):
            ahead = data[begin + distance : begin + distance + size]
            both = np.equal(piece[: len(ahead)], ord(first), out=hits[: len(ahead)])
            np.logical_and(both, np.equal(ahead, ord(last), out=others[: len(ahead)]), out=both)
            if both.any():
                found += (np.flatnonzero(both) + begin).tolist()
    wrong_numbers = [place for place in found if _WRONG_NUMBER.match(block.data, place, block.num_bytes)]
    return np.concatenate(openers), wrong_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where pyarrow finds the values, and their types."""

    paths: Mapping[str, Path]
    types: Mapping[str, pa.DataType]
    """Type of each key's values."""
    vocabulary_size: int | None


def _read_columns(
    block: LineBlock, layout: _Layout, num_records: int, *, other_keys: Literal["error", "ignore"]
) -> dict[str, TextColumn | TokenColumn] | None:
    """Read the columns with pyarrow; None if it cannot, or returns another number of rows, or a null."""
    import pyarrow.json  # slow to load, and not always needed

    begin = int(block.starts[0])  # after a BOM
    schema = pa.schema(nested_fields({path: layout.types[key] for key, path in layout.paths.items()}))
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(pa.py_buffer(memoryview(block.data)[begin : block.num_bytes])),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=block.num_bytes + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=other_keys),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != num_records:
        return None
    columns: dict[str, TextColumn | TokenColumn] = {}
    for key, path in layout.paths.items():
        array = find_column(table, path)
        column = None if array is None else _read_column(array, layout.vocabulary_size)
        if column is None:
            return None
        columns[key] = column
    return columns


def _read_column(array: pa.Array, vocabulary_size: int | None) -> TextColumn | TokenColumn | None:
    """Return the column of an array without nulls; None if a list has a null, or something that is no token id."""
    if vocabulary_size is not None:
        return read_token_column(array, vocabulary_size)
    if not pa.types.is_list(array.type):
        return TextColumn(texts=array, texts_per_record=None)
    texts = array.flatten()
    counts = np.diff(array.offsets.to_numpy()).astype(np.int64)
    return None if texts.null_count else TextColumn(texts=texts, texts_per_record=counts)
