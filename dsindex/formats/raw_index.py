"""Raw indices: the position of each line of a JSONL file, as written by Modalities' `create_raw_index`.

`<stem>.idx` next to the JSONL is a pickled list of (byte offset, byte length), one pair per line, counting a carriage
return but not the newline (docs/formats.md §3). MMIDIDX uses the same suffix; the first bytes tell them apart.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError
from dsindex.formats.pickled_pairs import read_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray


def raw_index_path(path: str) -> str:
    """Return the path at which Modalities looks for a file's raw index.

    >>> raw_index_path("data/news.jsonl")
    'data/news.idx'
    """
    return os.path.splitext(path)[0] + ".idx"


def read_raw_index(index_path: str, *, size_bytes: int) -> NDArray[np.int64]:
    """Read a raw index.

    Args:
        index_path: The index.
        size_bytes: Size of the JSONL file that it belongs to.

    Returns:
        (offset, length) in bytes of each line, shape [lines, 2].

    Raises:
        FormatError: If it is not a raw index, or points outside the file.
    """
    pairs = read_pairs(index_path)
    # A difference, since the sum of two int64 could wrap.
    outside = np.flatnonzero((pairs[:, 0] > size_bytes) | (pairs[:, 1] > size_bytes - pairs[:, 0]))
    if len(outside):
        offset, length = pairs[outside[0]].tolist()
        what = f"entry {outside[0]} ({length} bytes from byte {offset}) is outside the file of {size_bytes} bytes"
        raise FormatError(f"{index_path}: {what}", hint="the file has changed since it was indexed: index it again")
    return pairs
