"""Pass texts to gigatoken and get tokens back as arrays, without a Python object per text.

gigatoken takes and returns ragged arrays of awkward, a package that it depends on and that is slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    import awkward

    content = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
    texts = awkward.contents.ListOffsetArray(
        awkward.index.Index64(offsets), content, parameters={"__array__": "string"}
    )
    layout = fast.encode_batch(awkward.Array(texts), parallel=parallel).layout
    ends = np.asarray(layout.offsets.data, np.int64)
    return np.asarray(layout.content.data, np.uint32)[ends[0] : ends[-1]], np.diff(ends)
