"""Inputs that are given more than once, under one name or several, which is allowed and worth telling."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.json_text import show_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflows.state.inputs import InputFile

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedInput:
    """A file that is an input more than once; its records are in the output as often."""

    path: str
    """The first path by which it is given."""
    times: int


def find_repeated(inputs: Sequence[InputFile]) -> tuple[RepeatedInput, ...]:
    """Return the files that are given more than once, in the order of their first paths.

    Links to a file, symbolic or hard, count as that file.
    """
    alike = Counter((file.size_bytes, file.version) for file in inputs)
    times: dict[tuple[int, int] | str, int] = {}
    paths: dict[tuple[int, int] | str, str] = {}
    for file in inputs:
        if alike[file.size_bytes, file.version] == 1:
            continue  # no other input is the same file, so it need not be looked at
        identity = _identity(file.absolute_path)
        times[identity] = times.get(identity, 0) + 1
        paths.setdefault(identity, file.path)
    return tuple(RepeatedInput(path=paths[identity], times=count) for identity, count in times.items() if count > 1)


def describe_repeated(repeated: Sequence[RepeatedInput]) -> list[str]:
    """Return a line of a summary; none if nothing is repeated.

    >>> describe_repeated([RepeatedInput(path="a.jsonl", times=2)])
    ['1 input is given more than once: a.jsonl (2 times)']
    """
    if not repeated:
        return []
    shown = [f"{show_name(file.path)} ({file.times:,} times)" for file in repeated[:_SHOWN]]
    if len(repeated) > _SHOWN:
        shown.append(f"and {len(repeated) - _SHOWN:,} more")
    count = "1 input is" if len(repeated) == 1 else f"{len(repeated):,} inputs are"
    return [f"{count} given more than once: {', '.join(shown)}"]


def _identity(path: str) -> tuple[int, int] | str:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino
