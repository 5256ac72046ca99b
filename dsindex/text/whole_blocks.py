"""Parse a whole block of lines at once, where the result is certain to be the one of `record_lines.py`.

The kernels of `scanning.py` are used once they are loaded; they accept only lines that are certainly records. Otherwise
pyarrow.json is, which accepts more than JSON lines:

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from dsindex.text.fields import JSON_WHITESPACE, MAX_NESTING, is_too_deep, read_fields
from dsindex.text.nested_columns import find_column, nested_fields
from dsindex.text.record_blocks import RecordBlock, TextColumn
from dsindex.text.scanning import scan_ids, scan_texts
from dsindex.text.token_ids import TokenColumn, read_token_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dsindex.text.fields import Path
    from dsindex.text.lines import LineBlock
    from dsindex.text.wanted_texts import WantedTexts

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
_CASE_BIT = np.uint8(0x20)
"""The bit that turns `[` into `{`, and upper case into lower case."""
_WRONG_NUMBER = re.compile(rb"Inf[ \t\r]*[,\]}]|-NaN")
"""Numbers that pyarrow accepts and json.loads does not; also matches harmless text in strings."""


@dataclass(slots=True)
class Guess:
    """Properties of the blocks so far; a block that differs is parsed more slowly, with the same result."""

    types: dict[str, pa.DataType] | None = None
    """Arrow's type of each key; None to infer the types from the first record."""
    has_other_keys: bool = False
    """Whether records have keys that are not wanted."""


def parse_block(block: LineBlock, wanted: WantedTexts, guess: Guess | None = None) -> RecordBlock | None:
    """Parse the whole block at once; None if the result might differ from `parse_lines`, or nothing is gained."""
    guess = guess or Guess()
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
            types = {key: arrow_type(wanted.build_column([value])) for key, value in zip(paths, first, strict=True)}
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


def arrow_type(column: TextColumn | TokenColumn) -> pa.DataType:
    """Return Arrow's type of one record's value in a column."""
    if isinstance(column, TokenColumn):
        return _IDS if column.sequences_per_record is None else _ID_LISTS
    return _TEXT if column.texts_per_record is None else _LIST
