"""From inputs to shards: which files, in which order, cut where. Pure except for the calls that stat the files."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

import xxhash

from dsindex.amounts import count, format_size
from dsindex.engine.input_paths import STANDARD_INPUT
from dsindex.engine.tasks import ShardTask
from dsindex.errors import InputError, PlanError
from dsindex.store.reading import input_status, open_readable
from dsindex.store.storage import STANDARD_INPUT_KIND, describe_empty, what_is_no_file
from dsindex.store.store import find
from dsindex.text.compressed import SUFFIXES, detect_file
from dsindex.text.forms import JSON_LINES, PARQUET_MAGIC, InputForm, SmallFile, detect_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dsindex.engine.input_paths import FoundPath
    from dsindex.text.compressed import Container
    from dsindex.text.forms import Format, TableFormat

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SHARDS_PER_INPUT = 32
"""About as many shards has a large input, until they reach the largest size."""
MOST_SHARDS_PER_INPUT = 10_000
"""A larger input has larger shards."""
SMALL_SHARD_BYTES, MANY_SMALL_SHARDS = 64 << 10, 10_000
"""Shards that are smaller than the first number of bytes are refused if there would be more than the second of them."""
LARGEST_SHARD_BYTES = 64 << 20
"""The largest shard size that is chosen, but for that limit."""
TEXT_PER_STORED_BYTE = 4
"""About the bytes of text per byte of a compressed input or a table: the result depends on it only for speed."""
SMALL_PART = 4
"""An input of at most this part of a shard shares one with others."""
FILE_WEIGHT_BYTES = 2 << 10
"""A smaller input counts as this many bytes, since opening it takes as long as encoding them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputParts:
    """The parts of an input that cannot be cut anywhere."""

    bounds: tuple[int, ...]
    """Where parts begin, ascending from 0, and where the last one ends: in bytes of the file, or in row groups."""
    text_bytes: int | None = None
    """Size of the wanted columns of a table, as its metadata says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input, as it was when the job was planned."""

    path: str
    """The path as the user gave it."""
    absolute_path: str
    size_bytes: int
    version: str
    """Modification time in ns, or an object's ETag."""
    form: InputForm = JSON_LINES
    parts: InputParts | None = None
    """Where it can be cut; None: anywhere, by bytes."""


def look_at_inputs(paths: Iterable[FoundPath]) -> list[InputFile]:
    """Return the files under paths that were found, as they are now.

    Raises:
        InputError: If one cannot be an input, naming it.
    """
    paths = list(paths)
    return map_in_threads(_look_at_found, paths)


def _look_at_found(found: FoundPath) -> InputFile:
    try:
        return _look_at_stored(found.absolute_path) if found.is_standard_input else _look_at(found)
    except InputError:
        with found.errors_placed():
            raise


def _look_at_stored(path: str) -> InputFile:
    stored = find(path)
    if stored is None:
        raise InputError(f"{path}: expected the standard input that was stored there, got nothing; pipe it again")
    return InputFile(path=STANDARD_INPUT, absolute_path=path, size_bytes=stored.size_bytes, version=stored.version)


def _look_at(found: FoundPath) -> InputFile:
    path = found.path
    kind = what_is_no_file(path)
    if kind is not None:
        remedy = (
            "give it as --input -, which stores it first"
            if kind == STANDARD_INPUT_KIND
            else "save its data to a file and name that: an input is read in parts, in parallel and more than once"
        )
        raise InputError(f"{path}: expected a file, got {kind}; {remedy}")
    try:
        status = found.status or input_status(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check --input") from error
    if status.size_bytes == 0:
        raise InputError(f"{path}: expected at least one record, got {describe_empty(path)}; leave it out of --input")
    return InputFile(
        path=path,
        absolute_path=found.absolute_path,
        size_bytes=status.size_bytes,
        version=status.version,
    )


def choose_shard_size(file: InputFile, largest: int = LARGEST_SHARD_BYTES) -> int:
    """Return the size of an input's shards, in bytes of text: about 1/32 of it, from 1/8 of the largest size on.

    It depends on the input alone, so an input that is added or changed leaves the shards of all others as they are.
    """
    size = largest // 8
    while size < largest and size * SHARDS_PER_INPUT < _weigh(file):
        size *= 2
    return max(size, -(-file.size_bytes // MOST_SHARDS_PER_INPUT))


def check_shard_size(total_bytes: int, wanted: int) -> None:
    """Refuse to cut an input into very many small shards; a few are useful to try something.

    Raises:
        PlanError: If there would be too many.
    """
    if wanted < SMALL_SHARD_BYTES and total_bytes > MANY_SMALL_SHARDS * wanted:
        raise PlanError(
            f"expected shards of 64KiB or more for {format_size(total_bytes)} of input, got {count(wanted, 'byte')}, "
            f"which would make {total_bytes // wanted:,} shards; give --shard-size a larger unit, or leave it out"
        )


def _weigh(file: InputFile) -> int:
    """Return about how much work a file is, as bytes of text; one that has parts is compressed or a table."""
    is_text = file.parts is None and file.form.can_seek
    return max(FILE_WEIGHT_BYTES, file.size_bytes if is_text else file.size_bytes * TEXT_PER_STORED_BYTE)


def plan_shards(inputs: Sequence[InputFile], shard_sizes: Sequence[int], *, joins: bool = True) -> list[ShardTask]:
    """Cut every input into ranges of its shard size, or into its parts, in order; small ones share a shard.

    Args:
        inputs: The inputs with their parts.
        shard_sizes: Bytes of text in a shard of each input, about.
        joins: Whether a shard may have several inputs.
    """
    tasks: list[ShardTask] = []
    held: list[InputFile] = []
    held_bytes = 0

    def end_list() -> None:
        nonlocal held, held_bytes
        if held:
            tasks.append(_join_inputs(held, len(tasks), tasks_end()))
        held, held_bytes = [], 0

    def tasks_end() -> int:
        return tasks[-1].inputs.stop if tasks else 0

    for number, (file, size) in enumerate(zip(inputs, shard_sizes, strict=True)):
        if not joins or not _is_small(file, size):
            end_list()
            tasks += _cut_input(file, size, len(tasks), number)
            continue
        held.append(file)
        held_bytes += _weigh(file)
        if held_bytes >= size or _ends_list(file, size):
            end_list()
    end_list()
    return tasks


def _ends_list(file: InputFile, shard_size: int) -> bool:
    """Tell whether a list of small inputs ends with one, by its name: so lists after an added input are what they were.

    On average, a list has half a shard.
    """
    among = max(1, shard_size // (2 * _weigh(file)))
    return xxhash.xxh3_64_intdigest(file.absolute_path.encode("utf-8", "surrogateescape")) % among == 0


def _is_small(file: InputFile, shard_size: int) -> bool:
    is_one_part = file.parts is None or len(file.parts.bounds) == 2
    return is_one_part and _weigh(file) <= shard_size // SMALL_PART


def _join_inputs(files: Sequence[InputFile], shard: int, number: int) -> ShardTask:
    if len(files) == 1:
        return next(_cut_input(files[0], max(1, files[0].size_bytes), shard, number))
    size_bytes = sum(file.size_bytes for file in files)
    identity = "".join(f"{file.absolute_path}\0{file.size_bytes}\0{file.version}\0" for file in files)
    return ShardTask(
        shard=shard,
        input=number,
        path=files[0].absolute_path,
        begin=0,
        end=size_bytes,
        stored_bytes=size_bytes,
        input_size_bytes=size_bytes,
        input_version=xxhash.xxh3_128_hexdigest(identity.encode("utf-8", "surrogateescape")),
        files=tuple(
            SmallFile(
                path=file.absolute_path,
                size_bytes=file.size_bytes,
                version=file.version,
                form=file.form,
                end=file.size_bytes if file.parts is None else file.parts.bounds[-1],
            )
            for file in files
        ),
    )


def _cut_input(file: InputFile, shard_size: int, shard: int, number: int) -> Iterator[ShardTask]:
    bounds = (*range(0, file.size_bytes, shard_size), file.size_bytes) if file.parts is None else file.parts.bounds
    units = max(1, bounds[-1])
    for begin, end in pairwise(bounds):
        yield ShardTask(
            shard=shard,
            input=number,
            path=file.absolute_path,
            begin=begin,
            end=end,
            form=file.form,
            stored_bytes=file.size_bytes * end // units - file.size_bytes * begin // units,
            input_size_bytes=file.size_bytes,
            input_version=file.version,
        )
        shard += 1


# What the inputs of a job contain, and where they can be cut: told from the files themselves.

InputFormat: TypeAlias = Literal["auto", "jsonl", "lines", "document"]
"""The formats that can be asked for; Parquet and Arrow are told by content."""
Columns: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Name of each wanted column → the names of the fields that lead to it."""

_TABLE_SUFFIXES = {".parquet", ".arrow", ".feather"}
_TAIL_BYTES = 8
_EXAMINED_AT_ONCE = 48
_QUICK_SECONDS = 0.0005
"""Up to this time for a file no other thread is needed."""


def look_inside(inputs: Iterable[InputFile], *, wanted: InputFormat = "auto") -> list[InputFile]:
    """Return the inputs with their forms.

    Args:
        inputs: The inputs.
        wanted: The format of all inputs that are not Parquet or Arrow; `auto` is JSON lines.

    Raises:
        InputError: If one cannot be read, or is of a kind that is not supported.
    """
    return map_in_threads(partial(_with_form, wanted=wanted), list(inputs))


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
    format = _named_format(shown_as, container)
    return JSON_LINES if (container, format) == ("plain", "jsonl") else InputForm(container=container, format=format)


def cut_inputs(
    inputs: Iterable[InputFile],
    shard_size: int | None,
    *,
    largest: int = LARGEST_SHARD_BYTES,
    columns: Columns | None = None,
) -> tuple[list[InputFile], list[int]]:
    """Return the inputs with their parts, those that cannot be cut anywhere, and the shard size of each.

    Args:
        inputs: The inputs with their forms.
        shard_size: Bytes of text in a shard, about; None to choose it for each input.
        largest: The largest size that is chosen.
        columns: The wanted columns of tables; None for all.

    Raises:
        InputError: If one cannot be read, or lacks a column.
    """
    inputs = list(inputs)
    sizes = [choose_shard_size(file, largest) if shard_size is None else shard_size for file in inputs]

    def cut(sized: tuple[InputFile, int]) -> InputFile:
        file, size = sized
        return replace(file, parts=find_parts(file.absolute_path, file.form, shard_size=size, columns=columns))

    return map_in_threads(cut, list(zip(inputs, sizes, strict=True))), sizes


def map_in_threads(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Call a function for each item: in turn as long as that is quick, else several at once.

    Where a file is opened in microseconds, threads take eight times as long as one, since they wait for each other.
    """
    answers = list(map(function, items[:1]))  # the first may import what it needs
    began = time.monotonic()
    while len(answers) < len(items) and time.monotonic() - began < _QUICK_SECONDS * (len(answers) + 10):
        answers.append(function(items[len(answers)]))
    with ThreadPoolExecutor(_EXAMINED_AT_ONCE, thread_name_prefix="dsindex-look") as pool:
        return [*answers, *pool.map(function, items[len(answers) :])]


def find_parts(path: str, form: InputForm, *, shard_size: int, columns: Columns | None = None) -> InputParts | None:
    """Return where an input can be cut; None for anywhere. A compressed file is one part.

    Args:
        path: The input.
        form: Its form.
        shard_size: Bytes of text in a part, about.
        columns: The wanted columns of a table; None for all.

    Raises:
        InputError: If it cannot be read, or lacks a column.
    """
    if form.is_table:
        return _cut_table(path, cast("TableFormat", form.format), shard_size, columns)
    if form.can_seek:
        return None
    return InputParts(bounds=(0, _size_of(path)))


def _with_form(file: InputFile, *, wanted: InputFormat) -> InputFile:
    try:
        form = detect_form(file.absolute_path, shown_as=file.path, wanted=wanted)
    except OSError as error:
        raise InputError(f"{file.path}: cannot be read ({error.strerror}); check --input") from error
    return file if form is file.form or form == file.form else replace(file, form=form)


def _detect_table(path: str, head: bytes) -> TableFormat | None:
    table = detect_table(head, PARQUET_MAGIC)
    if table != "parquet":
        return table
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
        raise InputError(
            f"{name}: expected to know what a document of plain text is; choose --input-format lines (each line is "
            f"one) or --input-format document (each file is one)"
        )
    if suffix in {".csv", ".tsv"}:
        raise InputError(f"{name}: expected JSON lines, Parquet or Arrow, got {suffix}; write it as Parquet")
    return "jsonl"


def _cut_table(path: str, format: TableFormat, shard_size: int, columns: Columns | None) -> InputParts:
    from dsindex.text.tables import measure_table

    groups = measure_table(path, format, columns)
    bounds, num_bytes = [0], 0
    for number, group in enumerate(groups):
        if num_bytes >= shard_size:
            bounds.append(number)
            num_bytes = 0
        num_bytes += group
    return InputParts(bounds=(*bounds, len(groups)), text_bytes=sum(groups))


def _size_of(path: str) -> int:
    try:
        return input_status(path).size_bytes
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); it existed when the job was planned") from error
