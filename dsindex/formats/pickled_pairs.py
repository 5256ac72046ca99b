"""Pickled lists of pairs of integers: raw indices, and the indices of `.pbin` files.

Modalities writes `pickle.dumps(pairs, protocol=4)`. What is read may be a stranger's, so a pickle with any opcode that
such a list does not need is refused before it is unpickled, and the unpickler looks up nothing.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from dsindex.errors import FormatError
from dsindex.store.read import open_stored

if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from numpy.typing import NDArray

MOST_BYTES = 4 << 30
"""Limit on the size of a pickle, which takes about twenty times as much memory while it is read."""
_LONGS = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(10))
_KNOWN = re.compile(
    rb"\x80[\x04\x05](?:\x95.{8}|[]\x94(ea\x86]|h.|j.{4}|K.|M..|J.{4}|\x8a(?:" + _LONGS + rb"))*+\.", re.DOTALL
)
"""Frames, lists, tuples of two, references and integers; no opcode makes room for more than it has bytes."""


def write_pairs(file: SupportsWrite[bytes], pairs: NDArray[np.int64]) -> None:
    """Pickle pairs of shape [n, 2] as Modalities does."""
    pickle.dump(list(zip(pairs[:, 0].tolist(), pairs[:, 1].tolist(), strict=True)), file, protocol=4)


def read_pairs(path: str, *, offset: int = 0) -> NDArray[np.int64]:
    """Read the pickled list at the end of a file, from a byte on.

    Returns:
        The pairs, shape [n, 2], none below 0.

    Raises:
        FormatError: If it is anything else, or larger than MOST_BYTES.
    """
    try:
        with open_stored(path) as file:
            size_bytes = file.seek(0, os.SEEK_END) - offset
            if size_bytes > MOST_BYTES:
                raise FormatError(f"{path}: expected an index of at most {MOST_BYTES:,} bytes, got {size_bytes:,}")
            file.seek(offset)
            content = file.read()
        if _KNOWN.fullmatch(content) is None:
            raise ValueError("one that is cut off, damaged, or of something else; it was not unpickled")
        value = _Unpickler(io.BytesIO(content)).load()
        if type(value) is not list or not {(type(pair), len(pair)) for pair in value} <= {(tuple, 2)}:
            raise ValueError("other values")
        pairs = np.array(value, np.int64).reshape(len(value), 2)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise FormatError(f"{path}: expected a pickled list of (offset, length), got {error}") from error
    if len(pairs) and pairs.min() < 0:
        raise FormatError(f"{path}: expected offsets and lengths of at least 0, got {pairs.min()}")
    return pairs


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")
