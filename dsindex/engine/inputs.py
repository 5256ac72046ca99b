"""From inputs to shards: what each file is and where it can be cut. How a file is cut depends on that file alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import xxhash

from dsindex.engine.tasks import ShardTask
from dsindex.errors import InputError
from dsindex.store.reading import input_status
from dsindex.store.storage import what_is_no_file
from dsindex.text.forms import JSON_LINES, InputForm, TextPart, detect_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.engine.input_paths import FoundPath
    from dsindex.store.storage import InputStatus
    from dsindex.text.forms import Columns, InputFormat

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SHARDS_PER_INPUT = 32
"""About as many shards has a large input, until they reach the largest size."""
MOST_SHARDS_PER_INPUT = 10_000
"""A larger input has larger shards."""
LARGEST_SHARD_BYTES = 64 << 20
"""The largest shard size that is chosen, but for that limit."""
TEXT_PER_STORED_BYTE = 4
"""About the bytes of text per byte of a compressed input or a table: the result depends on it only for speed."""
SMALL_PART = 4
"""An input of at most this part of a shard shares one with others."""
FILE_WEIGHT_BYTES = 2 << 10
"""A smaller input counts as this many bytes, since opening it takes as long as encoding them."""
_EXAMINED_AT_ONCE = 48
_WAITING = 4096
_QUICK_SECONDS = 0.0005
"""Up to this time for a file no other thread is needed."""


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
    shard_bytes: int = LARGEST_SHARD_BYTES
    """About the bytes of text in one of its shards."""
    bounds: tuple[int, ...] | None = None
    """Where its parts begin, ascending from 0, and the last one ends: in bytes of the file, or in row groups.

    None if it can be cut anywhere, by bytes.
    """
    table_bytes: int | None = None
    """Size of the wanted columns of a table, as its metadata says."""

    @property
    def text_bytes(self) -> int:
        """Size of its text, which is an estimate if it is compressed."""
        if self.table_bytes is not None:
            return self.table_bytes
        return self.size_bytes * (1 if self.form.container == "plain" else TEXT_PER_STORED_BYTE)

    @property
    def weight(self) -> int:
        """About how much work it is, as bytes of text."""
        return max(FILE_WEIGHT_BYTES, self.size_bytes * (1 if self.bounds is None else TEXT_PER_STORED_BYTE))

    @property
    def is_small(self) -> bool:
        """Whether it shares a shard with others, as a whole."""
        is_one_part = self.bounds is None or len(self.bounds) == 2
        return is_one_part and self.weight <= self.shard_bytes // SMALL_PART

    @property
    def end(self) -> int:
        """Where its last part ends."""
        return self.size_bytes if self.bounds is None else self.bounds[-1]

    def part(self, begin: int, end: int, *, is_sample: bool = False) -> TextPart:
        """Return a part of it."""
        return TextPart(
            path=self.absolute_path,
            size_bytes=self.size_bytes,
            version=self.version,
            begin=begin,
            end=end,
            form=self.form,
            is_sample=is_sample,
        )


def look_at_inputs(
    paths: Iterable[FoundPath],
    *,
    wanted: InputFormat = "auto",
    shard_size: int | None = None,
    largest: int = LARGEST_SHARD_BYTES,
    columns: Columns | None = None,
) -> list[InputFile]:
    """Return the files under paths that were found, as they are now, with their forms and parts.

    Args:
        paths: The paths.
        wanted: The format of all inputs that are not Parquet or Arrow; `auto` is JSON lines.
        shard_size: Bytes of text in a shard, about; None to choose it for each input.
        largest: The largest size that is chosen.
        columns: The wanted columns of tables; None for all.

    Raises:
        InputError: If one cannot be an input, naming it.
    """
    look = partial(_look_at, wanted=wanted, shard_size=shard_size, largest=largest, columns=columns)
    return _map_in_threads(look, list(paths))


def _look_at(
    found: FoundPath, *, wanted: InputFormat, shard_size: int | None, largest: int, columns: Columns | None
) -> InputFile:
    path, stored = found.path, found.absolute_path
    with found.errors_placed():
        kind = None if found.is_standard_input else what_is_no_file(path)
        if kind is not None:
            remedy = "save its data to a file, or pipe them to --input -: an input is read in parts, and more than once"
            raise InputError(f"{path}: expected a file, got {kind}; {remedy}")
        try:
            status = found.status or input_status(stored)
            if status.size_bytes == 0:
                what = "expected at least one record, got an empty file"
                raise InputError(f"{path}: {what}; leave it out of --input")
            form = detect_form(stored, shown_as=path, wanted=wanted, known=status)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); check --input") from error
        size, bounds, table_bytes = status.size_bytes, None, None
        shard_bytes = max(shard_size or choose_shard_size(size, form, largest), -(-size // MOST_SHARDS_PER_INPUT))
        if form.is_table:
            bounds, table_bytes = _cut_table(status, form, shard_bytes, columns)
        elif not form.can_seek:
            bounds = (0, size)
        return InputFile(
            path=path,
            absolute_path=stored,
            size_bytes=size,
            version=status.version,
            form=form,
            shard_bytes=shard_bytes,
            bounds=bounds,
            table_bytes=table_bytes,
        )


def choose_shard_size(size_bytes: int, form: InputForm, largest: int = LARGEST_SHARD_BYTES) -> int:
    """Return the size of an input's shards, in bytes of text: about 1/32 of it, from 1/8 of the largest size on."""
    text_bytes = size_bytes * (1 if form.can_seek else TEXT_PER_STORED_BYTE)
    size = largest // 8
    while size < largest and size * SHARDS_PER_INPUT < text_bytes:
        size *= 2
    return size


def _cut_table(
    status: InputStatus, form: InputForm, shard_size: int, columns: Columns | None
) -> tuple[tuple[int, ...], int]:
    """Return the row groups at which a table's shards begin and end, and the size of its wanted columns."""
    from dsindex.text.tables import measure_table

    groups = measure_table(status, form.format, columns)
    bounds, num_bytes = [0], 0
    for number, group in enumerate(groups):
        if num_bytes >= shard_size:
            bounds.append(number)
            num_bytes = 0
        num_bytes += group
    return (*bounds, len(groups)), sum(groups)


def _map_in_threads(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Call a function for each item: in turn as long as that is quick, else several at once.

    Where a file is opened in microseconds, threads take eight times as long as one, since they wait for each other.
    """
    answers: list[Answer] = []
    began = 0.0
    for item in items:
        answers.append(function(item))
        began = began or time.monotonic()  # the first may import what it needs
        if time.monotonic() - began > _QUICK_SECONDS * (len(answers) + 10):
            break
    with ThreadPoolExecutor(_EXAMINED_AT_ONCE, thread_name_prefix="dsindex-look") as pool:
        while len(answers) < len(items):  # a call that waits for its turn takes more memory than its answer
            answers += pool.map(function, items[len(answers) : len(answers) + _WAITING])
    return answers


def plan_shards(inputs: Sequence[InputFile]) -> list[ShardTask]:
    """Cut every input into ranges of its shard size, or into its parts, in order; small ones share a shard."""
    tasks: list[ShardTask] = []
    number = 0
    for files in _lists_of_small(inputs):
        cuts = [[file.part(0, file.end) for file in files]]
        if len(files) == 1:
            bounds = files[0].bounds or (*range(0, files[0].size_bytes, files[0].shard_bytes), files[0].size_bytes)
            cuts = [[files[0].part(begin, end)] for begin, end in pairwise(bounds)]
        for parts in cuts:
            keys = [f"{part.path}\0{part.size_bytes}\0{part.version}\0{part.begin}\0{part.end}" for part in parts]
            digest = xxhash.xxh3_128_hexdigest("\0".join(keys).encode("utf-8", "surrogateescape"))
            task = ShardTask(
                shard=len(tasks),
                input=number,
                parts=tuple(parts),
                key=keys[0] if len(keys) == 1 else f"{keys[0]}\0{digest}",
                stored_bytes=sum(_stored_bytes(*pair) for pair in zip(files, parts, strict=True)),
            )
            tasks.append(task)
        number += len(files)
    return tasks


def _stored_bytes(file: InputFile, part: TextPart) -> int:
    units = max(1, file.end)
    return file.size_bytes * part.end // units - file.size_bytes * part.begin // units


def _lists_of_small(inputs: Sequence[InputFile]) -> Iterator[list[InputFile]]:
    """Yield the inputs in lists, each of several small ones or of any other."""
    held: list[InputFile] = []
    held_bytes = 0
    for file in inputs:
        if not file.is_small:
            if held:
                yield held
            yield [file]
            held, held_bytes = [], 0
            continue
        held.append(file)
        held_bytes += file.weight
        if held_bytes >= file.shard_bytes or _ends_list(file):
            yield held
            held, held_bytes = [], 0
    if held:
        yield held


def _ends_list(file: InputFile) -> bool:
    """Tell whether a list of small inputs ends with one, by its name: so lists after an added input are what they were.

    On average, a list has half a shard.
    """
    among = max(1, file.shard_bytes // (2 * file.weight))
    return xxhash.xxh3_64_intdigest(file.absolute_path.encode("utf-8", "surrogateescape")) % among == 0
