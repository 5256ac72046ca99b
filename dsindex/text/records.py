"""Read parts of JSONL text as blocks of records: the wanted values in columns, and the bad records.

`Selection.read_line`, and so `json.loads`, defines what a record is. msgspec reads whole blocks several times as fast,
and is stricter: it refuses NaN, infinities, lone surrogates and everything that is not JSON. A block that it refuses is
decoded in parts, and a line that it refuses is read by `json.loads`. msgspec is laxer in two ways, which are
checked for each block: it allows a newline inside a record, and text that is not UTF-8 in values that no key reads.
Such values may also nest deeper than MAX_NESTING: how deep depends on the version of Python. Both take the last one of
duplicate keys.
"""

from __future__ import annotations

import functools
import operator
from functools import partial
from itertools import chain, compress, starmap
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from dsindex.text.blocks import BadRecord, RecordBlock, describe_long_line
from dsindex.text.conditions import read_decimal
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.streams import cut_large

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.text.conditions import Condition
    from dsindex.text.fields import Path
    from dsindex.text.selection import Selection
    from dsindex.text.streams import LineBlock

Indices: TypeAlias = "NDArray[np.int64]"
Decoded: TypeAlias = "tuple[NDArray[np.bool_], list[list[Any]]]"
"""Which lines are kept, and the values of each key in the kept lines."""
Decoder: TypeAlias = "Callable[[memoryview[int], int], Decoded | None]"
"""Decodes lines, given their number; returns None if `Selection.read_line` must judge one of them."""

_NUM_SPLITS = 16
"""Number of parts in which lines are decoded if they cannot be decoded together."""
DEFAULT_BLOCK_BYTES = 2 << 20
"""Bytes of text parsed at a time: few enough that gigatoken uses one thread for a block; 1 MiB is slower."""


def parse_block(block: LineBlock, selection: Selection, limit: int) -> RecordBlock:
    """Return the records of a block that a selection keeps, and the bad records."""
    decoder = None
    if selection.vocabulary_size is None and (paths_by_key := selection.alternatives) is not None:
        folder_values = tuple(selection.folder_values.items())
        decoder = _open_decoder(paths_by_key, selection.takes_lists, selection.condition, folder_values)
    decoded, undecoded = _decode_parts(block, decoder, np.flatnonzero((block.sizes > 0) & (block.sizes <= limit)))
    texts = {number: line for number in undecoded if (line := block.text(number)).strip(JSON_WHITESPACE)}
    blank_lines = np.union1d(np.flatnonzero(block.sizes == 0), [number for number in undecoded if number not in texts])
    long_lines = np.flatnonzero(block.sizes > limit).tolist()
    reasons = {number: describe_long_line(int(block.sizes[number]), limit) for number in long_lines}
    judgements = dict(zip(texts, selection.read_lines(list(texts.values())), strict=True))
    reasons |= {number: reason for number, reason in judgements.items() if isinstance(reason, str)}
    values_by_number = {number: values for number, values in judgements.items() if isinstance(values, list)}
    if values_by_number:
        decoded.append((np.array([*values_by_number]), list(map(list, zip(*values_by_number.values(), strict=True)))))
    kept_lines = np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in decoded)])
    columns = (list(chain.from_iterable(values[key] for _, values in decoded)) for key in range(len(selection.keys)))
    if len(decoded) > 1:
        order = np.argsort(kept_lines)
        kept_lines, columns = kept_lines[order], (list(map(column.__getitem__, order.tolist())) for column in columns)

    def read_line(part: int, line: int) -> bytes:
        [number] = np.flatnonzero((block.parts == part) & (block.lines == line))
        return block.line(int(number))

    def make_bad_record(number: int, reason: str) -> BadRecord:
        part, line, offset = (int(array[number]) for array in (block.parts, block.lines, block.offsets))
        kept_bytes = cut_large(block.line(number), limit)
        return BadRecord(part=part, offset=offset, line=line, line_bytes=kept_bytes, reason=reason)

    return RecordBlock(
        num_lines=block.num_lines,
        blank_parts=block.parts[blank_lines.astype(np.int64)],
        offsets=block.offsets[kept_lines],
        lines=block.lines[kept_lines],
        parts=block.parts[kept_lines],
        columns=selection.build_columns(columns),
        bad_records=tuple(starmap(make_bad_record, sorted(reasons.items()))),
        text_bytes=block.text_bytes,
        read_line=read_line,
    )


@functools.lru_cache(maxsize=16)
def _open_decoder(
    paths_by_key: tuple[tuple[Path, ...], ...],
    takes_lists: bool,
    condition: Condition | None,
    folder_values: tuple[tuple[str, object], ...],
) -> Decoder:
    """Return the decoder of each key's texts, given its paths; no path may lead through the value of another."""
    kind: Any = str | list[str] if takes_lists else str
    tree: dict[str, Any] = {}

    def name_fields(path: Path, kind: object) -> list[str]:
        branch: Any = tree
        names = []
        for depth, key in enumerate(path, 1):
            names.append(f"f{[*branch, key].index(key)}")
            branch = branch.setdefault(key, {} if depth < len(path) else kind)
        return names

    columns = [[".".join(name_fields(path, kind)) for path in paths] for paths in paths_by_key]
    getters = [operator.attrgetter(*fields) if len(fields) == 1 else partial(_find_text, fields) for fields in columns]
    where_paths = () if condition is None else condition.paths
    where_getters = {path: partial(_read_field, name_fields(path, Any)) for path in where_paths}
    decoder = msgspec.json.Decoder(_define_struct(tree, dict(folder_values)), float_hook=read_decimal)

    def decode(lines: memoryview[int], num_lines: int) -> Decoded | None:
        bounds = pa.py_buffer(np.array([0, len(lines)], np.int64))
        is_kept = np.ones(num_lines, np.bool_)
        try:  # check UTF-8 as one large string, in a fraction of the time of bytes.decode
            pa.LargeStringArray.from_buffers(1, bounds, pa.py_buffer(lines)).validate(full=True)
            records = decoder.decode_lines(lines)
            if len(records) == num_lines and condition is not None:
                is_kept = condition.holds({path: list(map(get, records)) for path, get in where_getters.items()})
                records = list(compress(records, is_kept.tolist()))
            values = [list(map(get, records)) for get in getters]
        except (pa.ArrowInvalid, msgspec.MsgspecError, RecursionError, ArithmeticError, AttributeError):
            return None
        is_valid = len(records) == np.count_nonzero(is_kept)
        return (is_kept, values) if is_valid and all(set(map(type, texts)) <= {str, list} for texts in values) else None

    return decode


def _read_field(names: Sequence[str], record: object) -> object:
    for name in names:
        record = getattr(record, name, msgspec.UNSET)
    return record


def _find_text(names: Sequence[str], record: object) -> object:
    values = (getattr(record, name) for name in names)
    return next((value for value in values if isinstance(value, str | list)), None)


def _define_struct(tree: dict[str, Any], defaults: Mapping[str, object]) -> Any:  # noqa: ANN401 - a type
    """Return a msgspec type with a field for each key of a tree; a branch becomes a nested type."""
    fields = []
    for number, (key, kind) in enumerate(tree.items()):
        field_type = _define_struct(kind, {}) if isinstance(kind, dict) else kind
        field = msgspec.field(name=key, default=defaults.get(key, msgspec.UNSET))
        fields.append((f"f{number}", field_type | None | msgspec.UnsetType, field))
    return msgspec.defstruct("Record", fields, gc=False, kw_only=True)


def _decode_lines(block: LineBlock, decoder: Decoder, numbers: Indices) -> Decoded | None:
    """Decode lines that are not empty; return None if `Selection.read_line` must judge one of them."""
    if len(numbers) == 1:
        return decoder(memoryview(block.text(int(numbers[0]))), 1)
    # Each line must begin with { and end with }. If there are also as many records as lines, each line is one record.
    octets = np.frombuffer(block.data, np.uint8)
    starts, last_positions = block.starts[numbers], block.ends[numbers] - 1
    last_positions -= octets[last_positions] == ord("\r")
    if (octets[starts] != ord("{")).any() or (octets[last_positions] != ord("}")).any():
        return None
    return decoder(memoryview(block.data)[int(starts[0]) : int(block.ends[numbers[-1]])], len(numbers))


def _decode_parts(
    block: LineBlock, decoder: Decoder | None, numbers: Indices
) -> tuple[list[tuple[Indices, list[list[Any]]]], list[int]]:
    """Decode lines together, or in smaller and smaller parts.

    Returns:
        The kept lines of each part and their values by key, and the lines that `Selection.read_line` must judge.
    """
    decoded: list[tuple[Indices, list[list[Any]]]] = []
    undecoded: list[int] = []
    pending = [numbers]
    while pending:
        numbers = pending.pop()
        part = None if decoder is None or not len(numbers) else _decode_lines(block, decoder, numbers)
        if part is not None:
            decoded.append((numbers[part[0]], part[1]))
        elif decoder is None or len(numbers) <= 1:
            undecoded += numbers.tolist()
        else:
            pending += np.array_split(numbers, _NUM_SPLITS)
    return decoded, sorted(undecoded)
