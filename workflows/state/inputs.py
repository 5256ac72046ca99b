"""From inputs to shards: which files, in which order, cut where. Pure except for the calls that stat the files."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.regular_files import what_is_no_file
from dsindex.shards.tokenize import ShardTask
from workflows.state.input_paths import find_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from workflows.state.input_paths import FoundPath

MAX_SHARDS = 100_000
"""The approximate limit on the shards of a build; larger inputs get larger shards."""

COMPRESSED = {".gz": "gzip -dk", ".zst": "zstd -dk", ".xz": "xz -dk", ".bz2": "bzip2 -dk", ".parquet": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input, as it was when the job was planned."""

    path: str
    """The path as the user gave it."""
    absolute_path: str
    size_bytes: int
    version: str
    """Modification time in ns."""


def find_inputs(patterns: Sequence[str], *, lists: Sequence[str] = (), split: str | None = None) -> list[InputFile]:
    """Find the files that `find_paths` names, in its order.

    Raises:
        InputError: For a missing file, a pattern without a match, an empty file, or a compressed one.
    """
    return look_at_inputs(find_paths(patterns, lists=lists, split=split))


def look_at_inputs(paths: Iterable[FoundPath]) -> list[InputFile]:
    """Return the files under paths that were found, as they are now.

    Raises:
        InputError: If one cannot be an input, naming it.
    """
    files = []
    for found in paths:
        with found.errors_placed():
            if found.is_standard_input:
                files.append(replace(_look_at(found.absolute_path), path=found.path))
            else:
                files.append(_look_at(found.path))
    return files


def _look_at(path: str) -> InputFile:
    kind = what_is_no_file(path)
    if kind is not None:
        msg = (
            f"{path}: expected a file, got {kind}; save its data to a file and name that: an input is read in "
            f"parts, in parallel and more than once"
        )
        raise InputError(msg)
    try:
        status = os.stat(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error
    suffix = os.path.splitext(path)[1]
    if suffix in COMPRESSED:
        command = COMPRESSED[suffix]
        remedy = f"unpack it first ({command} {path})" if command else "convert it to JSONL first"
        msg = f"{path}: expected JSONL text, got a {suffix} file; {remedy}"
        raise InputError(msg)
    if status.st_size == 0:
        msg = f"{path}: expected at least one record, got an empty file; leave it out of --input"
        raise InputError(msg)
    if not os.access(path, os.R_OK):
        msg = f"{path}: cannot be read (Permission denied); check --input"
        raise InputError(msg)
    return InputFile(
        path=path,
        absolute_path=os.path.abspath(path),
        size_bytes=status.st_size,
        version=str(status.st_mtime_ns),
    )


def choose_shard_size(total_bytes: int, wanted: int) -> int:
    """Return the wanted shard size, or a larger one if there would be too many shards.

    >>> choose_shard_size(10 << 40, 64 << 20) >> 20
    104
    """
    return max(wanted, -(-total_bytes // MAX_SHARDS))


def plan_shards(inputs: Sequence[InputFile], shard_size: int) -> Iterator[ShardTask]:
    """Cut every input into ranges of `shard_size` bytes, in order."""
    shard = 0
    for number, file in enumerate(inputs):
        for begin in range(0, file.size_bytes, shard_size):
            yield ShardTask(
                shard=shard,
                input=number,
                path=file.absolute_path,
                begin=begin,
                end=min(begin + shard_size, file.size_bytes),
                input_size_bytes=file.size_bytes,
                input_version=file.version,
            )
            shard += 1
