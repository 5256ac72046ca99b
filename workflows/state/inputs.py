"""From inputs to shards: which files, in which order, cut where. Pure except for the calls that stat the files."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.objects.urls import ObjectUrl, absolute, is_url
from dsindex.readable import input_status
from dsindex.regular_files import STANDARD_INPUT_KIND, what_is_no_file
from dsindex.shards.tasks import ShardTask
from dsindex.text.forms import JSON_LINES
from workflows.state.input_paths import STANDARD_INPUT, find_paths
from workflows.state.object_spool import find_spooled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.text.forms import InputForm
    from workflows.state.input_paths import FoundPath

MAX_SHARDS = 100_000
"""The approximate limit on the shards of a build; larger inputs get larger shards."""
LARGEST_SHARD_BYTES = 64 << 20
"""The largest shard size that is chosen, but for that limit."""
TEXT_PER_STORED_BYTE = 4
"""About the bytes of text per byte of a compressed input or a table: the result depends on it only for speed."""
FEW_SHARDS = 32
"""About as many shards are planned until they reach the largest size."""
_LOOKED_AT_ONCE = 16


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
    repetition: int = 0
    """How often the same input stands directly before it because of --repeat."""
    share: float | None = None
    """Share of its records to keep; None: all."""


def find_inputs(patterns: Sequence[str], *, lists: Sequence[str] = (), split: str | None = None) -> list[InputFile]:
    """Find the files that `find_paths` names, in its order.

    Raises:
        InputError: For a missing file, a pattern without a match, or an empty file.
    """
    return look_at_inputs(find_paths(patterns, lists=lists, split=split))


def look_at_inputs(paths: Iterable[FoundPath]) -> list[InputFile]:
    """Return the files under paths that were found, as they are now.

    Raises:
        InputError: If one cannot be an input, naming it.
    """
    paths = list(paths)
    if not any(is_url(found.path) for found in paths):
        return list(map(_look_at_found, paths))
    with ThreadPoolExecutor(_LOOKED_AT_ONCE, thread_name_prefix="dsindex-stat") as pool:
        return list(pool.map(_look_at_found, paths))


def _look_at_found(found: FoundPath) -> InputFile:
    with found.errors_placed():
        if found.is_standard_input and isinstance(found.absolute_path, ObjectUrl):
            return _look_at_spooled(found.absolute_path)
        if found.is_standard_input:
            return replace(_look_at(found.absolute_path), path=found.path)
        return _look_at(found.path)


def _look_at_spooled(path: ObjectUrl) -> InputFile:
    stored = find_spooled(path)
    if stored is None:
        msg = f"{path}: expected the standard input that was stored there, got another object; pipe it again"
        raise InputError(msg)
    return InputFile(
        path=STANDARD_INPUT, absolute_path=stored.path, size_bytes=stored.size_bytes, version=stored.version
    )


def _look_at(path: str) -> InputFile:
    kind = None if is_url(path) else what_is_no_file(path)
    if kind is not None:
        remedy = (
            "give it as --input -, which stores it first"
            if kind == STANDARD_INPUT_KIND
            else "save its data to a file and name that: an input is read in parts, in parallel and more than once"
        )
        msg = f"{path}: expected a file, got {kind}; {remedy}"
        raise InputError(msg)
    try:
        status = input_status(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error
    if status.size_bytes == 0:
        msg = f"{path}: expected at least one record, got an empty file; leave it out of --input"
        raise InputError(msg)
    if not is_url(path) and not os.access(path, os.R_OK):
        msg = f"{path}: cannot be read (Permission denied); check --input"
        raise InputError(msg)
    return InputFile(
        path=status.path,
        absolute_path=absolute(status.path),
        size_bytes=status.size_bytes,
        version=status.version,
    )


def choose_shard_size(total_bytes: int, wanted: int) -> int:
    """Return the wanted shard size, or a larger one if there would be too many shards.

    >>> choose_shard_size(10 << 40, 64 << 20) >> 20
    104
    """
    return max(wanted, -(-total_bytes // MAX_SHARDS))


def choose_shard_sizes(inputs: Sequence[InputFile], *, largest: int = LARGEST_SHARD_BYTES) -> list[int]:
    """Return the shard size of each input, chosen so that a small job has shards for many CPUs.

    It is a power-of-two part of `largest`, from 1/32 of it on, and about 1/32 of the text of all inputs up to this one.
    So inputs that are added at the end change no shard of the others, and a large job has only a few small shards. An
    input that occurs again is cut as before.
    """
    sizes: dict[str, int] = {}
    most = choose_shard_size(sum(file.size_bytes for file in inputs), largest)
    so_far = 0
    for file in inputs:
        so_far += _estimate_text_bytes(file)
        if file.absolute_path not in sizes:
            size = max(1, largest // FEW_SHARDS)
            while size < largest and size * FEW_SHARDS < so_far:
                size *= 2
            sizes[file.absolute_path] = size if size < largest else most
    return [sizes[file.absolute_path] for file in inputs]


def _estimate_text_bytes(file: InputFile) -> int:
    """Return about how much text a file holds; one that has parts is compressed or a table."""
    is_text = file.parts is None and file.form.can_seek
    return file.size_bytes if is_text else file.size_bytes * TEXT_PER_STORED_BYTE


def plan_shards(inputs: Sequence[InputFile], shard_size: int | Sequence[int]) -> Iterator[ShardTask]:
    """Cut every input into ranges of `shard_size` bytes, which may differ by input, or into its parts, in order."""
    shard = 0
    for number, (file, size) in enumerate(zip(inputs, by_input(inputs, shard_size), strict=True)):
        bounds = cut_plain(file, size) if file.parts is None else file.parts.bounds
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
                share=file.share,
            )
            shard += 1


def by_input(inputs: Sequence[InputFile], shard_size: int | Sequence[int]) -> Sequence[int]:
    """Return the shard size of each input."""
    return [shard_size] * len(inputs) if isinstance(shard_size, int) else shard_size


def count_shards(inputs: Sequence[InputFile], shard_size: int | Sequence[int]) -> int:
    """Return the number of shards that `plan_shards` would plan."""
    return sum(
        -(-file.size_bytes // size) if file.parts is None else len(file.parts.bounds) - 1
        for file, size in zip(inputs, by_input(inputs, shard_size), strict=True)
    )


def cut_plain(file: InputFile, shard_size: int) -> tuple[int, ...]:
    """Return where ranges of a file that can be cut anywhere begin, and where the last one ends."""
    return (*range(0, file.size_bytes, shard_size), file.size_bytes)
