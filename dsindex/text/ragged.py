"""Texts to gigatoken and tokens back, as the arrays that they are, without a Python object for each.

gigatoken takes and gives such ragged arrays as those of the package awkward, which it depends on and which takes 0.2 s
to import.
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
    """Encode texts by gigatoken, special-token strings in them included.

    Args:
        fast: A gigatoken.Tokenizer.
        offsets: Where the texts begin in `data`, and where the last one ends; shape [D + 1].
        data: UTF-8.
        parallel: Use gigatoken's own threads.

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
