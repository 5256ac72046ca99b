"""Byte ranges of a JSONL file as blocks of records: the wanted texts in Arrow arrays, and what was left out and why.

What a record is stands in `fields.py` and is decided there for one line at a time. `parse_block` gives the same for a
whole block: by the compiled loops of `scanning.py` once they are loaded, which vouch for what they take, and else by
pyarrow.json, which accepts more than JSON lines. What neither can vouch for goes to `parse_lines`. Of pyarrow:

- pyarrow takes two objects on a line, an object over two lines and text between them. Where every line begins with `{`
  and ends with `}`, no object can cross a line's end (`}` newline `{` stands only between objects: inside of one a
  comma would be missing, inside of a string a newline is refused). Each line then holds at least one object, and as
  many rows as lines means one each.
- pyarrow gives a missing key as null: a null anywhere is refused.
- pyarrow does not look at UTF-8, takes the numbers Inf and -NaN, and nests without limit: these are looked for before.
- Where pyarrow, told to refuse other keys than the wanted ones, takes a block, there is neither a number nor nesting in
  it, and the encoding alone is looked at.
- What pyarrow refuses itself (a wanted key twice, a lone surrogate or NUL byte anywhere, 1e400) is for `parse_lines` to
  judge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from dsindex.errors import RecordLimitError
from dsindex.guarded.process import LimitReachedError
from dsindex.kernels.loader import count_bytes
from dsindex.text.fields import JSON_WHITESPACE, MAX_NESTING, is_too_deep, read_fields
from dsindex.text.lines import LineBlock, LongLine, read_lines
from dsindex.text.scanning import scan_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.text.fields import Texts
    from dsindex.text.patterns import TextPattern

DEFAULT_BLOCK_BYTES = 2 << 20
"""So that its texts are less than gigatoken divides among threads (text.fast_tokenizers); of 1 MiB it is slower."""
_TEXT, _LIST = pa.large_string(), pa.list_(pa.large_string())
_ARROW_BLOCK_LIMIT = 2**31 - 2**10
"""pyarrow.json counts a block's bytes in int32."""
SCAN_BYTES = 256 << 10
"""A piece of this size and its masks stay in the second-level cache."""
_CELL_BYTES = 1 << 10
"""Divides SCAN_BYTES; brackets are counted by cells."""
_TRIM_STEPS = 8
"""Lines with more whitespace at an edge take the slow path."""
_IS_WHITESPACE = np.isin(np.arange(256), list(JSON_WHITESPACE))
_CASE_BIT = np.uint8(0x20)
"""Turns `[` into `{`, as it turns upper case into lower case."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_WRONG_NUMBER = re.compile(rb"Inf[ \t\r]*[,\]}]|-NaN")
"""What pyarrow takes for a number and json.loads does not; in a string it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The texts of one key."""

    texts: pa.LargeStringArray
    """All texts of the block, in order."""
    texts_per_record: NDArray[np.int64] | None
    """Shape [records], where the block has lists of strings; None: one text each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A line that is neither blank nor a record with all wanted keys."""

    offset: int
    """Byte offset in the file of the line's first byte."""
    line: int
    """Counted from 0 at the range's first line."""
    line_bytes: bytes
    """The line as it stands in the file, without the newline; where it is longer than the limit, as much as that."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBlock:
    """Some lines of a range, in file order: num_lines = num_blank + records + bad."""

    num_lines: int
    num_blank: int
    offsets: NDArray[np.int64]
    """Byte offset in the file of each record's line, shape [records]."""
    lines: NDArray[np.int64]
    """Line number of each record, counted from 0 at the range's first line, shape [records]."""
    columns: dict[str, TextColumn]
    """Per wanted key, all with the same records."""
    bad: tuple[BadRecord, ...]
    """What was left out of every column, in file order."""
    stopped: RecordLimitError | None = None
    """Why nothing is read after these lines: raised when the next block is asked for, since a bad record before that
    place goes first."""


def read_records(
    path: str,
    begin: int,
    end: int,
    *,
    keys: Sequence[str],
    pattern: TextPattern | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
    expected_size: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records whose lines begin in [begin, end) of a JSONL file, the last one to its end beyond `end`.

    Lines end at newline bytes; a UTF-8 byte order mark at the file's start is skipped; a line of JSON whitespace is
    counted and is no record. Bad records are returned, not raised. Memory is a few blocks, or the longest line's size.

    Args:
        path: A regular file.
        begin: First byte of the range.
        end: First byte after the range, at most the file's size.
        keys: The wanted top-level keys, each once.
        pattern: Gives the one text of a record; the only key is then its column.
        block_bytes: How much text is parsed at a time.
        max_record_bytes: A longer line (without newline) is bad.
        expected_size: The file's size in bytes as the plan knows it.

    Returns:
        Blocks of any number of records, in file order; the same records for any cut into ranges and blocks.

    Raises:
        InputError: If the file cannot be read, has not the size expected, or changes while it is read.
        RecordLimitError: At the first record for which the pattern takes too much time or memory.
        ValueError: If the range or the options make no sense.
    """
    if not 0 <= begin <= end:
        msg = f"expected a range with 0 <= begin <= end, got [{begin}, {end})"
        raise ValueError(msg)
    if block_bytes < 1 or (max_record_bytes is not None and max_record_bytes < 1):
        msg = f"expected sizes of at least 1 byte, got block_bytes={block_bytes}, max_record_bytes={max_record_bytes}"
        raise ValueError(msg)
    if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
        msg = f"expected a sequence of different keys, at least one, got {keys!r}"
        raise ValueError(msg)
    count_bytes(end - begin)
    blocks = read_lines(
        path, begin, end, block_bytes=block_bytes, max_line_bytes=max_record_bytes, expected_size=expected_size
    )
    return _parse_all(blocks, WantedTexts(path=path, keys=tuple(keys), pattern=pattern), max_record_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTexts:
    """What is read of a record: texts by their keys, or the one text that a pattern gives."""

    path: str
    keys: tuple[str, ...]
    pattern: TextPattern | None = None

    def read_line(self, line: bytes) -> list[Texts] | str:
        """Return the texts of a line, or the reason why it is no record."""
        return read_fields(line, self.keys) if self.pattern is None else self.pattern.read_line(line)

    def read_lines(self, lines: Sequence[bytes]) -> Iterator[list[Texts] | str]:
        """Yield for each line what `read_line` returns."""
        if self.pattern is None:
            return (read_fields(line, self.keys) for line in lines)
        return self.pattern.read_lines(lines)

    @property
    def is_fast(self) -> bool:
        """Whether pyarrow can read it; it knows no key that has no UTF-8."""
        return (self.pattern is None or self.pattern.key is not None) and not _SURROGATE.search("".join(self.keys))


def _parse_all(blocks: Iterator[LineBlock | LongLine], wanted: WantedTexts, limit: int | None) -> Iterator[RecordBlock]:
    guess = _Guess()
    for block in blocks:
        parsed = _parse(block, wanted, limit, guess)
        if len(parsed.offsets):
            columns = parsed.columns.items()
            guess.types = {key: _TEXT if column.texts_per_record is None else _LIST for key, column in columns}
        yield parsed
        if parsed.stopped is not None:
            raise parsed.stopped


@dataclass(slots=True)
class _Guess:
    """What the blocks so far were like: where the next one is not, it takes longer and gives the same."""

    types: dict[str, pa.DataType] | None = None
    """Arrow's type of each key; None to take those of the first record."""
    has_other_keys: bool = False
    """Records have keys that are not wanted."""


def _parse(block: LineBlock | LongLine, wanted: WantedTexts, limit: int | None, guess: _Guess) -> RecordBlock:
    if isinstance(block, LongLine):
        bad = BadRecord(
            offset=block.offset,
            line=block.line,
            line_bytes=block.head,
            reason=describe_long_line(block.num_bytes, len(block.head)),
        )
        nothing = np.empty(0, np.int64)
        columns = {key: _build_column([]) for key in wanted.keys}
        return RecordBlock(num_lines=1, num_blank=0, offsets=nothing, lines=nothing, columns=columns, bad=(bad,))
    if wanted.is_fast and (limit is None or not (block.line_sizes() > limit).any()):
        parsed = parse_block(block, wanted, guess)
        if parsed is not None:
            return parsed
    return parse_lines(block, wanted, limit)


def parse_lines(block: LineBlock, wanted: WantedTexts, limit: int | None) -> RecordBlock:
    """Judge line by line: the definition of what a block's records are."""
    kept: list[int] = []
    values: list[list[Texts]] = []
    bad: list[BadRecord] = []
    num_blank = 0
    stopped: RecordLimitError | None = None
    offsets = block.offsets()
    for number, fields in enumerate(_judge(block, wanted, limit)):
        if fields is None:
            num_blank += 1
        elif isinstance(fields, RecordLimitError):
            stopped = fields
        elif isinstance(fields, str):
            line, line_bytes = block.first_line + number, block.line(number)[:limit]
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
        columns={key: _build_column([record[index] for record in values]) for index, key in enumerate(wanted.keys)},
        bad=tuple(bad),
        stopped=stopped,
    )


def _judge(
    block: LineBlock, wanted: WantedTexts, limit: int | None
) -> Iterator[list[Texts] | str | RecordLimitError | None]:
    """Yield for each line its texts, the reason why it is no record, None if it is blank; an error ends it."""
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
                yield RecordLimitError(wanted.path, int(block.offsets()[number]), error.reason)
                return


def _build_column(values: list[Texts]) -> TextColumn:
    if not any(isinstance(value, list) for value in values):
        return TextColumn(texts=pa.array(values, _TEXT), texts_per_record=None)
    lists = [value if isinstance(value, list) else [value] for value in values]
    return TextColumn(
        texts=pa.array([text for texts in lists for text in texts], _TEXT),
        texts_per_record=np.array([len(texts) for texts in lists], np.int64),
    )


def describe_long_line(num_bytes: int, limit: int) -> str:
    """Return the reason for which a line longer than the limit is a bad record."""
    return f"record of {num_bytes} bytes is larger than the limit of {limit} bytes"


def parse_block(block: LineBlock, wanted: WantedTexts, guess: _Guess | None = None) -> RecordBlock | None:
    """Parse the whole block by pyarrow; None where that might differ from `parse_lines`, or gains nothing."""
    guess = guess or _Guess()
    is_blank = _find_blank_lines(block)
    if is_blank is None or block.num_bytes > _ARROW_BLOCK_LIMIT:
        return None
    numbers = np.flatnonzero(~is_blank)
    if not len(numbers) or not _is_utf8(block):
        return None
    scanned = scan_texts(block.data, block.starts[numbers], block.ends[numbers], wanted.keys)
    if scanned is not None:
        columns = {key: TextColumn(texts=texts, texts_per_record=None) for key, texts in scanned.items()}
        return _whole_block(block, numbers, columns)
    types = guess.types
    if types is None and len(numbers) > 1:
        first = wanted.read_line(block.text(int(numbers[0])))
        if not isinstance(first, str):
            kinds = (_LIST if isinstance(value, list) else _TEXT for value in first)
            types = dict(zip(wanted.keys, kinds, strict=True))
    if types is None:
        return None
    read = None if guess.has_other_keys else _read_columns(block, types, len(numbers), other_keys="error")
    if read is None and _is_trusted(block):
        read = _read_columns(block, types, len(numbers), other_keys="ignore")
        guess.has_other_keys = read is not None
    return None if read is None else _whole_block(block, numbers, read)


def _whole_block(block: LineBlock, numbers: NDArray[np.int64], columns: dict[str, TextColumn]) -> RecordBlock:
    """Return a block of which every line but the blank ones is a record, the lines of these numbers."""
    return RecordBlock(
        num_lines=len(block.starts),
        num_blank=len(block.starts) - len(numbers),
        offsets=block.offsets()[numbers],
        lines=numbers + block.first_line,
        columns=columns,
        bad=(),
    )


def _find_blank_lines(block: LineBlock) -> NDArray[np.bool_] | None:
    """Mark blank lines; None unless every other line, trimmed, begins with `{` and ends with `}`."""
    data = np.frombuffer(block.data, np.uint8, block.num_bytes)
    first, last = block.starts.copy(), block.ends - 1
    for edge, step in ((first, 1), (last, -1)):
        for _ in range(_TRIM_STEPS):
            # An index may stand one beside an empty line: clipped, it reads a byte that then does not matter.
            is_white = (first <= last) & _IS_WHITESPACE[data[edge.clip(0, len(data) - 1)]]
            if not is_white.any():
                break
            edge[is_white] += step
    is_blank: NDArray[np.bool_] = first > last
    first, last = first[~is_blank], last[~is_blank]
    return is_blank if (data[first] == ord("{")).all() and (data[last] == ord("}")).all() else None


def _is_trusted(block: LineBlock) -> bool:
    """Tell that the block, in UTF-8, has nothing in it that pyarrow would take and `read_fields` would not."""
    openers, wrong_numbers = _find_suspects(block)
    # Openers up to the end of each cell; a line has at most those of the cells that it touches.
    up_to = np.concatenate([[0], np.cumsum(openers)])
    most = up_to[block.ends // _CELL_BYTES + 1] - up_to[block.starts // _CELL_BYTES]
    if any(is_too_deep(block.text(line)) for line in np.flatnonzero(most > MAX_NESTING).tolist()):
        return False
    lines = np.unique(np.searchsorted(block.ends, wrong_numbers))
    return not any(isinstance(read_fields(block.text(line), ()), str) for line in lines.tolist())


def _is_utf8(block: LineBlock) -> bool:
    """Check the encoding as one huge string of Arrow's: several times the speed of bytes.decode, and no copy."""
    ends = pa.py_buffer(np.array([0, block.num_bytes], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(block.data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _find_suspects(block: LineBlock) -> tuple[NDArray[np.int64], list[int]]:
    """Count the bytes `{` and `[` of each cell of 1 KiB, and find what looks like the numbers Inf and -NaN.

    In pieces that stay in the cache. The numbers first by two bytes that are seldom so far apart: I?f and -??N.
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
        # Eight counts at once in the bytes of a uint64: a cell adds up 128 zeros or ones in each of them.
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


def _read_columns(
    block: LineBlock, types: dict[str, pa.DataType], num_records: int, *, other_keys: Literal["error", "ignore"]
) -> dict[str, TextColumn] | None:
    """Let pyarrow read the columns; None where it cannot, or finds another number of rows, or a null."""
    import pyarrow.json  # heavy, and not needed to import this module

    begin = int(block.starts[0])  # after a BOM
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(pa.py_buffer(memoryview(block.data)[begin : block.num_bytes])),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=block.num_bytes + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(types), unexpected_field_behavior=other_keys
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != num_records:
        return None
    columns: dict[str, TextColumn] = {}
    for key in types:
        array = _join(table.column(key))
        is_list = pa.types.is_list(array.type)
        texts = array.flatten() if is_list else array
        if array.null_count or texts.null_count:
            return None
        counts = np.diff(array.offsets.to_numpy()).astype(np.int64) if is_list else None
        columns[key] = TextColumn(texts=texts, texts_per_record=counts)
    return columns


def _join(chunks: pa.ChunkedArray) -> pa.Array:
    """Return what pyarrow read as one array: without a copy, since one block gives one chunk."""
    return chunks.chunk(0) if chunks.num_chunks == 1 else pa.concat_arrays(chunks.chunks)
