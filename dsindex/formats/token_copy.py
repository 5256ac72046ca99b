"""Assemble a file from runs of tokens in other files, casting them, in ranges that any executor may copy.

Each range is written at a fixed offset, so a second attempt writes the same bytes.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.dtypes import cast_tokens
from dsindex.errors import FormatError, InputError
from dsindex.formats.new_files import NewFiles, new_file_error
from dsindex.regular_files import open_descriptor
from dsindex.storage import DigestingWriter, read_into, write_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from dsindex.formats.new_files import NewFile
    from dsindex.formats.raw_index import RunTasks

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
    source, native = np.dtype(task.source.dtype), np.dtype(task.source.dtype).newbyteorder("=")
    wanted = np.dtype(task.dtype)
    buffer = np.empty(min(COPY_TOKENS, task.source.num_tokens), dtype=source)
    with _opened(task.source.path) as descriptor:
        output = _open_output(task)
        try:
            for begin in range(0, task.source.num_tokens, COPY_TOKENS):
                tokens = buffer[: min(COPY_TOKENS, task.source.num_tokens - begin)]
                _read_tokens(task.source, descriptor, tokens, begin)
                try:
                    cast = cast_tokens(tokens.astype(native, copy=False), wanted.newbyteorder("="))
                except OverflowError as error:
                    msg = f"{task.source.path}: {error}; choose a larger token type"
                    raise FormatError(msg) from error
                data = np.ascontiguousarray(cast.astype(wanted, copy=False))
                write_at(output, data.view(np.uint8).data, task.output_offset + begin * wanted.itemsize)
            os.fsync(output)
        except OSError as error:
            raise new_file_error(task.output_name, error) from error
        finally:
            os.close(output)


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
        for _ in run_tasks(copy_range, list(_plan(new, runs, dtype, len(head)))):
            pass
        new.file.seek(0, os.SEEK_END)
        if write_tail is not None:
            write_tail(DigestingWriter(new.file))
    except OSError as error:
        raise new_file_error(new.path, error) from error


def _plan(output: NewFile, runs: Sequence[TokenRun], dtype: np.dtype[Any], offset: int) -> Iterator[CopyRange]:
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


def _read_tokens(run: TokenRun, descriptor: int, tokens: np.ndarray[Any, Any], begin: int) -> None:
    offset = run.offset + begin * tokens.dtype.itemsize
    try:
        read_into(descriptor, tokens.view(np.uint8).data, offset)
    except EOFError as error:
        msg = f"{run.path}: {error}; it changed during the copy"
        raise InputError(msg) from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        descriptor = open_descriptor(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise InputError(msg) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_output(task: CopyRange) -> int:
    try:
        return os.open(task.output, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise new_file_error(task.output_name, error) from error
