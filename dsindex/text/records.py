"""Read parts of JSONL text as blocks of records: the wanted values in columns, and the bad records.

`Selection.read_line`, and so `json.loads`, defines what a record is. msgspec reads whole blocks several times as fast,
and is stricter: it refuses NaN, infinities, lone surrogates and whatever is no JSON; of equal keys it takes the last. A
block with a line that it refuses is read line by line, and such a line by `json.loads`. It is laxer in two ways, which
are checked for each block: it takes a newline for a space, and skips text that is not UTF-8. Values that no key wants
may nest somewhat deeper than for `json.loads`.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from dsindex.text.blocks import BadRecord, RecordBlock, describe_long_line
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.streams import LineBlock, LongLine, cut_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsindex.text.fields import Path
    from dsindex.text.selection import Judgement, Selection, Values

Decoder: TypeAlias = "Callable[[memoryview[int], int], list[list[Any]] | None]"
"""Takes so many lines; returns the values at each path, of each; None if `json.loads` must decide on one of them."""

DEFAULT_BLOCK_BYTES = 2 << 20
"""Small enough that gigatoken does not divide a block among threads (text.fast_tokenizers); 1 MiB is slower."""


def parse_blocks(blocks: Iterator[LineBlock | LongLine], selection: Selection, limit: int) -> Iterator[RecordBlock]:
    """Parse the lines of a part: the records that a selection keeps, and the bad ones."""
    paths = selection.paths if selection.vocabulary_size is None else None
    decoder = None if paths is None else _open_decoder(tuple(paths.values()), selection.takes_lists)
    for block in blocks:
        if isinstance(block, LongLine):
            reason = describe_long_line(block.num_bytes, limit)
            bad = BadRecord(offset=block.offset, line=block.line, line_bytes=block.head, reason=reason)
            nothing = np.empty(0, np.int64)
            columns = selection.build_columns([])
            parsed = RecordBlock(num_lines=1, num_blank=0, offsets=nothing, lines=nothing, columns=columns, bad=(bad,))
        else:
            parsed = (decoder and _decode_block(block, decoder, selection, limit)) or _parse_lines(
                block, decoder, selection, limit
            )
        read_line = functools.partial(_line_of, block)
        yield replace(selection.finish(parsed), text_bytes=block.text_bytes, read_line=read_line)


def _line_of(block: LineBlock | LongLine, _part: int, line: int) -> bytes:
    return block.head if isinstance(block, LongLine) else block.line(line - block.first_line)


@functools.lru_cache(maxsize=16)
def _open_decoder(paths: tuple[Path, ...], takes_lists: bool) -> Decoder:
    """Return the decoder of the texts at some paths, none of which leads through the value of another."""
    tree: dict[str, Any] = {}
    getters: list[Callable[[object], Any]] = []
    for path in paths:
        branch: Any = tree
        names = []
        for depth, key in enumerate(path, 1):
            names.append(f"f{[*branch, key].index(key)}")
            branch = branch.setdefault(key, {} if depth < len(path) else None)
        getters.append(operator.attrgetter(".".join(names)))
    decoder = msgspec.json.Decoder(_struct(tree, str | list[str] if takes_lists else str))

    def decode(lines: memoryview[int], num_lines: int) -> list[list[Any]] | None:
        whole = pa.py_buffer(np.array([0, len(lines)], np.int64))
        try:  # as one large string, which takes a fraction of the time of bytes.decode
            pa.LargeStringArray.from_buffers(1, whole, pa.py_buffer(lines)).validate(full=True)
            records = decoder.decode_lines(lines)
        except (pa.ArrowInvalid, msgspec.MsgspecError, RecursionError):
            return None
        return [list(map(get, records)) for get in getters] if len(records) == num_lines else None

    return decode


def _struct(tree: dict[str, Any], kind: object) -> Any:  # noqa: ANN401 - a type
    """Return a type with a field for each key: of the kind, or for a branch of the tree, another such type."""
    fields = [
        (f"f{number}", kind if branch is None else _struct(branch, kind), msgspec.field(name=key))
        for number, (key, branch) in enumerate(tree.items())
    ]
    return msgspec.defstruct("Record", fields, gc=False)


def _decode_block(block: LineBlock, decoder: Decoder, selection: Selection, limit: int) -> RecordBlock | None:
    """Parse a block at once; None if a line of it is to be looked at by itself."""
    numbers = np.flatnonzero(block.ends > block.starts)  # the others are blank
    if not len(numbers) or (block.ends - block.starts > limit).any():
        return None
    # No record has a newline inside, and no line two records: each line begins and ends one, and they are as many.
    octets = np.frombuffer(block.data, np.uint8)
    starts, lasts = block.starts[numbers], block.ends[numbers] - 1
    lasts -= octets[lasts] == ord("\r")
    if (octets[starts] != ord("{")).any() or (octets[lasts] != ord("}")).any():
        return None
    values = decoder(memoryview(block.data)[int(starts[0]) :], len(numbers))
    if values is None:
        return None
    columns = {name: selection.build_column(own) for name, own in zip(selection.names, values, strict=True)}
    return RecordBlock(
        num_lines=len(block.starts),
        num_blank=len(block.starts) - len(numbers),
        offsets=block.offsets[numbers],
        lines=numbers + block.first_line,
        columns=columns,
        bad=(),
    )


def _parse_lines(block: LineBlock, decoder: Decoder | None, selection: Selection, limit: int) -> RecordBlock:
    """Parse a block line by line; this defines what its records are."""
    offsets, sizes = block.offsets, block.ends - block.starts
    kept: list[int] = []
    values: list[Values] = []
    bad: list[BadRecord] = []
    num_blank = 0
    for number in range(len(sizes)):
        judgement: Judgement
        line = block.text(number)
        if sizes[number] > limit:
            judgement = describe_long_line(int(sizes[number]), limit)
        elif not line.strip(JSON_WHITESPACE):
            num_blank += 1
            continue
        else:
            found = decoder and decoder(memoryview(line), 1)
            judgement = [value for [value] in found] if found else selection.read_line(line)
        if isinstance(judgement, str):
            place, line_bytes = block.first_line + number, cut_large(block.line(number), limit)
            bad.append(BadRecord(offset=int(offsets[number]), line=place, line_bytes=line_bytes, reason=judgement))
        elif judgement is not None:
            kept.append(number)
            values.append(judgement)
    records = np.array(kept, np.int64)
    return RecordBlock(
        num_lines=len(sizes),
        num_blank=num_blank,
        offsets=offsets[records],
        lines=records + block.first_line,
        columns=selection.build_columns(values),
        bad=tuple(bad),
    )
