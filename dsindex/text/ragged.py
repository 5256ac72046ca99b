"""Texts to gigatoken and tokens back, as the arrays that they are, without a Python object for each.

gigatoken 0.10 takes and gives such ragged arrays only as those of the package awkward, and looks the package up by its
name whenever it is called. The package takes 0.25 s and 22 MB to import, and two milliseconds per call, all under the
interpreter's lock: a tenth of a build's time. Of it gigatoken uses five functions, which here are a line each. So a
process that encodes has a stand-in under that name, unless it imported the package before: then that is used.
"""

from __future__ import annotations

import sys
from types import ModuleType
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
    awkward = sys.modules.setdefault("awkward", _STAND_IN)
    if awkward is _STAND_IN:
        encoded = fast.encode_batch(_Ragged(data[offsets[0] : offsets[-1]], np.diff(offsets)), parallel=parallel)
        return encoded.content, encoded.counts
    content = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
    layout = awkward.contents.ListOffsetArray(
        awkward.index.Index64(offsets), content, parameters={"__array__": "string"}
    )
    layout = fast.encode_batch(awkward.Array(layout), parallel=parallel).layout
    ends = np.asarray(layout.offsets.data, np.int64)
    return np.asarray(layout.content.data, np.uint32)[ends[0] : ends[-1]], np.diff(ends)


class _Ragged:
    """What stands in for awkward.Array: rows one after the other, and how long each is."""

    def __init__(self, content: NDArray[Any], counts: NDArray[np.int64]) -> None:
        self.content = content
        self.counts = counts


class _StandIn(ModuleType):
    """What gigatoken calls of awkward, on a _Ragged and on arrays."""

    Array = _Ragged

    @staticmethod
    def without_parameters(ragged: _Ragged) -> _Ragged:
        return ragged

    @staticmethod
    def flatten(ragged: _Ragged) -> NDArray[Any]:
        return ragged.content

    @staticmethod
    def num(ragged: _Ragged) -> NDArray[np.int64]:
        return ragged.counts

    @staticmethod
    def to_numpy(array: NDArray[Any]) -> NDArray[Any]:
        return array

    @staticmethod
    def unflatten(content: NDArray[Any], counts: NDArray[np.int64]) -> _Ragged:
        return _Ragged(content, counts)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the package has
        if name.startswith("__"):
            raise AttributeError(name)
        msg = f"awkward.{name}: this process encodes texts with a stand-in for awkward; import awkward before it does"
        raise AttributeError(msg)


_STAND_IN = _StandIn("awkward")
