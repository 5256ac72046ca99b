"""Read `.pbin` files of Modalities (dsindex.formats.pbin) as documents or as blocks, under Modalities' class names.

Both are numpy arrays of the types that Modalities passes to torch: uint8, int32 and int64 for tokens of 1, 2 and 4
bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dsindex.datasets.base import MapDataset, tensor_maker
from dsindex.datasets.decoding import decode_tokens
from dsindex.formats.dtypes import starts_of
from dsindex.formats.pbin import open_tokens, read_document_lengths, read_pbin_header
from dsindex.store.urls import locate_dataset

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.formats.pbin import PbinVersion
    from dsindex.store.read import Items

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
        document = bisect_right(starts, end, lo=document) - 1  # the document with the token at `end`
        begin = end if starts[document] <= begin else starts[document]
    return np.array(begins, np.int64)


MEMORY_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int32), 4: np.dtype(np.int64)}
"""Token type in memory by token bytes on disk; torch has no arithmetic for most unsigned types."""


class _Parts(MapDataset["NDArray[Any]"]):
    """The blocks or documents of a `.pbin`, by number."""

    noun = "block"
    _begins: Sequence[int] | NDArray[np.int64]
    """The first token of each part."""
    _ends: Sequence[int] | NDArray[np.int64]
    """One past the last token of each part."""

    def __init__(self, path: str | os.PathLike[str], *, version: PbinVersion | None = None, torch: bool) -> None:
        self.path = self.place = locate_dataset(path)
        self._convert = tensor_maker(torch)
        self.header = read_pbin_header(self.path, version=version)
        self.num_tokens = self.header.num_tokens
        self.tokens: Items = open_tokens(self.path, self.header)
        """All tokens as they are stored: unsigned, in the file's byte order, shape [tokens]."""

    def __len__(self) -> int:
        """Return the number of blocks or documents, including empty ones."""
        return len(self._begins)

    def _read(self, number: int) -> NDArray[Any]:
        return self._convert(self._part(number))

    def _part(self, number: int) -> NDArray[Any]:
        tokens = self.tokens[int(self._begins[number]) : int(self._ends[number])]
        return tokens.astype(MEMORY_TYPES[self.header.token_bytes])

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a block or document, with special tokens, as `IndexedDataset.decode` does."""
        tokens = self._part(self._number(index))
        return decode_tokens(tokens, prefix=self.path.removesuffix(".pbin"), tokenizer=tokenizer)


class _Blocks(_Parts):
    def __init__(self, path: str | os.PathLike[str], block_size: int, *, torch: bool) -> None:
        super().__init__(path, torch=torch)
        self.block_size = block_size
        if not 2 <= block_size <= self.num_tokens:
            raise ValueError(f"{self.path}: block_size is {block_size}, not from 2 to its {self.num_tokens} tokens")


class PackedMemMapDatasetContinuous(_Blocks):
    """All tokens in file order, cut into blocks without regard to documents.

    With `reuse_last_target` a block begins with the last token of the previous one, so that every token but the first
    is a target once: T tokens make (T - B) // (B - 1) + 1 blocks of B = `block_size` tokens. Without it, blocks do not
    overlap, and there are T // B. The remainder at the end is dropped. The index of the file is not read.

    Args:
        path: The `.pbin`, or its address in an object store.
        block_size: Tokens per block.
        reuse_last_target: Overlap blocks by one token.
        torch: Return blocks as tensors of int64.

    Raises:
        FormatError: If the file is not a `.pbin`.
        ValueError: If `block_size` is below 2 or above the number of tokens.
        MissingPackageError: If `torch` is set and torch is not installed.

    Source: Modalities, PackedMemMapDatasetContinuous.
    """

    def __init__(
        self, path: str | os.PathLike[str], block_size: int, reuse_last_target: bool = True, *, torch: bool = False
    ) -> None:
        self._keep_arguments(locals())
        super().__init__(path, block_size, torch=torch)
        stride = block_size - 1 if reuse_last_target else block_size
        self._begins = range(0, self.num_tokens - block_size + 1, stride)
        self._ends = range(block_size, self.num_tokens + 1, stride)


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
        torch: Return blocks as tensors of int64.

    Raises:
        FormatError: If the file is not a `.pbin`, or its index is damaged.
        ValueError: If `block_size` is below 2 or above the number of tokens.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], block_size: int, *, torch: bool = False) -> None:
        self._keep_arguments(locals())
        super().__init__(path, block_size, torch=torch)
        self._begins = plan_document_blocks(read_document_lengths(self.path, self.header), block_size)
        self._ends = self._begins + block_size


class PbinDocuments(_Parts):
    """The documents of a `.pbin` as arrays: `ds[i]`, `ds[a:b]`.

    Args:
        path: The `.pbin`, or its address in an object store.
        version: The version of the file; detected if None.
        torch: Return documents as tensors of int64.

    Raises:
        FormatError: If the file is not a `.pbin`, or its index is damaged.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    noun = "document"

    def __init__(
        self, path: str | os.PathLike[str], *, version: PbinVersion | None = None, torch: bool = False
    ) -> None:
        self._keep_arguments(locals())
        super().__init__(path, version=version, torch=torch)
        self.document_bounds = starts_of(read_document_lengths(self.path, self.header))
        """Where documents begin, and the end of the last; shape [documents + 1]."""
        self._begins, self._ends = self.document_bounds[:-1], self.document_bounds[1:]
