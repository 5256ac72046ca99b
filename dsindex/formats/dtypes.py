"""Token types on disk: their codes, the type that a vocabulary needs, and the one checked cast.

The codes are defined by MMIDIDX (`DType` in megatron.core.datasets.indexed_dataset).
"""

from __future__ import annotations

from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

TOKEN_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
_CODES = {dtype: code for code, dtype in TOKEN_DTYPES.items()}

DAMAGED_ARRAY_ERRORS = (
    OSError, ValueError, EOFError, TypeError, SyntaxError, TokenError, ArithmeticError, LookupError, MemoryError,
    RecursionError,
)  # fmt: skip
"""Errors that NumPy raises for a damaged .npy file, whose header it parses as a Python literal."""

UINT16_VOCABULARY_LIMIT = 65_500
"""Megatron writes int32 from this vocabulary size on, and uint16 below (`DType.optimal_dtype`)."""


def dtype_code(dtype: np.dtype[Any]) -> int:
    """Return the MMIDIDX code of a token type.

    Raises:
        ValueError: If the format has no code for it.

    >>> dtype_code(np.dtype("uint16"))
    8
    """
    try:
        return _CODES[dtype.newbyteorder("<")]
    except KeyError:
        supported = ", ".join(str(supported_dtype) for supported_dtype in _CODES)
        raise ValueError(f"MMIDIDX has no code for the token type {dtype}, only for {supported}") from None


def dtype_for_vocabulary(vocabulary_size: int) -> np.dtype[Any]:
    """Return the token type that Megatron writes for a vocabulary of this size, including added tokens.

    >>> dtype_for_vocabulary(50257), dtype_for_vocabulary(65500)
    (dtype('uint16'), dtype('int32'))
    """
    if vocabulary_size < 1:
        raise ValueError(f"a vocabulary has at least one token, not {vocabulary_size}")
    return np.dtype("<u2") if vocabulary_size < UINT16_VOCABULARY_LIMIT else np.dtype("<i4")


def cast_tokens(tokens: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast integer token ids to their type on disk.

    Args:
        tokens: Integer ids of any shape.
        dtype: An integer type.

    Returns:
        The ids in `dtype`; the same array if it has that type already.

    Raises:
        OverflowError: If an id does not fit; ids never wrap around.

    >>> cast_tokens(np.array([1, 65535]), np.dtype("uint16"))
    array([    1, 65535], dtype=uint16)
    """
    if tokens.dtype == dtype:
        return tokens
    require_fit(tokens, dtype)
    return tokens.astype(dtype)


def require_fit(tokens: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Check that integer token ids fit a type, before a cast that would wrap around silently.

    Raises:
        OverflowError: If an id does not fit.
    """
    if tokens.size:
        limits = np.iinfo(dtype)
        low = 0 if tokens.dtype.kind == "u" else int(tokens.min())
        high = int(tokens.max())
        if low < limits.min or high > limits.max:
            outside = low if low < limits.min else high
            raise OverflowError(f"token id {outside} does not fit {dtype}, which holds {limits.min} to {limits.max}")


def starts_of(sizes: ArrayLike) -> NDArray[np.int64]:
    """Return the offsets at which consecutive items of these sizes begin, and the last one ends; shape [items + 1].

    >>> starts_of(np.array([2, 3]))
    array([0, 2, 5])
    """
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
