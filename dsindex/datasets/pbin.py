"""Read `.pbin` files of Modalities (dsindex.formats.pbin) as documents or as blocks, under Modalities' class names.

They are numpy arrays of the types that Modalities passes to torch: uint8, int32 and int64 for tokens of 1, 2 and 4
bytes.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from dsindex.amounts import count
from dsindex.datasets.decoding import decode_tokens, tensor_maker
from dsindex.dtypes import starts_of
from dsindex.formats.pbin import open_tokens, read_document_lengths, read_pbin_header
from dsindex.store.urls import located

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.formats.mmididx import Tokens
    from dsindex.formats.pbin import PbinHeader, PbinVersion

# The blocks of a `.pbin` that begin where documents begin.


def plan_document_blocks(document_lengths: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Return the token at which each block begins, by the rule of PackedMemMapDatasetMegatron.

    Args:
        document_lengths: Tokens of each document, shape [documents].
        block_size: Tokens per block.

    >>> plan_document_blocks(np.array([3, 4, 2, 9]), 5)
    array([0, 3, 7, 9])
    """
    *starts, total = starts_of(document_lengths).data
    begins, begin, document = [], 0, 0
    while begin + block_size <= total:
        begins.append(begin)
        end = begin + block_size
        document = bisect_right(starts, end, lo=document) - 1  # which has the token at the end
        begin = end if starts[document] <= begin else starts[document]
    return np.array(begins, np.int64)


MEMORY_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int32), 4: np.dtype(np.int64)}
"""Token type in memory by token bytes on disk; torch has no arithmetic for most unsigned types."""


class _Parts:
    """Parts of a `.pbin` by number, blocks or documents; pickled as the arguments and mapped again."""

    _part_name = "block"

    def __init__(self, path: str | os.PathLike[str], *, version: PbinVersion | None, torch: bool) -> None:
        self._make_tensor = tensor_maker(torch)
        self.path = located(path)
        self.header: PbinHeader = read_pbin_header(self.path, version=version)
        self._tokens = open_tokens(self.path, self.header)
        self._memory_type = MEMORY_TYPES[self.header.token_bytes]
        self._begins: Sequence[int] | NDArray[np.int64] = ()
        """The first token of each part."""
        self._ends: Sequence[int] | NDArray[np.int64] = ()
        """The one after its last."""

    def __len__(self) -> int:
        """Return the number of blocks or documents, including empty ones."""
        return len(self._begins)

    @overload
    def __getitem__(self, index: SupportsIndex) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[Any]]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> NDArray[Any] | list[NDArray[Any]]:
        """Return the tokens of a block or document, or for a slice a list of such arrays.

        Raises:
            IndexError: If there is none of this number.
        """
        if isinstance(index, slice):
            return [self._part(number) for number in range(*index.indices(len(self)))]
        return self._part(index)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[NDArray[Any]]:
        """Return many of them, each as `ds[i]`; torch's DataLoader calls this."""
        return [self._part(index) for index in indices]

    def _part(self, index: SupportsIndex) -> NDArray[Any]:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected a {self._part_name} from 0 to {len(self) - 1}, got {number}")
        tokens = self._tokens[int(self._begins[number]) : int(self._ends[number])].astype(self._memory_type)
        return tokens if self._make_tensor is None else self._make_tensor(tokens)

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a block or document, with special tokens.

        Args:
            index: Its number.
            tokenizer: A tokenizer, its path, or an object with `decode`; None for the one that the manifest beside the
                data names, which is checked by its hash.

        Raises:
            IndexError: If there is none of this number.
            TokenizerError: If the tokenizer is not found, or is another one.
        """
        tokens = np.asarray(self[operator.index(index)])
        return decode_tokens(tokens, prefix=self.path.removesuffix(".pbin"), tokenizer=tokenizer)

    def _reopened(self, *options: object) -> tuple[Any, ...]:
        """Return how an unpickled dataset is opened."""
        opened = partial(type(self), version=self.header.version, torch=self._make_tensor is not None)
        return opened, (self.path, *options)


class _Blocks(_Parts):
    """Blocks of `block_size` tokens."""

    def __init__(
        self, path: str | os.PathLike[str], block_size: int, *, version: PbinVersion | None, torch: bool
    ) -> None:
        super().__init__(path, version=version, torch=torch)
        self.block_size = block_size
        if not 2 <= block_size <= self.header.num_tokens:
            raise ValueError(
                f"{self.path}: expected a block_size from 2, an input and a target, to its {self.header.num_tokens} "
                f"tokens, got {block_size}"
            )


class PackedMemMapDatasetContinuous(_Blocks):
    """All tokens in file order, cut into blocks without regard to documents.

    With `reuse_last_target` a block begins with the last token of the previous one, so that every token but the first
    is a target once: T tokens make (T - B) // (B - 1) + 1 blocks of B = `block_size` tokens. Without it, blocks do not
    overlap, and there are T // B. The remainder at the end is dropped. The index of the file is not read.

    Args:
        path: The `.pbin`, or its address in an object store.
        block_size: Tokens per block.
        reuse_last_target: Overlap blocks by one token.
        version: The version of the file; detected if None.
        torch: Return blocks as tensors of int64.

    Raises:
        FormatError: If the file is not a `.pbin`.
        ValueError: If `block_size` is below 2 or above the number of tokens.
        MissingPackageError: If `torch` is set and torch is not installed.

    Source: Modalities, PackedMemMapDatasetContinuous.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int,
        reuse_last_target: bool = True,
        *,
        version: PbinVersion | None = None,
        torch: bool = False,
    ) -> None:
        super().__init__(path, block_size, version=version, torch=torch)
        self.reuse_last_target = reuse_last_target
        stride = block_size - 1 if reuse_last_target else block_size
        self._begins = range(0, self.header.num_tokens - block_size + 1, stride)
        self._ends = range(block_size, self.header.num_tokens + 1, stride)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopened(self.block_size, self.reuse_last_target)

    def __repr__(self) -> str:
        return (
            f"PackedMemMapDatasetContinuous({self.path!r}: {len(self):,} blocks of {self.block_size:,} tokens, "
            f"reuse_last_target={self.reuse_last_target})"
        )


class PackedMemMapDatasetMegatron(_Blocks):
    """Blocks that begin where a document begins, unless the document is longer than a block.

    The rule for B = `block_size`: the first block begins at the first token and takes B tokens, across documents. The
    next block begins

    1. where the block ends, if a document begins there;
    2. else at the beginning of the document that did not fit, which is read again from its start;
    3. but if the block began in that same document, where the block ends, so that no token of a long document is lost.

    A tail shorter than a block is dropped. Documents of 3, 4, 2 and 9 tokens with B = 5: [0, 5) has the first and
    part of the second; [3, 8) the second and part of the third; [7, 12) the third and part of the fourth; [9, 14) the
    fourth, which is longer than 5; [14, 19) would be its rest, 4 tokens, and is dropped.

    Modalities' class of this name starts 12 bytes late and takes the block size as bytes; it is not a reference.

    Args:
        path: The `.pbin`, or its address in an object store.
        block_size: Tokens per block.
        version: The version of the file; detected if None.
        torch: Return blocks as tensors of int64.

    Raises:
        FormatError: If the file is not a `.pbin`, or its index is damaged.
        ValueError: If `block_size` is below 2 or above the number of tokens.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        block_size: int,
        *,
        version: PbinVersion | None = None,
        torch: bool = False,
    ) -> None:
        super().__init__(path, block_size, version=version, torch=torch)
        self._begins = plan_document_blocks(read_document_lengths(self.path, self.header), block_size)
        self._ends = self._begins + block_size

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopened(self.block_size)

    def __repr__(self) -> str:
        return f"PackedMemMapDatasetMegatron({self.path!r}: {len(self):,} blocks of {self.block_size:,} tokens)"


class PbinDocuments(_Parts):
    """The documents of a `.pbin` as arrays: `ds[i]`, `ds[a:b]`. It is pickled as its path and mapped again.

    Args:
        path: The `.pbin`, or its address in an object store.
        version: The version of the file; detected if None.
        torch: Return documents as tensors of int64.

    Raises:
        FormatError: If the file is not a `.pbin`, or its index is damaged.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    _part_name = "document"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        version: PbinVersion | None = None,
        torch: bool = False,
    ) -> None:
        super().__init__(path, version=version, torch=torch)
        bounds = starts_of(read_document_lengths(self.path, self.header))
        self._begins, self.document_ends = bounds[:-1], bounds[1:]
        self._ends = self.document_ends

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        return self.header.num_tokens

    @property
    def tokens(self) -> Tokens:
        """All tokens as they are stored: unsigned, in the file's byte order, shape [tokens]."""
        return self._tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopened()

    def __repr__(self) -> str:
        return (
            f"PbinDocuments({self.path!r}: {count(len(self), 'document')}, {count(self.num_tokens, 'token')} of "
            f"{self.header.token_bytes} bytes, version {self.header.version.name})"
        )
