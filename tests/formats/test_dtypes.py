import numpy as np
import pytest

from dsindex.formats.dtypes import cast_tokens, dtype_for_vocabulary


@pytest.mark.parametrize(("vocabulary_size", "expected"), [
    (1, "uint16"), (65_499, "uint16"), (65_500, "int32"), (65_536, "int32"), (1 << 20, "int32"),
])  # fmt: skip
def test_dtype_for_vocabulary_follows_megatron(vocabulary_size, expected):
    assert dtype_for_vocabulary(vocabulary_size) == np.dtype(expected)


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "uint16", "int32", "int64"])
def test_cast_keeps_every_id_that_fits_and_refuses_the_next(name):
    dtype = np.dtype(name)
    limits = np.iinfo(dtype)
    fits = np.array([limits.min, 0, limits.max], np.int64)
    assert cast_tokens(fits, dtype).tolist() == fits.tolist()
    assert cast_tokens(fits, dtype).dtype == dtype
    if name != "int64":
        for outside in (limits.min - 1, limits.max + 1):
            with pytest.raises(OverflowError, match=f"token id {outside} does not fit {name}"):
                cast_tokens(np.array([0, outside], np.int64), dtype)
