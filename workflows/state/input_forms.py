"""What the inputs of a job contain, and where they can be cut: told from the files themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from dsindex.containers.cuts import find_cuts
from dsindex.containers.kinds import detect_file
from dsindex.errors import InputError
from dsindex.text.forms import InputForm
from workflows.state.inputs import InputParts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workflows.state.inputs import InputFile

TEXT_PER_STORED_BYTE = 4
"""Bytes of text per byte of a compressed file, about."""
FEWEST_STREAMS = 256
"""A stream that has less than this part of all input is one shard; larger ones are unpacked for all workers."""
LARGEST_PART_UNITS = 4
"""A file whose members are larger than this many shards is unpacked for all workers as well."""
_LOOKED_AT_ONCE = 16


def look_inside(inputs: Iterable[InputFile]) -> list[InputFile]:
    """Return the inputs with their forms.

    Raises:
        InputError: If one cannot be read, or is of a kind that is not supported.
    """
    with ThreadPoolExecutor(_LOOKED_AT_ONCE, thread_name_prefix="dsindex-look") as pool:
        return list(pool.map(_with_form, inputs))


def cut_inputs(inputs: Iterable[InputFile], shard_size: int) -> list[InputFile]:
    """Return the inputs with their parts, those that cannot be cut anywhere.

    The parts are a function of the inputs and the shard size alone.

    Raises:
        InputError: If one cannot be read.
    """
    inputs = list(inputs)
    unit_bytes = max(1, shard_size // TEXT_PER_STORED_BYTE)
    largest_whole = max(unit_bytes, sum(file.size_bytes for file in inputs) // FEWEST_STREAMS)
    cut = partial(_with_parts, unit_bytes=unit_bytes, largest_whole=largest_whole)
    with ThreadPoolExecutor(_LOOKED_AT_ONCE, thread_name_prefix="dsindex-cut") as pool:
        return list(pool.map(cut, inputs))


def _with_form(file: InputFile) -> InputFile:
    try:
        container, _ = detect_file(file.path)
    except OSError as error:
        msg = f"{file.path}: cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error
    return replace(file, form=InputForm(container=container))


def _with_parts(file: InputFile, *, unit_bytes: int, largest_whole: int) -> InputFile:
    if file.form.container == "plain":
        return file
    bounds = find_cuts(file.path, file.form.container, unit_bytes=unit_bytes)
    largest_part = max(end - begin for begin, end in pairwise(bounds))
    if largest_part <= max(largest_whole, LARGEST_PART_UNITS * unit_bytes if len(bounds) > 2 else 0):
        return replace(file, parts=InputParts(bounds=bounds))
    stream = (*range(0, file.size_bytes, unit_bytes), file.size_bytes)
    return replace(file, parts=InputParts(bounds=stream, is_stream=True))
