"""Arrow arrays without `pa.array` and `to_numpy`, which import pandas where that is installed: half a second.

Source: pyarrow/array.pxi, `array` and `_is_array_like`; pyarrow/pandas-shim.pxi; arrow_to_pandas.cc,
`ConvertArrayToPandas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def number_array(numbers: NDArray[Any]) -> pa.Array:
    """Return integers or floats as an Arrow array that shares their memory.

    >>> number_array(np.array([1, 2, 3], np.int32)).type
    DataType(int32)
    """
    contiguous = np.ascontiguousarray(numbers)
    type_ = pa.from_numpy_dtype(contiguous.dtype)
    return pa.Array.from_buffers(type_, len(contiguous), [None, pa.py_buffer(contiguous)])


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """Return an Arrow array of integers or floats without nulls as one of numpy, which shares its memory.

    >>> numbers_of(number_array(np.array([1, 2, 3]))[1:])
    array([2, 3])
    """
    if len(array) == 0:
        return np.empty(0, array.type.to_pandas_dtype())
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1], dtype, count=len(array), offset=dtype.itemsize * array.offset)
