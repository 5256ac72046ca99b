"""The tokens of a `.bin` as an array: mapped from a file, or read in ranges from an object."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from dsindex.errors import FormatError
from dsindex.objects.urls import is_url, parse_url
from dsindex.regular_files import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.objects.arrays import ObjectArray

Tokens: TypeAlias = "NDArray[Any] | ObjectArray"
"""Tokens that are sliced like an array; kernels take those of files only."""


def open_token_array(bin_path: str, dtype: np.dtype[Any]) -> tuple[Tokens, int]:
    """Open a `.bin`, and return its complete tokens, read-only, and its size in bytes.

    Raises:
        FormatError: If a file cannot be read.
        InputError: If an object cannot be read.
    """
    if is_url(bin_path):
        from dsindex.objects.arrays import ObjectArray

        array = ObjectArray(parse_url(bin_path), dtype)
        return array, array.size_bytes
    try:
        with open_file(bin_path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            buffer = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) if size_bytes else b""
    except (OSError, ValueError) as error:
        msg = f"{bin_path}: cannot be read ({error})"
        raise FormatError(msg) from error
    return np.frombuffer(buffer, dtype=dtype, count=size_bytes // dtype.itemsize), size_bytes


def as_items(array: NDArray[Any], code: Literal["i", "q"]) -> memoryview[int] | tuple[int, ...]:
    """Return a view of an array whose items are plain ints; a tuple if it is empty, which memoryviews cannot be."""
    if not len(array):
        return ()
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return memoryview(native.view(np.uint8).data).cast(code)
