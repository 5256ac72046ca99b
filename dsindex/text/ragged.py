"""Pass texts to gigatoken and get tokens back as arrays, without a Python object per text.

gigatoken takes and returns ragged arrays of awkward, a package that it depends on. Importing it takes 0.2 s of CPU
time, for which thousands of texts can be encoded one by one; so a process imports it only for more texts than that.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SINGLE_TEXTS = 10_000
"""Texts that a process encodes one by one, at about 8 µs each beyond their encoding."""
_num_single = 0


def encode_ragged(
    fast: Any,  # noqa: ANN401 - gigatoken has no types
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    *,
    parallel: bool,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the tokens of texts from gigatoken; special tokens in the texts are recognised.

    Args:
        fast: A gigatoken.Tokenizer.
        offsets: Start of each text in `data`, then the end of the last; shape [D + 1].
        data: The texts in UTF-8, concatenated.
        parallel: Use gigatoken's threads.

    Returns:
        Token ids, shape [T], and the number of tokens of each text, shape [D].
    """
    global _num_single  # as what is imported does, it belongs to the process
    if not parallel and "awkward" not in sys.modules and _num_single + len(offsets) <= SINGLE_TEXTS:
        _num_single += len(offsets)
        return _encode_singly(fast, offsets, data)
    import awkward

    content = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
    texts = awkward.contents.ListOffsetArray(
        awkward.index.Index64(offsets), content, parameters={"__array__": "string"}
    )
    layout = fast.encode_batch(awkward.Array(texts), parallel=parallel).layout
    ends = np.asarray(layout.offsets.data, np.int64)
    return np.asarray(layout.content.data, np.uint32)[ends[0] : ends[-1]], np.diff(ends)


def _encode_singly(
    fast: Any,  # noqa: ANN401 - as above
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    found = [np.empty(0, np.uint32)]
    found += [fast.encode(data[begin:end].tobytes()) for begin, end in pairwise(offsets.tolist())]
    return np.concatenate(found), np.array(list(map(len, found[1:])), np.int64)
