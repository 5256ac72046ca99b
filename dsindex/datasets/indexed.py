"""Read the sequences of an MMIDIDX dataset (`<prefix>.bin` and `<prefix>.idx`, see dsindex.formats.mmididx).

Arrays are views of the mapped files: opening takes no memory, and forked or spawned workers share the page cache. Of
a dataset in an object store, the index is fetched into the user's cache folder and mapped there, and tokens are read in
ranges; arrays are copies.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

import numpy as np

from dsindex.amounts import count
from dsindex.datasets.decoding import decode_tokens, tensor_maker
from dsindex.errors import FormatError
from dsindex.formats.mmididx import as_items, check_ends, check_index, open_token_array, read_index
from dsindex.store.urls import absolute, located, with_suffix

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.formats.mmididx import SequenceIndex, Tokens


class IndexedDataset:
    """The sequences of an MMIDIDX dataset as read-only numpy arrays: `ds[i]`, `ds[a:b]`, `ds.document(j)`.

    A sequence is an array even if the dataset has modes, which are in `sequence_modes`. The dataset is pickled as its
    path and mapped again when unpickled. Arrays that were returned stay valid after `close`.

    Args:
        prefix: Path of the two files without `.bin` and `.idx`, or their address in an object store.
        check: Check every entry of the index when opening, which takes some nanoseconds per sequence. Otherwise only
            sizes and the first and last entries are checked, in constant time; an index that is wrong in the middle
            then causes a FormatError or wrong tokens later, but nothing is read outside the file.
        torch: Return `ds[i]` and `ds[a:b]` as tensors, of int64 if tokens are integers. They are copies, since torch
            has no read-only tensors.

    Raises:
        FormatError: If a file is missing, damaged, or does not fit the other.
        InputError: If an object cannot be read; as do all methods that read tokens, also if it was replaced.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        check: bool = True,
        torch: bool = False,
    ) -> None:
        self.prefix = located(prefix)
        self._make_tensor = tensor_maker(torch)
        idx_path = with_suffix(self.prefix, ".idx")
        index = read_index(idx_path)
        self.dtype: np.dtype[Any] = index.dtype
        """Type of the tokens, little-endian."""
        tokens, bin_size_bytes = open_token_array(with_suffix(self.prefix, ".bin"), self.dtype)
        if check:
            check_index(idx_path, index, bin_size_bytes=bin_size_bytes)
        else:
            check_ends(idx_path, index, bin_size_bytes=bin_size_bytes)
        self._index: SequenceIndex | None = index
        self._num_sequences = index.header.num_sequences
        self._tokens = tokens
        self._shift = self.dtype.itemsize.bit_length() - 1
        # A memoryview reads plain ints from unaligned memory, which makes ds[i] twice as fast as numpy scalars do.
        self._lengths = as_items(index.sequence_lengths, "i")
        self._pointers = as_items(index.sequence_pointers, "q")

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self._num_sequences

    @overload
    def __getitem__(self, index: SupportsIndex) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[Any]]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> NDArray[Any] | list[NDArray[Any]]:
        """Return the tokens of a sequence, or for a slice a list of such arrays.

        Raises:
            IndexError: If there is no such sequence.
            FormatError: If the index points outside the `.bin`.
        """
        if isinstance(index, slice):
            sequences = self._slice(index)
            return sequences if self._make_tensor is None else list(map(self._make_tensor, sequences))
        try:
            begin = self._pointers[index] >> self._shift
            length = self._lengths[index]
        except (IndexError, TypeError):
            raise self._no_such_sequence(index) from None
        tokens = self._tokens[begin : begin + length]
        if begin < 0 or len(tokens) != length:
            raise self._outside(index)
        return tokens if self._make_tensor is None else self._make_tensor(tokens)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[NDArray[Any]]:
        """Return many sequences, each as `ds[i]`; torch's DataLoader calls this."""
        return [self[index] for index in indices]

    def get(self, index: SupportsIndex, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Return part of a sequence.

        Args:
            index: Number of the sequence.
            offset: Tokens to skip at its start.
            length: Tokens to return; all that follow if None.

        Raises:
            IndexError: If there is no such sequence, or it does not contain the whole part.
            FormatError: If the index points outside the `.bin`.
        """
        try:
            begin = (self._pointers[index] >> self._shift) + offset
            room = self._lengths[index] - offset
        except (IndexError, TypeError):
            raise self._no_such_sequence(index) from None
        if length is None:
            length = room
        if offset < 0 or not 0 <= length <= room:
            raise IndexError(
                f"{self.prefix}: expected a part of sequence {index}, which has {room + offset} tokens, "
                f"got offset {offset}, length {length}"
            )
        tokens = self._tokens[begin : begin + length]
        if begin < offset or len(tokens) != length:
            raise self._outside(index)
        return tokens

    def take(self, indices: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return copies of many sequences in one array.

        Args:
            indices: Sequence numbers in any order, possibly repeated or negative; shape [n].

        Returns:
            (values, offsets): the concatenated tokens, shape [offsets[n]], and the starts of sequences, shape [n + 1].
            Sequence k of the result is `values[offsets[k]:offsets[k + 1]]`.

        Raises:
            IndexError: If there is no such sequence.
            FormatError: If the index points outside the `.bin`.
        """
        ids = np.asarray(indices)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"expected sequence numbers in one dimension, got {ids.dtype} of shape {ids.shape}")
        ids = ids.astype(np.int64, copy=False)
        wrong = np.flatnonzero((ids < -len(self)) | (ids >= len(self)))
        if len(wrong):
            raise self._no_such_sequence(int(ids[wrong[0]]))
        offsets = np.zeros(len(ids) + 1, np.int64)
        lengths = self.sequence_lengths[ids].astype(np.int64)
        begins = self._open_index().sequence_pointers[ids] >> self._shift
        wrong = np.flatnonzero((begins < 0) | (lengths < 0) | (begins > len(self._tokens) - lengths))
        if len(wrong):
            raise self._outside(int(ids[wrong[0]]))
        np.cumsum(lengths, out=offsets[1:])
        bounds = list(zip(begins.tolist(), (begins + lengths).tolist(), strict=True))
        if isinstance(self._tokens, np.ndarray):
            parts = [self._tokens[low:high] for low, high in bounds]
        else:
            parts = self._tokens.read_many(bounds)
        return np.concatenate([np.empty(0, self.dtype), *parts]), offsets

    def token_columns(self) -> tuple[Tokens, NDArray[np.int32], NDArray[np.int64], int]:
        """Return all tokens, sequence lengths and pointers, and log2 of a token's bytes.

        They are the arguments of kernels, which take the tokens of files only.
        """
        index = self._open_index()
        return self._tokens, index.sequence_lengths, index.sequence_pointers, self._shift

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        return self._open_index().header.num_documents

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the `.bin`."""
        return len(self._tokens)

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sequence, shape [sequences]."""
        return self._open_index().sequence_lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """First sequence of each document, then the number of sequences; shape [documents + 1]."""
        return self._open_index().document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8] | None:
        """Modality of each sequence (0 is text), shape [sequences]; None if the dataset has no modes."""
        return self._open_index().sequence_modes

    def document_sequences(self, document: SupportsIndex) -> range:
        """Return the numbers of a document's sequences; empty for a document without tokens.

        Raises:
            IndexError: If there is no such document.
            FormatError: If its boundaries lie outside the sequences.
        """
        boundaries = self.document_indices
        number = document.__index__()
        number += self.num_documents if number < 0 else 0
        if not 0 <= number < self.num_documents:
            raise IndexError(f"{self.prefix}: expected a document below {self.num_documents}, got {document}")
        begin, end = int(boundaries[number]), int(boundaries[number + 1])
        if not 0 <= begin <= end <= len(self):  # possible only if the index was not checked on opening
            raise FormatError(
                f"{self.prefix}.idx: expected document {number} within {len(self)} sequences, got {begin} to {end}; "
                f"verify the dataset"
            )
        return range(begin, end)

    def document(self, document: SupportsIndex) -> NDArray[Any]:
        """Return all tokens of a document: its sequences one after the other, as in the `.bin`.

        Raises:
            IndexError: If there is no such document.
            FormatError: If the index points outside the `.bin`.
        """
        sequences = self.document_sequences(document)
        if not sequences:
            return self._tokens[:0]
        return self._block(sequences.start, sequences.stop)[0]

    def document_of(self, index: SupportsIndex) -> int:
        """Return the number of the document that a sequence belongs to.

        Raises:
            IndexError: If there is no such sequence.
        """
        number = index.__index__()
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise self._no_such_sequence(index)
        # An empty document begins where the next one does, so the last one that begins at or before owns the sequence.
        # Not by numpy, which would copy the boundaries, as they are not aligned in the file.
        return bisect_right(self.document_indices, number) - 1

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a sequence, with special tokens.

        Args:
            index: Number of the sequence.
            tokenizer: A tokenizer, its path, or an object with `decode`; None for the one that the manifest beside the
                data names, which is checked by its hash.

        Raises:
            IndexError: If there is no such sequence.
            TokenizerError: If the tokenizer is not found, or is another one.
        """
        tokens = self.get(index)
        return decode_tokens(tokens, prefix=self.prefix, tokenizer=tokenizer)

    def decode_document(self, document: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a document: of all its sequences, as `decode` does of one."""
        return decode_tokens(self.document(document), prefix=self.prefix, tokenizer=tokenizer)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._index is None

    def close(self) -> None:
        """Release the files. Arrays that were returned stay valid; the files are unmapped with the last of them."""
        self._index = None
        self._tokens = np.empty(0, self.dtype)
        self._lengths = self._pointers = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        reopened = partial(IndexedDataset, check=False, torch=self._make_tensor is not None)
        return reopened, (absolute(self.prefix),)

    def __repr__(self) -> str:
        if self.closed:
            return f"IndexedDataset({self.prefix!r}, closed)"
        return (
            f"IndexedDataset({self.prefix!r}: {count(self.num_documents, 'document')}, "
            f"{count(len(self), 'sequence')}, {count(self.num_tokens, 'token')} of type {self.dtype})"
        )

    def _slice(self, indices: slice) -> list[NDArray[Any]]:
        begin, end, step = indices.indices(len(self))
        if step != 1:
            return [self.get(number) for number in range(begin, end, step)]
        if begin >= end:
            return []
        block, stops = self._block(begin, end)
        return [block[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]

    def _block(self, begin: int, end: int) -> tuple[NDArray[Any], list[int]]:
        """Return the tokens of the sequences [begin, end), of which there are some, and where each of them ends."""
        # Neighbours are contiguous, so checking the two ends bounds all of them.
        stops = np.cumsum(self.sequence_lengths[begin:end], dtype=np.int64).tolist()
        first = self._pointers[begin] >> self._shift
        block = self._tokens[first : first + stops[-1]]
        last = (self._pointers[end - 1] >> self._shift) + self._lengths[end - 1]
        if first < 0 or len(block) != stops[-1] or last - first != stops[-1]:
            raise self._outside(begin)
        return block, stops

    def _open_index(self) -> SequenceIndex:
        if self._index is None:
            raise ValueError(f"{self.prefix}: the dataset is closed")
        return self._index

    def _no_such_sequence(self, index: object) -> Exception:
        """Return the error for an index that was refused."""
        if self.closed:
            return ValueError(f"{self.prefix}: the dataset is closed")
        if not isinstance(index, SupportsIndex):
            return TypeError(f"expected an integer or a slice as index, got {type(index).__name__}")
        return IndexError(f"{self.prefix}: expected a sequence below {len(self)}, got {index}")

    def _outside(self, index: object) -> FormatError:
        return FormatError(
            f"{self.prefix}.idx: expected sequence {index} inside the .bin, got a position outside; verify the dataset"
        )
