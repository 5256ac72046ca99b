"""What a job is: its settings, its inputs in order, and the shards that they are cut into.

Two runs belong to the same plan if and only if nothing that their output depends on differs. If only inputs differ,
their shards alone are made again, since each shard belongs to its own input: how a file is cut depends on that file and
the chosen sizes alone.
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
from dsindex.messages import show_name, without_secrets
from dsindex.runtime.tasks import ShardTask, name_in_plan
from dsindex.store.errors import reading
from dsindex.store.json_text import encode_json
from dsindex.store.local import InputStatus
from dsindex.store.protocol import store_of
from dsindex.text.input_format import TextPart, detect_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dsindex.runtime.input_paths import FoundPath
    from dsindex.text.input_format import InputFormat
    from dsindex.text.selection import Selection

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SHARDS_PER_INPUT = 32
"""Target number of shards for a large input, until they reach the largest size."""
MOST_SHARDS_PER_INPUT = 10_000
"""An input that would have more gets larger shards."""
LARGEST_SHARD_BYTES = 64 << 20
"""The largest shard size that is chosen for one input, but for that limit."""
JOB_SHARDS = 1 << 17
"""About as many shards has a large job: the driver's work for each is small, but not nothing."""
LARGEST_JOB_SHARD_BYTES = 1 << 30
"""The largest size that is chosen for that."""
TEXT_PER_STORED_BYTE = 4
"""Assumed bytes of text per compressed byte; only speed depends on it."""
SMALL_PART = 4
"""Inputs of at most 1/4 of a shard share shards."""
FILE_WEIGHT_BYTES = 2 << 10
"""A smaller input counts as this many bytes, since opening it takes as long as encoding that many."""
_EXAMINED_AT_ONCE = 48
_WAITING = 4096
_QUICK_SECONDS = 0.0005
"""If looking at a file takes longer, threads look at several at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input, and the parts it is read in."""

    path: str
    """The path as the user gave it."""
    parts: tuple[TextPart, ...]
    """At least one, in order; a single one until it is cut."""
    groups: tuple[int, ...] | None = None
    """Bytes of text in each row group of a table that is not cut yet."""

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.parts[0].size_bytes

    @property
    def text_bytes(self) -> int:
        """Size of its text; an estimate if it is compressed."""
        return sum(part.text_bytes for part in self.parts)


def look_at_inputs(
    paths: Iterable[FoundPath], *, wanted: InputFormat = "auto", selection: Selection | None = None
) -> list[InputFile]:
    """Look at files: their size, version, compression and format.

    Args:
        paths: The paths.
        wanted: The format of all inputs that are not Parquet or Arrow; `auto` is JSON lines.
        selection: What is read of records; None if any record may be read.

    Raises:
        InputError: If one cannot be an input, naming it.
    """
    return _map_in_threads(partial(_look_at, wanted=wanted, selection=selection), list(paths))


def _look_at(found: FoundPath, *, wanted: InputFormat, selection: Selection | None) -> InputFile:
    path, stored = found.path, found.absolute_path
    with found.errors_placed():
        hint = "check --input, which takes files, folders and patterns, and - for a pipe"
        with reading(path, hint=hint), store_of(stored).open(stored, found.status) as file:
            form = detect_form(file, shown_as=path, wanted=wanted)
        whole = TextPart.of(InputStatus(path=stored, size_bytes=file.size_bytes, version=file.version), form)
        if not form.is_table:
            text_bytes = whole.size_bytes * (1 if form.container == "plain" else TEXT_PER_STORED_BYTE)
            return InputFile(path=path, parts=(replace(whole, text_bytes=text_bytes),))
        from dsindex.text.tables import measure_table

        groups = tuple(measure_table(whole, None if selection is None else selection.of_input(stored).paths))
        return InputFile(path=path, parts=(replace(whole, end=len(groups), text_bytes=sum(groups)),), groups=groups)


def cut_input(
    file: InputFile, *, shard_size: int | None = None, smallest: int = 0, largest: int = LARGEST_SHARD_BYTES
) -> InputFile:
    """Cut an input into the parts of shards: ranges of bytes, runs of row groups, or all if it can only be read whole.

    Args:
        file: The input, which depends on nothing else.
        shard_size: Bytes of text in a shard, about; None to choose it for the input.
        smallest: The smallest size that is chosen.
        largest: The largest size that is chosen, unless `smallest` is larger.
    """
    [whole] = file.parts
    size = whole.size_bytes
    shard_bytes = shard_size or choose_shard_size(whole.text_bytes, smallest=smallest, largest=largest)
    shard_bytes = max(shard_bytes, -(-size // MOST_SHARDS_PER_INPUT))
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
    """Return the smallest shard size of a job, so that it has about JOB_SHARDS shards: a power of two up to 1 GiB.

    >>> choose_smallest_shard(2 << 40) >> 20, choose_smallest_shard(100 * 10**12) >> 20
    (16, 1024)
    """
    wanted = -(-text_bytes // JOB_SHARDS)
    return min(1 << max(wanted - 1, 0).bit_length(), LARGEST_JOB_SHARD_BYTES)


def choose_shard_size(text_bytes: int, *, smallest: int = 0, largest: int = LARGEST_SHARD_BYTES) -> int:
    """Return the size of an input's shards in bytes of text: about 1/32 of it, from 1/8 of the largest size on."""
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
    """Call a function for each item, one after another while that is quick, otherwise in threads.

    If a file opens in microseconds, threads take eight times as long as one thread, since they wait for the GIL.
    """
    answers: list[Answer] = []
    began = 0.0
    for item in items:
        answers.append(function(item))
        began = began or time.monotonic()  # the first may import what it needs
        if time.monotonic() - began > _QUICK_SECONDS * (len(answers) + 10):
            break
    with ThreadPoolExecutor(_EXAMINED_AT_ONCE, thread_name_prefix="dsindex-look") as pool:
        while len(answers) < len(items):  # a waiting call takes more memory than its answer
            answers += pool.map(function, items[len(answers) : len(answers) + _WAITING])
    return answers


def plan_shards(
    inputs: Sequence[InputFile], *, shard_bytes: int, dataset_begins: Sequence[int] = (0,)
) -> list[ShardTask]:
    """Return the shards of inputs in order: one for each part, except that small inputs share shards.

    Args:
        inputs: The inputs.
        shard_bytes: About the bytes of text of small inputs in a shard.
        dataset_begins: Number of the first input of each dataset; no shard has inputs of two.
    """
    tasks, times = list[ShardTask](), Counter[str]()
    for dataset, (begin, end) in enumerate(pairwise([*dataset_begins, len(inputs)])):
        for first, parts in _share_shards(inputs[begin:end], shard_bytes):
            task = ShardTask(shard=len(tasks), input=begin + first, parts=parts, dataset=dataset)
            key = task.key
            tasks.append(msgspec.structs.replace(task, occurrence=times[key]) if times[key] else task)
            times[key] += 1
    return tasks


def group_inputs(sizes: Iterable[int], most_bytes: int) -> list[int]:
    """Return the number of the first input of each dataset; no dataset but one of a single input is larger.

    >>> group_inputs([5, 4, 3, 20, 1, 2], 10)
    [0, 2, 3, 4]
    """
    begins, held_bytes = [0], 0
    for number, size in enumerate(sizes):
        if held_bytes and held_bytes + size > most_bytes:
            begins.append(number)
            held_bytes = 0
        held_bytes += size
    return begins


def _share_shards(inputs: Sequence[InputFile], shard_bytes: int) -> Iterator[tuple[int, tuple[TextPart, ...]]]:
    """Yield the parts of each shard, with the number of the first part's input."""
    held: list[TextPart] = []
    held_bytes = 0
    for number, file in enumerate(inputs):
        weight = max(FILE_WEIGHT_BYTES, file.text_bytes)
        is_small = len(file.parts) == 1 and weight <= shard_bytes // SMALL_PART
        if is_small:
            held += file.parts
            held_bytes += weight
            if held_bytes < shard_bytes and not _ends_list(file, shard_bytes // (2 * weight)):
                continue
        if held:
            yield number + is_small - len(held), tuple(held)
            held, held_bytes = [], 0
        if not is_small:
            yield from ((number, (part,)) for part in file.parts)
    if held:
        yield len(inputs) - len(held), tuple(held)


def _ends_list(file: InputFile, among: int) -> bool:
    """Decide by the name of a small input whether a shard ends with it, so an added input changes few shards.

    On average, a shard is then half full.
    """
    return xxhash.xxh3_64_intdigest(file.parts[0].path.encode("utf-8", "surrogateescape")) % max(1, among) == 0


# What a job is: its settings, and the ordered list of its inputs.


def make_plan(settings: Mapping[str, Any], inputs: Iterable[InputStatus] = ()) -> Plan:
    """Return the plan of settings, which are of types that JSON has, and inputs."""
    return Plan(
        settings=json.loads(encode_json(settings)),
        inputs=[(name_in_plan(file.path), file.size_bytes, file.version) for file in inputs],
    )


def compare_plans(old: Plan, new: Plan) -> tuple[list[str], list[str]]:
    """Return the differences between the settings and those between the inputs of two plans, a phrase for each.

    Bad records may be quarantined from now on: shards that were made when a bad record ended the job have none.
    """
    before, now = old.settings, new.settings
    settings = [
        f"{name} was {_shown(name, before.get(name))} and is {_shown(name, now.get(name))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and (name, before.get(name)) != ("on-bad-record", "fail")
    ]
    if old.inputs == new.inputs:
        return settings, []
    inputs, files_before, files_now = [], Counter(old.inputs), Counter(new.inputs)
    for what, files in (("gone", files_before - files_now), ("new", files_now - files_before)):
        if files:
            more = f" and {files.total() - 1:,} more are" if files.total() > 1 else " is"
            inputs.append(f"the input {show_name(next(iter(files))[0])}{more} {what} or changed")
    return settings, inputs or ["the inputs are in another order"]


def _shown(name: str, value: object) -> str:
    if value is None or value is False:
        return "not given"
    return "given" if value is True or name == "append-eod" else without_secrets(encode_json(value).decode())
