"""Output files of conversions, which appear complete under names that nobody has, or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.dtypes import cast_tokens
from dsindex.errors import FormatError, OutputError
from dsindex.store.reading import Extent, open_in_order
from dsindex.store.storage import require_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsindex.store.storage import DigestingWriter

COPY_TOKENS = 1 << 20


def refuse_existing(paths: Iterable[str], *, inputs: Iterable[str] = ()) -> None:
    """Refuse paths that exist, even as broken links, pointing out those that are inputs.

    Raises:
        OutputError: Naming the first.
    """
    inputs = tuple(inputs)
    for path in paths:
        require_path(path)
        for read in inputs:
            if os.path.exists(path) and os.path.exists(read) and os.path.samefile(path, read):
                raise OutputError(f"{path}: expected another file than the input {read}; choose another name")
        if os.path.lexists(path):
            raise OutputError(f"{path}: expected a file that does not exist yet; remove it or choose another name")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """Consecutive tokens of a file."""

    path: str
    offset: int
    """Byte offset of the first token in the file."""
    dtype: np.dtype[Any]
    """Integer type with its byte order."""
    num_tokens: int


def copy_tokens(file: DigestingWriter, run: TokenRun, dtype: np.dtype[Any]) -> None:
    """Append tokens in another type, in constant memory.

    Raises:
        FormatError: If an id does not fit the type.
        InputError: If the source is missing or shorter than planned.
    """
    end = run.offset + run.num_tokens * run.dtype.itemsize
    buffer = np.empty(min(COPY_TOKENS, run.num_tokens), run.dtype)
    for source in open_in_order([Extent(path=run.path, begin=run.offset, end=end)]):
        for begin in range(0, run.num_tokens, COPY_TOKENS):
            tokens = buffer[: run.num_tokens - begin]
            source.fill(tokens.view(np.uint8).data, run.offset + begin * run.dtype.itemsize)
            try:
                cast = cast_tokens(tokens.astype(run.dtype.newbyteorder("="), copy=False), dtype.newbyteorder("="))
            except OverflowError as error:
                raise FormatError(f"{run.path}: {error}; choose a larger token type") from error
            file.write(np.ascontiguousarray(cast.astype(dtype, copy=False)).view(np.uint8).data)
