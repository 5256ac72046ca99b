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
from dsindex.engine.shards.tokenize import NO_CUTS, Cuts, ShardTask, task_key
from dsindex.errors import InputError, PlanError
from dsindex.store.reading import input_status, look_at_all, open_readable
from dsindex.store.spool import find_spooled
from dsindex.store.storage import STANDARD_INPUT_KIND, describe_empty, what_is_no_file
from dsindex.text.compressed import SUFFIXES, detect_file, find_cuts
from dsindex.text.forms import JSON_LINES, PARQUET_MAGIC, InputForm, SmallFile, detect_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dsindex.engine.input_paths import FoundPath
    from dsindex.text.compressed import Container
    from dsindex.text.forms import Format, TableFormat
    from dsindex.text.sampling import Sample

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_SHARDS = 100_000
"""The approximate limit on the shards of a build; larger inputs get larger shards."""
SMALL_SHARD_BYTES, MANY_SMALL_SHARDS = 64 << 10, 10_000
"""Shards that are smaller than the first number of bytes are refused if there would be more than the second of them."""
LARGEST_SHARD_BYTES = 64 << 20
"""The largest shard size that is chosen, but for that limit."""
TEXT_PER_STORED_BYTE = 4
"""About the bytes of text per byte of a compressed input or a table: the result depends on it only for speed."""
FEW_SHARDS = 32
"""About as many shards are planned until they reach the largest size."""
SMALL_PART = 4
"""An input of at most this part of a shard shares one with others."""
FILE_WEIGHT_BYTES = 2 << 10
"""A smaller input counts as this many bytes, since opening it takes as long as encoding them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputParts:
    """The parts of an input that cannot be cut anywhere."""

    bounds: tuple[int, ...]
    """Where parts begin, ascending from 0, and where the last one ends: in bytes of the file, or in row groups."""
    is_stream: bool = False
    """Whether a part can only be decoded after all parts before it."""
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
    return look_at_all(_look_at_found, paths, places=[found.path for found in paths])


def _look_at_found(found: FoundPath) -> InputFile:
    try:
        return _look_at_spooled(found.absolute_path) if found.is_standard_input else _look_at(found)
    except InputError:
        with found.errors_placed():
            raise


def _look_at_spooled(path: str) -> InputFile:
    stored = find_spooled(path)
    if stored is None:
        msg = f"{path}: expected the standard input that was stored there, got another object; pipe it again"
        raise InputError(msg)
    return InputFile(
        path=STANDARD_INPUT, absolute_path=stored.path, size_bytes=stored.size_bytes, version=stored.version
    )


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


def choose_shard_size(total_bytes: int, wanted: int) -> int:
    """Return the wanted shard size, or a larger one if there would be too many shards.

    Raises:
        PlanError: If the input would be cut into very many small shards; few small ones are useful to try something.

    >>> choose_shard_size(10 << 40, 64 << 20) >> 20
    104
    """
    if wanted < SMALL_SHARD_BYTES and total_bytes > MANY_SMALL_SHARDS * wanted:
        raise PlanError(
            f"expected shards of 64KiB or more for {format_size(total_bytes)} of input, got {count(wanted, 'byte')}, "
            f"which would make {total_bytes // wanted:,} shards; give --shard-size a larger unit, or leave it out"
        )
    return max(wanted, -(-total_bytes // MAX_SHARDS))


def measure_places(inputs: Sequence[InputFile], cuts: Cuts = NO_CUTS) -> list[int]:
    """Return the place of each input: about the work that it and all before it are, as bytes of text, when first cut.

    An input's shards follow from its place. So inputs that are added at the end change no shard of the others, and one
    that an earlier run has cut is cut again as it was, wherever it is now. An input that occurs again is cut as before.
    """
    places: dict[str, int] = {}
    so_far = 0
    for file in inputs:
        so_far += _weigh(file)
        earlier = cuts.places.get((file.absolute_path, file.size_bytes, file.version), so_far)
        places.setdefault(file.absolute_path, earlier)
    return [places[file.absolute_path] for file in inputs]


def choose_shard_sizes(
    inputs: Sequence[InputFile], *, places: Sequence[int] | None = None, largest: int = LARGEST_SHARD_BYTES
) -> list[int]:
    """Return the shard size of each input, chosen so that a small job has shards for many CPUs.

    It is a power-of-two part of `largest`, from 1/32 of it on, and about 1/32 of the text up to the input's place. So a
    large job has only a few small shards.
    """
    most = choose_shard_size(sum(file.size_bytes for file in inputs), largest)
    sizes = []
    for place in measure_places(inputs) if places is None else places:
        size = max(1, largest // FEW_SHARDS)
        while size < largest and size * FEW_SHARDS < place:
            size *= 2
        sizes.append(size if size < largest else most)
    return sizes


def _weigh(file: InputFile) -> int:
    """Return about how much work a file is, as bytes of text; one that has parts is compressed or a table."""
    is_text = file.parts is None and file.form.can_seek
    return max(FILE_WEIGHT_BYTES, file.size_bytes if is_text else file.size_bytes * TEXT_PER_STORED_BYTE)


def plan_shards(
    inputs: Sequence[InputFile],
    shard_size: int | Sequence[int],
    *,
    joins: bool = True,
    cuts: Cuts = NO_CUTS,
) -> Iterator[ShardTask]:
    """Cut every input into ranges of `shard_size` bytes, which may differ by input, or into its parts, in order.

    Consecutive small inputs beyond the first FEW_SHARDS share a shard, up to its size. Inputs that are added at the end
    change none of these but the last.

    Args:
        inputs: The inputs with their parts.
        shard_size: Bytes of text in a shard, about; for all inputs, or for each.
        joins: Whether a shard may have several inputs.
        cuts: Shards of earlier runs; inputs that share one of them share it again.
    """
    shard = 0
    held: list[InputFile] = []
    held_bytes = 0
    shared = _find_shared(inputs, cuts.shards) if joins and cuts.shards else {}
    in_shared = 0
    for number, (file, size) in enumerate(zip(inputs, by_input(inputs, shard_size), strict=True)):
        if in_shared:
            in_shared -= 1
            continue
        if number in shared:
            if held:
                yield _join_inputs(held, shard, number - len(held))
                held, held_bytes, shard = [], 0, shard + 1
            in_shared = shared[number] - 1
            yield _join_inputs(inputs[number : number + in_shared + 1], shard, number)
            shard += 1
            continue
        is_small = joins and number >= FEW_SHARDS and _is_small(file, size)
        weight = _weigh(file)
        if held and (not is_small or held_bytes + weight > size):
            yield _join_inputs(held, shard, number - len(held))
            shard += 1
            held, held_bytes = [], 0
        if is_small:
            held.append(file)
            held_bytes += weight
            continue
        for task in _cut_input(file, size, shard, number):
            yield task
            shard += 1
    if held:
        yield _join_inputs(held, shard, len(inputs) - len(held))


def _find_shared(inputs: Sequence[InputFile], shards: Mapping[str, tuple[str, int]]) -> dict[int, int]:
    """Return the number of inputs that share an existing shard, by the number of the first; 1 if it was alone."""
    sizes: dict[str, list[int]] = {}
    for path, total_bytes in shards.values():
        sizes.setdefault(path, []).append(total_bytes)
    found: dict[int, int] = {}
    number = 0
    while number < len(inputs):
        count = 0
        for size_bytes in sizes.get(inputs[number].absolute_path, ()):
            last, total = number, 0
            while last < len(inputs) and total < size_bytes and _is_one_part(inputs[last]):
                total += inputs[last].size_bytes
                last += 1
            if 0 < total == size_bytes and task_key(_join_inputs(inputs[number:last], 0, number)) in shards:
                count = max(count, last - number)
        if count:
            found[number] = count
        number += max(1, count)
    return found


def _is_one_part(file: InputFile) -> bool:
    return file.parts is None or len(file.parts.bounds) == 2


def _is_small(file: InputFile, shard_size: int) -> bool:
    """Tell whether an input may share a shard; what a stored plan has of it decides."""
    return file.size_bytes <= shard_size // SMALL_PART and _is_one_part(file)


def _join_inputs(files: Sequence[InputFile], shard: int, number: int) -> ShardTask:
    if len(files) == 1:
        return next(_cut_input(files[0], files[0].size_bytes, shard, number))
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
    bounds = cut_plain(file, shard_size) if file.parts is None else file.parts.bounds
    units = max(1, bounds[-1])
    for begin, end in pairwise(bounds):
        yield ShardTask(
            shard=shard,
            input=number,
            path=file.absolute_path,
            begin=begin,
            end=end,
            form=file.form,
            is_of_stream=file.parts is not None and file.parts.is_stream,
            stored_bytes=file.size_bytes * end // units - file.size_bytes * begin // units,
            input_size_bytes=file.size_bytes,
            input_version=file.version,
        )
        shard += 1


def by_input(inputs: Sequence[InputFile], shard_size: int | Sequence[int]) -> Sequence[int]:
    """Return the shard size of each input."""
    return [shard_size] * len(inputs) if isinstance(shard_size, int) else shard_size


def cut_plain(file: InputFile, shard_size: int) -> tuple[int, ...]:
    """Return where ranges of a file that can be cut anywhere begin, and where the last one ends."""
    return (*range(0, file.size_bytes, shard_size), file.size_bytes)


# What the inputs of a job contain, and where they can be cut: told from the files themselves.

InputFormat: TypeAlias = Literal["auto", "jsonl", "lines", "document"]
"""The formats that can be asked for; Parquet and Arrow are told by content."""
Columns: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Name of each wanted column → the names of the fields that lead to it."""

FEWEST_STREAMS = 256
"""A stream that has less than this part of all input is one shard; larger ones are unpacked for all workers."""
FEW_STREAMS = 8
"""In a small job a stream that has less than this part of all input is one shard as well: others keep CPUs busy."""
LARGEST_PART_UNITS = 4
"""A file whose members are larger than this many shards is unpacked for all workers as well."""
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
    shard_size: int | Sequence[int],
    *,
    places: Sequence[int] | None = None,
    columns: Columns | None = None,
) -> list[InputFile]:
    """Return the inputs with their parts, those that cannot be cut anywhere.

    The parts are a function of the inputs, the columns and the shard size alone.

    Args:
        inputs: The inputs with their forms.
        shard_size: Bytes of text in a shard, about; for all inputs, or for each.
        places: The place of each input.
        columns: The wanted columns of tables; None for all.

    Raises:
        InputError: If one cannot be read, or lacks a column.
    """
    inputs = list(inputs)
    sizes = by_input(inputs, shard_size)
    places = measure_places(inputs) if places is None else places

    def cut(placed: tuple[InputFile, int, int]) -> InputFile:
        file, shard_size, place = placed
        if file.form.can_seek:
            return file
        if file.form.format in ("jsonl", "lines") and file.size_bytes <= shard_size // TEXT_PER_STORED_BYTE:
            return replace(file, parts=InputParts(bounds=(0, file.size_bytes)))  # as is found, without opening it
        largest_whole = _largest_whole(shard_size, place // TEXT_PER_STORED_BYTE)
        parts = find_parts(
            file.absolute_path, file.form, shard_size=shard_size, largest_whole=largest_whole, columns=columns
        )
        return replace(file, parts=parts)

    return map_in_threads(cut, list(zip(inputs, sizes, places, strict=True)))


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


def kept_share(samples: Sequence[Sample]) -> float:
    """Return the share of all records that is kept, about."""
    return sum(sample.high - sample.low for sample in samples)
