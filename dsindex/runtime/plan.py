"""Plan a job: its settings, its inputs in order, and the shards that they are cut into.

Two runs have the same plan if and only if nothing that affects their output differs. If only inputs differ, only their
shards are made again: how a file is cut depends on that file and the chosen sizes alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import xxhash

from dsindex.formats.manifest import Plan
from dsindex.messages import remove_secrets, show_name
from dsindex.runtime.tasks import ShardTask, name_in_plan
from dsindex.store.errors import reading
from dsindex.store.json_text import encode_json
from dsindex.store.local import InputStatus
from dsindex.store.protocol import store_of
from dsindex.text.input_format import TextPart, detect_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dsindex.runtime.input_paths import InputPath
    from dsindex.text.input_format import InputFormat
    from dsindex.text.selection import Selection

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SHARDS_PER_INPUT = 32
"""Target number of shards for a large input, until its shards reach the largest size."""
MAX_SHARDS_PER_INPUT = 10_000
"""An input that would have more shards gets larger ones."""
LARGEST_SHARD_BYTES = 64 << 20
"""Largest shard size that is chosen for one input, unless it would exceed MAX_SHARDS_PER_INPUT."""
JOB_SHARDS = 1 << 17
"""Target number of shards for a large job, since each shard costs the driver a little time."""
LARGEST_JOB_SHARD_BYTES = 1 << 30
"""Largest shard size that is chosen to meet JOB_SHARDS."""
TEXT_PER_STORED_BYTE = 4
"""Assumed bytes of text per compressed byte; only speed depends on it."""
SMALL_PART = 4
"""Inputs of at most 1/4 of a shard share shards."""
FILE_WEIGHT_BYTES = 2 << 10
"""An input counts for at least this many bytes, since opening a file takes as long as encoding them."""
_EXAMINED_AT_ONCE = 48
_WAITING = 4096
_QUICK_SECONDS = 0.0005
"""If examining a file takes longer, threads examine several at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input, and the parts in which it is read."""

    path: str
    """The path as the user gave it."""
    parts: tuple[TextPart, ...]
    """At least one, in order; exactly one until the input is cut."""
    groups: tuple[int, ...] | None = None
    """Bytes of text in each row group of a table; None for other inputs, and once the table is cut."""

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.parts[0].size_bytes

    @property
    def text_bytes(self) -> int:
        """Size of its text; an estimate if it is compressed."""
        return sum(part.text_bytes for part in self.parts)


def examine_inputs(
    paths: Iterable[InputPath], *, input_format: InputFormat = "auto", selection: Selection | None = None
) -> list[InputFile]:
    """Read the size, version, compression and format of files.

    Args:
        paths: The paths.
        input_format: The format of all inputs that are not Parquet or Arrow; `auto` is JSON lines.
        selection: The record fields that the job reads; None if it may read all.

    Raises:
        InputError: If a file cannot be an input, naming it.
    """
    return _map_in_threads(partial(_examine_input, input_format=input_format, selection=selection), list(paths))


def _examine_input(input_path: InputPath, *, input_format: InputFormat, selection: Selection | None) -> InputFile:
    path, stored_path = input_path.path, input_path.absolute_path
    with input_path.prefix_errors():
        hint = "check --input, which takes files, folders and patterns, and - for a pipe"
        with reading(path, hint=hint), store_of(stored_path).open(stored_path, input_path.status) as file:
            form = detect_form(file, shown_as=path, input_format=input_format)
        whole = TextPart.of_file(InputStatus(path=stored_path, size_bytes=file.size_bytes, version=file.version), form)
        if not form.is_table:
            text_bytes = whole.size_bytes * (1 if form.container == "plain" else TEXT_PER_STORED_BYTE)
            return InputFile(path=path, parts=(replace(whole, text_bytes=text_bytes),))
        from dsindex.text.tables import measure_table

        groups = tuple(measure_table(whole, None if selection is None else selection.of_input(stored_path).paths))
        return InputFile(path=path, parts=(replace(whole, end=len(groups), text_bytes=sum(groups)),), groups=groups)


def cut_input(
    file: InputFile, *, shard_size: int | None = None, smallest: int = 0, largest: int = LARGEST_SHARD_BYTES
) -> InputFile:
    """Cut an input into the parts of shards: byte ranges, runs of row groups, or one part if it can only be read whole.

    Args:
        file: The input, in one part.
        shard_size: Approximate bytes of text in a shard; None to choose a size for the input.
        smallest: The smallest size to choose.
        largest: The largest size to choose, unless `smallest` is larger.
    """
    [whole] = file.parts
    size = whole.size_bytes
    shard_bytes = shard_size or choose_shard_size(whole.text_bytes, smallest=smallest, largest=largest)
    shard_bytes = max(shard_bytes, -(-size // MAX_SHARDS_PER_INPUT))
    bounds = [0, whole.end]
    if file.groups is not None:
        bounds = [*_begins_of_shards(file.groups, shard_bytes), whole.end]
    elif whole.form.can_seek and size:
        bounds = [*range(0, size, shard_bytes), size]
    units = max(1, whole.end)
    parts = (
        replace(
            whole,
            begin=begin,
            end=end,
            stored_bytes=size * end // units - size * begin // units,
            text_bytes=whole.text_bytes * end // units - whole.text_bytes * begin // units,
        )
        for begin, end in pairwise(bounds)
    )
    return InputFile(path=file.path, parts=tuple(parts))


def choose_smallest_shard(text_bytes: int) -> int:
    """Return the smallest shard size that gives a job about JOB_SHARDS shards: a power of two up to 1 GiB.

    >>> choose_smallest_shard(2 << 40) >> 20, choose_smallest_shard(100 * 10**12) >> 20
    (16, 1024)
    """
    min_bytes = -(-text_bytes // JOB_SHARDS)
    return min(1 << max(min_bytes - 1, 0).bit_length(), LARGEST_JOB_SHARD_BYTES)


def choose_shard_size(text_bytes: int, *, smallest: int = 0, largest: int = LARGEST_SHARD_BYTES) -> int:
    """Return the shard size of an input in bytes of text: about 1/32 of it, at least 1/8 of `largest`."""
    size = largest // 8
    while size < largest and size * SHARDS_PER_INPUT < text_bytes:
        size *= 2
    return max(size, smallest)


def _begins_of_shards(groups: Sequence[int], shard_bytes: int) -> Iterator[int]:
    """Yield the number of the first row group of each shard of a table."""
    yield 0
    num_bytes = 0
    for number, group in enumerate(groups):
        if num_bytes >= shard_bytes:
            yield number
            num_bytes = 0
        num_bytes += group


def _map_in_threads(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Call a function for each item: in this thread while that is quick, otherwise in several threads.

    If a file opens in microseconds, threads take eight times as long as one thread, since they wait for the GIL.
    """
    results: list[Answer] = []
    began = 0.0
    for item in items:
        results.append(function(item))
        began = began or time.monotonic()  # after the first call, which may import modules
        if time.monotonic() - began > _QUICK_SECONDS * (len(results) + 10):
            break
    with ThreadPoolExecutor(_EXAMINED_AT_ONCE, thread_name_prefix="dsindex-look") as pool:
        while len(results) < len(items):  # in batches, since a queued call takes more memory than its answer
            results += pool.map(function, items[len(results) : len(results) + _WAITING])
    return results


def plan_shards(
    inputs: Sequence[InputFile], *, shard_bytes: int, dataset_begins: Sequence[int] = (0,)
) -> list[ShardTask]:
    """Return the shards of inputs in order: one per part, except that small inputs share shards.

    Args:
        inputs: The inputs.
        shard_bytes: Approximate bytes of text in a shard of small inputs.
        dataset_begins: Number of the first input of each dataset; no shard has inputs of two datasets.
    """
    tasks, occurrences = list[ShardTask](), Counter[str]()
    for dataset, (begin, end) in enumerate(pairwise([*dataset_begins, len(inputs)])):
        for first, parts in _group_parts(inputs[begin:end], shard_bytes):
            task = ShardTask(shard=len(tasks), input=begin + first, parts=parts, dataset=dataset)
            key = task.key
            tasks.append(msgspec.structs.replace(task, occurrence=occurrences[key]) if occurrences[key] else task)
            occurrences[key] += 1
    return tasks


def group_inputs(sizes: Iterable[int], max_bytes: int) -> list[int]:
    """Return the number of the first input of each dataset; only a dataset of a single input exceeds `max_bytes`.

    >>> group_inputs([5, 4, 3, 20, 1, 2], 10)
    [0, 2, 3, 4]
    """
    begins, held_bytes = [0], 0
    for number, size in enumerate(sizes):
        if held_bytes and held_bytes + size > max_bytes:
            begins.append(number)
            held_bytes = 0
        held_bytes += size
    return begins


def _group_parts(inputs: Sequence[InputFile], shard_bytes: int) -> Iterator[tuple[int, tuple[TextPart, ...]]]:
    """Yield the number of the first input and the parts of each shard."""
    held_parts: list[TextPart] = []
    held_bytes = 0
    for number, file in enumerate(inputs):
        weight_bytes = max(FILE_WEIGHT_BYTES, file.text_bytes)
        is_small = len(file.parts) == 1 and weight_bytes <= shard_bytes // SMALL_PART
        if is_small:
            held_parts += file.parts
            held_bytes += weight_bytes
            if held_bytes < shard_bytes and not _ends_shard(file, shard_bytes // (2 * weight_bytes)):
                continue
        if held_parts:
            yield number + is_small - len(held_parts), tuple(held_parts)
            held_parts, held_bytes = [], 0
        if not is_small:
            yield from ((number, (part,)) for part in file.parts)
    if held_parts:
        yield len(inputs) - len(held_parts), tuple(held_parts)


def _ends_shard(file: InputFile, interval: int) -> bool:
    """Decide from the name of a small input whether it ends a shard, so that an added input changes few shards.

    On average, such shards are half full.
    """
    return xxhash.xxh3_64_intdigest(file.parts[0].path.encode("utf-8", "surrogateescape")) % max(1, interval) == 0


# Plans: the settings of a job, and the ordered list of its inputs.


def make_plan(settings: Mapping[str, Any], inputs: Iterable[InputStatus] = ()) -> Plan:
    """Return the plan for inputs and for settings, which must be JSON-compatible."""
    return Plan(
        settings=json.loads(encode_json(settings)),
        inputs=[(name_in_plan(file.path), file.size_bytes, file.version) for file in inputs],
    )


def compare_plans(old: Plan, new: Plan) -> tuple[list[str], list[str]]:
    """Return the differences between the settings of two plans, and between their inputs, a phrase for each.

    Changing `on-bad-record` from `fail` is not a difference: shards that were made under `fail` have no bad records.
    """
    before, after = old.settings, new.settings
    settings = [
        f"{name} was {_show_setting(name, before.get(name))} and is {_show_setting(name, after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and (name, before.get(name)) != ("on-bad-record", "fail")
    ]
    if old.inputs == new.inputs:
        return settings, []
    inputs, old_files, new_files = [], Counter(old.inputs), Counter(new.inputs)
    old_paths = Counter(path for path, *_ in (old_files - new_files).elements())
    new_paths = Counter(path for path, *_ in (new_files - old_files).elements())
    changed = old_paths & new_paths
    for change, paths in (("changed", changed), ("gone", old_paths - changed), ("new", new_paths - changed)):
        if paths:
            more = f" and {paths.total() - 1:,} more are" if paths.total() > 1 else " is"
            inputs.append(f"the input {show_name(next(iter(paths)))}{more} {change}")
    return settings, inputs or ["the inputs are in another order"]


def _show_setting(name: str, value: object) -> str:
    if value is None or value is False:
        return "not given"
    return "given" if value is True or name == "append-eod" else remove_secrets(encode_json(value).decode())
