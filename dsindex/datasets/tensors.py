"""Tensors in the place of arrays, where a dataset is asked for them. torch is an extra, and loads when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import DsindexError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


class MissingPackageError(DsindexError, ImportError):
    """Something was asked for that needs a package which is not installed."""


def tensor_maker(wanted: bool) -> Callable[[NDArray[Any]], Any] | None:
    """Return what makes a tensor of an array; None where arrays are wanted.

    Integers become int64, which models take as token ids. Memory is shared only if nobody else has it.

    Raises:
        MissingPackageError: If torch is wanted and not installed.
    """
    if not wanted:
        return None
    try:
        import torch
    except ImportError as error:
        msg = f"torch=True needs torch, which cannot be imported ({error}); install it: pip install 'dsindex[torch]'"
        raise MissingPackageError(msg) from error

    def make(array: NDArray[Any]) -> Any:  # noqa: ANN401 - torch is not there for type checkers
        if array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=not array.flags.writeable)
        elif not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array)

    return make


def convert_arrays(sample: Mapping[str, Any], make: Callable[[NDArray[Any]], Any]) -> dict[str, Any]:
    """Return a sample with a tensor for each array."""
    return {name: make(value) if isinstance(value, np.ndarray) else value for name, value in sample.items()}
