"""Join the texts of several keys into one text per record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsindex.dtypes import starts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

JOINED = "text"
"""Name of the one output of several keys that are joined."""

_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}


def decode_separator(text: str) -> str:
    r"""Return a separator as it is written in an option, with its escapes \n, \t and \\ decoded.

    Raises:
        ValueError: If it has another escape, or characters without an encoding in UTF-8.

    >>> decode_separator(r"\n--\\")
    '\n--\\'
    """
    for escape in _ESCAPE.finditer(text):
        if escape[1] not in _ESCAPED:
            raise ValueError(rf"expected a backslash to be part of \n, \t or \\, got {escape[0]!r}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"expected a separator in UTF-8, got {text!r}")
    return _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], text)


def join_texts(
    columns: Sequence[tuple[pa.LargeStringArray, NDArray[np.int64] | None]], separator: str
) -> pa.LargeStringArray:
    """Join each record's texts with a separator, those of a list as well.

    Args:
        columns: For each key, all texts in order, and the number of each record's texts; None if each has one.
        separator: The text between two texts.

    Returns:
        One text per record.
    """
    import pyarrow.compute as pc

    from dsindex.arrow import text_array

    between = text_array([separator])[0]
    texts = [
        texts if counts is None else pc.binary_join(_as_lists(texts, counts), between) for texts, counts in columns
    ]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, between)


def _as_lists(texts: pa.LargeStringArray, counts: NDArray[np.int64]) -> pa.LargeListArray:
    import pyarrow as pa

    from dsindex.arrow import number_array

    offsets = starts_of(counts)
    return pa.LargeListArray.from_arrays(number_array(offsets), texts)
