"""What the inputs of a job contain, and where they can be cut: told from the files themselves."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from dsindex.containers.cuts import find_cuts
from dsindex.containers.kinds import SUFFIXES, detect_file
from dsindex.errors import InputError
from dsindex.readable import input_status, open_readable
from dsindex.text.forms import InputForm
from workflows.state.inputs import LARGEST_SHARD_BYTES, TEXT_PER_STORED_BYTE, InputParts, by_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsindex.containers.kinds import Container
    from dsindex.text.forms import Format
    from dsindex.text.tables.formats import TableFormat
    from workflows.state.inputs import InputFile

InputFormat: TypeAlias = Literal["auto", "jsonl", "lines", "document", "csv", "tsv"]
"""The formats that can be asked for; Parquet and Arrow are told by content."""
Columns: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Name of each wanted column → the names of the fields that lead to it."""

FEWEST_STREAMS = 256
"""A stream that has less than this part of all input is one shard; larger ones are unpacked for all workers."""
FEW_STREAMS = 8
"""In a small job a stream that has less than this part of all input is one shard as well: others keep CPUs busy."""
LARGEST_PART_UNITS = 4
"""A file whose members are larger than this many shards is unpacked for all workers as well."""
_NAMED_FORMATS: dict[str, Format] = {".csv": "csv", ".tsv": "tsv"}
_TABLE_SUFFIXES = {".parquet", ".arrow", ".feather"}
_TAIL_BYTES = 8
_LOOKED_AT_ONCE = 16


def look_inside(inputs: Iterable[InputFile], *, wanted: InputFormat = "auto") -> list[InputFile]:
    """Return the inputs with their forms.

    Args:
        inputs: The inputs.
        wanted: The format of all inputs that are not Parquet or Arrow; `auto` goes by the name: CSV, TSV or JSON lines.

    Raises:
        InputError: If one cannot be read, or is of a kind that is not supported.
    """
    with ThreadPoolExecutor(_LOOKED_AT_ONCE, thread_name_prefix="dsindex-look") as pool:
        return list(pool.map(partial(_with_form, wanted=wanted), inputs))


def detect_form(path: str, *, shown_as: str, wanted: InputFormat = "auto") -> InputForm:
    """Return the form of a file.

    Raises:
        InputError: If it is of a kind that is not supported.
        OSError: If it cannot be read.
    """
    container, head = detect_file(path)
    table = None
    if container == "plain":
        table = _detect_table(path, head)
        if table is not None:
            return InputForm(format=cast("Format", table))
    if wanted != "auto":
        return InputForm(container=container, format=wanted)
    return InputForm(container=container, format=_named_format(shown_as, container))


def cut_inputs(
    inputs: Iterable[InputFile], shard_size: int | Sequence[int], *, columns: Columns | None = None
) -> list[InputFile]:
    """Return the inputs with their parts, those that cannot be cut anywhere.

    The parts are a function of the inputs, the columns and the shard size alone.

    Args:
        inputs: The inputs with their forms.
        shard_size: Bytes of text in a shard, about; for all inputs, or for each.
        columns: The wanted columns of tables; None for all.

    Raises:
        InputError: If one cannot be read, or lacks a column.
    """
    inputs = list(inputs)
    sizes = by_input(inputs, shard_size)
    before = accumulate(file.size_bytes for file in inputs)
    whole = {
        file.absolute_path: _largest_whole(size, total)
        for file, size, total in reversed(list(zip(inputs, sizes, before, strict=True)))
    }

    def cut(file: InputFile, shard_size: int) -> InputFile:
        largest_whole = whole[file.absolute_path]
        parts = find_parts(
            file.absolute_path, file.form, shard_size=shard_size, largest_whole=largest_whole, columns=columns
        )
        return replace(file, parts=parts)

    with ThreadPoolExecutor(_LOOKED_AT_ONCE, thread_name_prefix="dsindex-cut") as pool:
        return list(pool.map(cut, inputs, sizes))


def _largest_whole(shard_size: int, so_far: int) -> int:
    """Return the size of the largest stream that is one shard, given the size of all inputs up to it.

    It depends on no later input, so that added ones leave the others' parts as they are.
    """
    of_many = min(so_far // FEW_STREAMS, LARGEST_PART_UNITS * LARGEST_SHARD_BYTES // TEXT_PER_STORED_BYTE)
    return max(shard_size // TEXT_PER_STORED_BYTE, so_far // FEWEST_STREAMS, of_many)


def find_parts(
    path: str,
    form: InputForm,
    *,
    shard_size: int,
    largest_whole: int | None = None,
    columns: Columns | None = None,
) -> InputParts | None:
    """Return where an input can be cut; None for anywhere.

    Args:
        path: The input.
        form: Its form.
        shard_size: Bytes of text in a part, about.
        largest_whole: Size of the largest compressed stream that is one part; larger ones are cut into parts that
            must be decoded in order. None: every stream is one part.
        columns: The wanted columns of a table; None for all.

    Raises:
        InputError: If it cannot be read, or lacks a column.
    """
    if form.format in ("csv", "tsv"):
        return InputParts(bounds=(0, 1))
    if form.is_table:
        return _cut_table(path, cast("TableFormat", form.format), shard_size, columns)
    if form.format == "document":
        return InputParts(bounds=(0, _size_of(path)))
    if form.container == "plain":
        return None
    unit_bytes = max(1, shard_size // TEXT_PER_STORED_BYTE)
    bounds = find_cuts(path, form.container, unit_bytes=unit_bytes)
    largest_part = max(end - begin for begin, end in pairwise(bounds))
    limit = largest_part if largest_whole is None else largest_whole
    if largest_part <= max(limit, LARGEST_PART_UNITS * unit_bytes if len(bounds) > 2 else 0):
        return InputParts(bounds=bounds)
    return InputParts(bounds=(*range(0, bounds[-1], unit_bytes), bounds[-1]), is_stream=True)


def _with_form(file: InputFile, *, wanted: InputFormat) -> InputFile:
    try:
        return replace(file, form=detect_form(file.absolute_path, shown_as=file.path, wanted=wanted))
    except OSError as error:
        msg = f"{file.path}: cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error


def _detect_table(path: str, head: bytes) -> TableFormat | None:
    from dsindex.text.tables.formats import PARQUET_MAGIC, detect_table

    if detect_table(head, PARQUET_MAGIC) != "parquet":
        return detect_table(head, b"")
    with open_readable(path) as file:
        return detect_table(head, file.read_at(_TAIL_BYTES, max(0, file.size_bytes - _TAIL_BYTES)))


def _named_format(name: str, container: Container) -> Format:
    """Return the format that a file's name promises.

    Raises:
        InputError: If it must be asked for, or the name promises a table that the file is not.
    """
    stem, suffix = os.path.splitext(name.lower())
    if suffix in SUFFIXES:
        suffix = os.path.splitext(stem)[1]
    if suffix in _TABLE_SUFFIXES:
        got = "other data" if container == "plain" else f"{container} data"
        msg = f"{name}: expected a Parquet or Arrow file as its name says, got {got}; unpack it, or fetch it again"
        raise InputError(msg)
    if suffix == ".txt":
        msg = (
            f"{name}: expected to know what a document of plain text is; choose --input-format lines (each line is "
            f"one) or --input-format document (each file is one)"
        )
        raise InputError(msg)
    return _NAMED_FORMATS.get(suffix, "jsonl")


def _cut_table(path: str, format: TableFormat, shard_size: int, columns: Columns | None) -> InputParts:
    from dsindex.text.tables.shapes import measure_table

    groups = measure_table(path, format, columns).groups
    bounds, num_bytes = [0], 0
    for number, group in enumerate(groups):
        if num_bytes >= shard_size:
            bounds.append(number)
            num_bytes = 0
        num_bytes += group.text_bytes
    return InputParts(bounds=(*bounds, len(groups)), text_bytes=sum(group.text_bytes for group in groups))


def _size_of(path: str) -> int:
    try:
        return input_status(path).size_bytes
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error
