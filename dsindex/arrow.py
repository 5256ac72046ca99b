"""Arrow arrays without `pa.array`, which imports pandas where that is installed: half a second.

Source: pyarrow/array.pxi, `array` and `_is_array_like`; pyarrow/pandas-shim.pxi.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def number_array(numbers: NDArray[Any]) -> pa.Array:
    """Return integers or floats as an Arrow array that shares their memory.

    >>> number_array(np.array([1, 2, 3], np.int32)).type
    DataType(int32)
    """
    contiguous = np.ascontiguousarray(numbers)
    type_ = pa.from_numpy_dtype(contiguous.dtype)
    return pa.Array.from_buffers(type_, len(contiguous), [None, pa.py_buffer(contiguous)])


def text_array(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return texts as an Arrow array.

    Raises:
        UnicodeEncodeError: If a text has a surrogate.

    >>> text_array(["a", "bc"]).to_pylist()
    ['a', 'bc']
    """
    encoded = [text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64, count=len(encoded) + 1)
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
