"""Memory-map the arrays of an index cache, and check their shape and type."""

from __future__ import annotations

import mmap
import os
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.errors import FormatError
from dsindex.regular_files import open_file

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

IndexSource: TypeAlias = str | os.PathLike[str] | np.ndarray[Any, np.dtype[Any]]
"""An index array, or the path of a `.npy` file to map."""


def open_index_array(source: IndexSource, *, what: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return an index as a read-only array; files are memory-mapped. None in `shape` means any length.

    Raises:
        FormatError: If the file cannot be read, or the array is not one of integers in this shape.
    """
    name = "the index array" if isinstance(source, np.ndarray) else os.fspath(source)
    if not isinstance(source, np.ndarray):
        _check_head(name, what)
    try:
        array: np.ndarray[Any, np.dtype[Any]] = (
            source if isinstance(source, np.ndarray) else np.load(name, mmap_mode="r", allow_pickle=False)
        )
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:  # the last two: a header not in Python
        msg = f"{name}: cannot be read as {what} ({error})"
        raise FormatError(msg) from error
    fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "iu" or not array.flags.c_contiguous:
        asked = " x ".join("any" if n is None else str(n) for n in shape)
        msg = f"{name}: expected {what} of {asked} integers, got {array.dtype} of shape {array.shape}"
        raise FormatError(msg)
    # np.memmap is slow to slice; one array type, always read-only, lets numba compile each kernel once.
    plain = array.view(np.ndarray)
    plain.flags.writeable = False
    return plain


def expect_scattered_reads(*arrays: NDArray[Any]) -> None:
    """Tell the kernel that the files behind arrays are read here and there, so that it reads no neighbouring pages."""
    for array in arrays:
        owner: object = array
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is not None:
            owner.madvise(mmap.MADV_RANDOM)


def _check_head(path: str, what: str) -> None:
    """Check how a `.npy` file begins, since numpy would allocate whatever size a damaged header claims.

    Raises:
        FormatError: If the file does not begin with a valid header.

    Source: numpy.lib.format: magic, version, and the length of the header in 2 bytes, or 4 from version 2 on.
    """
    try:
        with open_file(path) as file:
            head = file.read(12)
            size_bytes = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL byte
        msg = f"{path}: cannot be read as {what} ({error})"
        raise FormatError(msg) from error
    header_bytes = int.from_bytes(head[8:10] if head[6:7] == b"\x01" else head[8:12], "little")
    if not head.startswith(b"\x93NUMPY") or header_bytes > size_bytes:
        msg = f"{path}: cannot be read as {what}: it does not begin as a .npy file, or is cut off"
        raise FormatError(msg)


def sample_numbers(indices: ArrayLike) -> NDArray[np.integer[Any]]:
    """Return sample numbers as an array.

    Raises:
        TypeError: If they are not integers in one dimension.
    """
    numbers = np.asarray(indices, dtype=np.int64 if np.size(indices) == 0 else None)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        msg = f"expected sample numbers in one dimension, got {numbers.dtype} of shape {numbers.shape}"
        raise TypeError(msg)
    return numbers
