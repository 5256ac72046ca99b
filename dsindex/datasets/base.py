"""The base class of datasets: items by number from either end, slices, batches, tensors, and pickling as paths."""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, SupportsIndex, TypeVar, cast, overload

import numpy as np

from dsindex.errors import DsindexError, MissingPackageError, install_command
from dsindex.messages import count
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

Item = TypeVar("Item")
PATHS = frozenset({"path", "prefix", "jsonl_path", "index_path", "document_index", "sample_index", "shuffle_index"})
PATHS |= {"dataset_index", "dataset_sample_index"}
"""Arguments of datasets that may be paths."""


class MapDataset(ABC, Generic[Item]):
    """A map-style dataset: `ds[i]`, `ds[-1]`, `ds[a:b]`. Its pickle has only the arguments that reopen it."""

    noun: ClassVar[str] = "sample"
    """Name of an item in messages."""
    place: str
    """The dataset's path in messages."""
    _arguments: dict[str, Any]
    """The arguments that reopen the dataset, also in another process and working folder."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | list[Item]:
        """Return an item, or for a slice a list of items.

        Raises:
            IndexError: If there is no such item.
        """
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self._read(self._number(index))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Item]:
        """Return many items, each as `ds[i]`; torch's DataLoader calls this."""
        return [self[index] for index in indices]

    def _keep_arguments(self, local_variables: Mapping[str, Any]) -> None:
        """Keep the arguments of `__init__`, which are its `locals()` at the start; paths become absolute."""
        args = {name: value for name, value in local_variables.items() if name not in {"self", "__class__"}}
        for name in PATHS & args.keys():
            args[name] = absolute(os.fspath(args[name])) if isinstance(args[name], str | os.PathLike) else args[name]
        self._arguments = args

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r}: {count(len(self), self.noun)})"

    def _repr_html_(self) -> str:
        """Return the repr for notebooks, with the beginning of the first items' texts if they can be decoded."""
        import html

        lines, decode = [repr(self)], getattr(self, "decode", None)
        if decode is not None:
            with contextlib.suppress(DsindexError):
                lines.extend(f"{self.noun} {number}: {decode(number)[:200]!r}" for number in range(min(3, len(self))))
        return f"<pre>{html.escape(chr(10).join(lines))}</pre>"

    def _read(self, number: int) -> Item:
        """Return the item with a number from 0. Subclasses implement this or `__getitem__`."""
        raise NotImplementedError

    def _number(self, index: SupportsIndex) -> int:
        """Return the number of an item, from 0.

        Raises:
            IndexError: If there is no such item.
        """
        number, size = operator.index(index), len(self)
        if not -size <= number < size:
            raise IndexError(f"{self.place}: there is no {self.noun} {number}; it has {size}")
        return number + size if number < 0 else number


# Tensors instead of arrays, for datasets with `torch=True`. torch is an optional package, imported on first use.


def tensor_maker(returns_tensors: bool) -> Callable[[Item], Item]:
    """Return the function to apply to every item: `to_tensors`, typed as if it returned arrays, or `return_unchanged`.

    Raises:
        MissingPackageError: If tensors are wanted and torch is not installed.
    """
    if not returns_tensors:
        return return_unchanged
    try:
        importlib.import_module("torch")
    except ImportError as error:
        problem = f"torch=True needs torch, which cannot be imported ({error})"
        raise MissingPackageError(problem, hint=install_command("torch")) from error
    return cast("Callable[[Item], Item]", to_tensors)


def return_unchanged(value: Item) -> Item:
    """Return an item unchanged."""
    return value


def to_tensors(value: NDArray[Any] | Mapping[str, Any]) -> Any:  # noqa: ANN401 - torch may not be installed
    """Return an array as a tensor, or a sample with its arrays as tensors.

    Integers become int64, the type of token ids in models. Read-only arrays are copied, since torch has no read-only
    tensors.
    """
    if not isinstance(value, np.ndarray):
        return {name: to_tensors(field) if isinstance(field, np.ndarray) else field for name, field in value.items()}
    import torch

    if value.dtype.kind in "iu":
        value = value.astype(np.int64, copy=not value.flags.writeable)
    elif not value.flags.writeable:
        value = value.copy()
    return torch.from_numpy(value)
