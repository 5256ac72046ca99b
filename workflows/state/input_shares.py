"""Inputs that are read several times or in part, as `--repeat FILE=2.5` asks for.

Such an input takes the place of several in the plan, one after the other: each whole time, then a sample for the rest.
"""

from __future__ import annotations

import glob
import os
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.json_text import show_name
from dsindex.objects.urls import is_url
from dsindex.text.sampling import multiply_shares
from workflows.state.object_inputs import names_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflows.state.inputs import InputFile


def parse_repeat(entry: str) -> tuple[str, str]:
    """Return the file and the number of an entry.

    >>> parse_repeat("wiki=en.jsonl=2.5")
    ('wiki=en.jsonl', '2.5')
    """
    name, _, times = entry.rpartition("=")
    return name, times


def repeat_inputs(
    inputs: Sequence[InputFile], repeat: Sequence[str], *, left_out: Sequence[str] = ()
) -> list[InputFile]:
    """Return the inputs with repetitions in place of those that are named.

    Args:
        inputs: All inputs, in order.
        repeat: Entries FILE=TIMES; a file is named as an input is, by a path, a pattern or a folder.
        left_out: Paths of inputs that were left out because they are damaged.

    Raises:
        InputError: If an entry names no input, or one that another entry names.
    """
    times: dict[int, Fraction] = {}
    for entry in repeat:
        name, number = parse_repeat(entry)
        found = _find(inputs, name)
        if not found and name not in left_out:
            msg = f"--repeat {show_name(name)}: expected one of the inputs, got none that is named so; check --input"
            raise InputError(msg)
        for position in found:
            if position in times:
                path = show_name(inputs[position].path)
                msg = f"--repeat {show_name(name)}: expected each input once, but {path} was named before"
                raise InputError(msg)
            times[position] = Fraction(number)
    repeated = []
    for position, file in enumerate(inputs):
        whole, rest = divmod(times.get(position, Fraction(1)), 1)
        repeated += [replace(file, repetition=number) for number in range(whole)]
        if rest:
            repeated.append(replace(file, repetition=whole, share=float(rest)))
    return repeated


def describe_repeats(inputs: Sequence[InputFile]) -> dict[str, float]:
    """Return what a plan stores of repeated inputs: how often each is read, by its path."""
    times: dict[str, float] = {}
    for file in inputs:
        before = times.get(file.absolute_path, 0.0) if file.repetition else 0.0
        times[file.absolute_path] = before + (1.0 if file.share is None else file.share)
    return {str(path): number for path, number in times.items() if number != 1}


def kept_share(inputs: Sequence[InputFile], sample: float | None) -> float:
    """Return the share of the bytes of all inputs that is kept, about."""
    total = sum(file.size_bytes for file in inputs)
    own = () if sample is None else (sample,)
    kept = sum(
        file.size_bytes * float(multiply_shares((*own, *(() if file.share is None else (file.share,)))))
        for file in inputs
    )
    return kept / total if total else 1.0


def _find(inputs: Sequence[InputFile], name: str) -> list[int]:
    """Return the positions of the inputs that a path, a pattern or a folder names."""
    named = [position for position, file in enumerate(inputs) if file.path == name]
    if named:
        return named
    if is_url(name):
        return [position for position, file in enumerate(inputs) if names_object(name, file.path)]
    if os.path.isdir(name):
        folder = os.path.join(os.path.abspath(name), "")
        return [position for position, file in enumerate(inputs) if file.absolute_path.startswith(folder)]
    paths = {os.path.abspath(name)}
    if not os.path.exists(name) and glob.has_magic(name):
        paths = {os.path.abspath(path) for path in glob.iglob(name, recursive=True)}
    return [position for position, file in enumerate(inputs) if file.absolute_path in paths]
