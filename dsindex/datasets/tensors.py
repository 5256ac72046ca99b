"""Convert arrays to tensors for datasets with `torch=True`. torch is an optional package, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import DsindexError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


class MissingPackageError(DsindexError, ImportError):
    """An option or function needs a package that is not installed."""


def tensor_maker(wanted: bool) -> Callable[[NDArray[Any]], Any] | None:
    """Return a function that turns an array into a tensor; None if arrays are wanted.

    Integers become int64, the type of token ids in models. Only the memory of writeable arrays is shared.

    Raises:
        MissingPackageError: If tensors are wanted and torch is not installed.
    """
    if not wanted:
        return None
    try:
        import torch
    except ImportError as error:
        msg = f"torch=True needs torch, which cannot be imported ({error}); install it: pip install 'dsindex[torch]'"
        raise MissingPackageError(msg) from error

    def make(array: NDArray[Any]) -> Any:  # noqa: ANN401 - torch may not be installed
        if array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=not array.flags.writeable)
        elif not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array)

    return make


def convert_arrays(sample: Mapping[str, Any], make: Callable[[NDArray[Any]], Any]) -> dict[str, Any]:
    """Return a sample with its arrays replaced by tensors."""
    return {name: make(value) if isinstance(value, np.ndarray) else value for name, value in sample.items()}
