"""Read parts of JSONL text as blocks of records: the wanted values in columns, and the bad records.

`Selection.read_line`, and so `json.loads`, defines what a record is. msgspec reads whole blocks several times as fast,
and is stricter: it refuses NaN, infinities, lone surrogates and everything that is not JSON. A block that it refuses is
decoded line by line, and a line that it refuses is read by `json.loads`. msgspec is laxer in two ways, which are
checked for each block: it allows a newline inside a record, and text that is not UTF-8 in values that no key reads.
Such values may also nest somewhat deeper than in `json.loads`. Both take the last one of duplicate keys.
"""

from __future__ import annotations

import functools
import operator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa

from dsindex.text.blocks import BadRecord, RecordBlock, describe_long_line
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.streams import cut_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dsindex.text.blocks import Column
    from dsindex.text.fields import Path
    from dsindex.text.selection import Judgement, Selection, Values
    from dsindex.text.streams import LineBlock

Indices: TypeAlias = "NDArray[np.int64]"
Decoder: TypeAlias = "Callable[[memoryview[int], int], list[list[Any]] | None]"
"""Decodes lines, given their number; returns the values of each key, or None if `json.loads` must judge a line."""

DEFAULT_BLOCK_BYTES = 2 << 20
"""Bytes of text parsed at a time: few enough that gigatoken uses one thread for a block; 1 MiB is slower."""


def parse_block(block: LineBlock, selection: Selection, limit: int) -> RecordBlock:
    """Return the records of a block that a selection keeps, and the bad records."""
    by_key = selection.alternatives if selection.vocabulary_size is None else None
    decoder = None if by_key is None else _open_decoder(by_key, selection.takes_lists)
    parsed = decoder and _decode_block(block, decoder, selection, limit)
    return parsed or _parse_lines(block, decoder, selection, limit)


def _records(
    block: LineBlock, records: Indices, blank: Indices, columns: dict[str, Column], bad: Sequence[BadRecord] = ()
) -> RecordBlock:
    """Return a block's records, given the numbers of the lines that are records, and of the blank lines."""

    def read_line(part: int, line: int) -> bytes:
        [number] = np.flatnonzero((block.parts == part) & (block.lines == line))
        return block.line(int(number))

    return RecordBlock(
        num_lines=block.num_lines,
        blank=block.parts[blank],
        offsets=block.offsets[records],
        lines=block.lines[records],
        parts=block.parts[records],
        columns=columns,
        bad=tuple(bad),
        text_bytes=block.text_bytes,
        read_line=read_line,
    )


@functools.lru_cache(maxsize=16)
def _open_decoder(by_key: tuple[tuple[Path, ...], ...], takes_lists: bool) -> Decoder:
    """Return the decoder of each key's texts, given its paths; no path may lead through the value of another."""
    kind: Any = str | list[str] if takes_lists else str
    optional = {path for paths in by_key if len(paths) > 1 for path in paths}
    tree: dict[str, Any] = {}
    getters: list[Callable[[object], Any]] = []
    for paths in by_key:
        attributes = []
        for path in paths:
            branch: Any = tree
            names = []
            for depth, key in enumerate(path, 1):
                names.append(f"f{[*branch, key].index(key)}")
                leaf = kind | None if path in optional else kind
                branch = branch.setdefault(key, {} if depth < len(path) else leaf)
            attributes.append(".".join(names))
        getters.append(operator.attrgetter(*attributes) if len(paths) == 1 else partial(_first_text, tuple(attributes)))
    decoder = msgspec.json.Decoder(_struct(tree))

    def decode(lines: memoryview[int], num_lines: int) -> list[list[Any]] | None:
        whole = pa.py_buffer(np.array([0, len(lines)], np.int64))
        try:  # check UTF-8 as one large string, in a fraction of the time of bytes.decode
            pa.LargeStringArray.from_buffers(1, whole, pa.py_buffer(lines)).validate(full=True)
            records = decoder.decode_lines(lines)
        except (pa.ArrowInvalid, msgspec.MsgspecError, RecursionError):
            return None
        values = [list(map(get, records)) for get in getters]
        is_complete = len(records) == num_lines and not (optional and any(None in texts for texts in values))
        return values if is_complete else None

    return decode


def _first_text(names: tuple[str, ...], record: object) -> Any:  # noqa: ANN401 - a text, texts or None
    for name in names:
        if (value := getattr(record, name)) is not None:
            return value
    return None


def _struct(tree: dict[str, Any]) -> Any:  # noqa: ANN401 - a type
    """Return a msgspec type with a field for each key of a tree; a branch becomes a nested type."""
    fields = []
    for number, (key, kind) in enumerate(tree.items()):
        default = None if type(None) in get_args(kind) else msgspec.NODEFAULT
        field_type = _struct(kind) if isinstance(kind, dict) else kind
        fields.append((f"f{number}", field_type, msgspec.field(name=key, default=default)))
    return msgspec.defstruct("Record", fields, gc=False, kw_only=True)


def _decode_block(block: LineBlock, decoder: Decoder, selection: Selection, limit: int) -> RecordBlock | None:
    """Parse a block at once; return None if it must be parsed line by line."""
    numbers = np.flatnonzero(block.sizes)  # empty lines are blank
    if not len(numbers) or block.sizes.max() > limit:
        return None
    # Each line must begin with { and end with }. If there are also as many records as lines, each line is one record.
    octets = np.frombuffer(block.data, np.uint8)
    starts, lasts = block.starts[numbers], block.ends[numbers] - 1
    lasts -= octets[lasts] == ord("\r")
    if (octets[starts] != ord("{")).any() or (octets[lasts] != ord("}")).any():
        return None
    values = decoder(memoryview(block.data)[int(starts[0]) :], len(numbers))
    if values is None:
        return None
    return _records(block, numbers, np.flatnonzero(block.sizes == 0), selection.build_columns(values))


def _parse_lines(block: LineBlock, decoder: Decoder | None, selection: Selection, limit: int) -> RecordBlock:
    """Parse a block line by line; the result is the reference for `_decode_block`."""
    judgements: dict[int, Judgement] = {}
    blank: list[int] = []
    unread: dict[int, bytes] = {}
    for number, size in enumerate(block.sizes.tolist()):
        line = block.text(number)
        if size > limit:
            judgements[number] = describe_long_line(size, limit)
        elif not line.strip(JSON_WHITESPACE):
            blank.append(number)
        elif decoder and (found := decoder(memoryview(line), 1)):
            judgements[number] = [value for [value] in found]
        else:
            unread[number] = line
    judgements |= zip(unread, selection.read_lines(list(unread.values())), strict=True)
    kept: list[int] = []
    values: list[Values] = []
    bad: list[BadRecord] = []
    for number, judgement in sorted(judgements.items(), key=operator.itemgetter(0)):
        if isinstance(judgement, str):
            part, line_number, offset = (int(each[number]) for each in (block.parts, block.lines, block.offsets))
            kept_bytes = cut_large(block.line(number), limit)
            bad.append(BadRecord(part=part, offset=offset, line=line_number, line_bytes=kept_bytes, reason=judgement))
        elif judgement is not None:
            kept.append(number)
            values.append(judgement)
    columns = selection.build_columns([value[key] for value in values] for key in range(len(selection.keys)))
    return _records(block, np.array(kept, np.int64), np.array(blank, np.int64), columns, bad)
