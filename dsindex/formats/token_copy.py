"""Assemble a file from runs of tokens in other files, casting them, in ranges that any executor may copy.

Each range is written at a fixed offset, so a second attempt writes the same bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.dtypes import cast_tokens
from dsindex.errors import FormatError
from dsindex.formats.new_files import NewFiles, new_file_error
from dsindex.store.range_copy import open_source, write_chunks
from dsindex.store.storage import DigestingWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.formats.new_files import NewFile
    from dsindex.formats.raw_index import RunTasks
    from dsindex.store.range_copy import Source


RANGE_TOKENS = 16 << 20
COPY_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """Consecutive tokens of a file."""

    path: str
    offset: int
    """Byte offset of the first token in the file."""
    dtype: str
    """Integer type with its byte order, in numpy's notation."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRange:
    """A run of tokens and its destination."""

    source: TokenRun
    output: str
    output_name: str
    """Final path of the output, named in errors."""
    output_offset: int
    dtype: str


def copy_range(task: CopyRange) -> None:
    """Copy one range of tokens and sync it to disk, in constant memory.

    Raises:
        FormatError: If an id does not fit the new type.
        InputError: If the source is missing or shorter than planned.
        OutputError: If the output cannot be written.
    """
    run = task.source
    extent = run.offset, run.offset + run.num_tokens * np.dtype(run.dtype).itemsize
    with open_source(run.path, extent=extent) as source:
        write_chunks(
            task.output,
            task.output_offset,
            _cast_chunks(task.source, source, np.dtype(task.dtype)),
            refusal=partial(new_file_error, task.output_name),
        )


def _cast_chunks(run: TokenRun, source: Source, wanted: np.dtype[Any]) -> Iterator[memoryview]:
    dtype = np.dtype(run.dtype)
    buffer = np.empty(min(COPY_TOKENS, run.num_tokens), dtype)
    for begin in range(0, run.num_tokens, COPY_TOKENS):
        tokens = buffer[: min(COPY_TOKENS, run.num_tokens - begin)]
        source.read_into(tokens.view(np.uint8).data, run.offset + begin * dtype.itemsize)
        try:
            cast = cast_tokens(tokens.astype(dtype.newbyteorder("="), copy=False), wanted.newbyteorder("="))
        except OverflowError as error:
            raise FormatError(f"{run.path}: {error}; choose a larger token type") from error
        yield np.ascontiguousarray(cast.astype(wanted, copy=False)).view(np.uint8).data


def write_token_file(
    path: str,
    runs: Sequence[TokenRun],
    *,
    dtype: np.dtype[Any],
    head: bytes = b"",
    write_tail: Callable[[DigestingWriter], None] | None = None,
    run_tasks: RunTasks,
) -> None:
    """Write a file of tokens as `copy_tokens` does; it appears complete or not at all.

    Args:
        path: The new file, which must not exist.
        runs: The tokens, in output order.
        dtype: The token type of the new file, with its byte order.
        head: Bytes before the first token.
        write_tail: Writes the bytes after the last token.
        run_tasks: Runs `copy_range` on every task.

    Raises:
        OutputError: If the file exists or cannot be written.
        FormatError: If an id does not fit `dtype`.
        InputError: If a source is missing or shorter than planned.
    """
    with NewFiles([path], inputs=[run.path for run in runs]) as [new]:
        copy_tokens(new, runs, dtype=dtype, head=head, write_tail=write_tail, run_tasks=run_tasks)


def copy_tokens(
    new: NewFile,
    runs: Sequence[TokenRun],
    *,
    dtype: np.dtype[Any],
    head: bytes = b"",
    write_tail: Callable[[DigestingWriter], None] | None = None,
    run_tasks: RunTasks,
) -> None:
    """Write `head`, the tokens of all runs in order, and a streamed tail into a file that has its temporary name.

    Raises:
        OutputError: If the file cannot be written.
        FormatError: If an id does not fit `dtype`.
        InputError: If a source is missing or shorter than planned.
    """
    data_bytes = sum(run.num_tokens for run in runs) * dtype.itemsize
    try:
        new.file.write(head)
        new.file.truncate(len(head) + data_bytes)
        new.file.flush()
        for _ in run_tasks(copy_range, list(_cut_runs(new, runs, dtype, len(head)))):
            pass
        new.file.seek(0, os.SEEK_END)
        if write_tail is not None:
            write_tail(DigestingWriter(new.file))
    except OSError as error:
        raise new_file_error(new.path, error) from error


def _cut_runs(output: NewFile, runs: Sequence[TokenRun], dtype: np.dtype[Any], offset: int) -> Iterator[CopyRange]:
    """Cut the runs into ranges; `offset` is the output byte of the first token."""
    for run in runs:
        itemsize = np.dtype(run.dtype).itemsize
        for begin in range(0, run.num_tokens, RANGE_TOKENS):
            count = min(RANGE_TOKENS, run.num_tokens - begin)
            source = TokenRun(path=run.path, offset=run.offset + begin * itemsize, dtype=run.dtype, num_tokens=count)
            yield CopyRange(
                source=source,
                output=output.temporary,
                output_name=output.path,
                output_offset=offset,
                dtype=dtype.str,
            )
            offset += count * dtype.itemsize
