"""Read the sequences of an MMIDIDX dataset (`<prefix>.bin` and `<prefix>.idx`, see dsindex.formats.mmididx).

Arrays are views of the mapped files: opening takes no memory, and forked or spawned workers share the page cache. If a
dataset is in an object store, its index is fetched into the user's cache folder and mapped there, and tokens are read
in ranges; arrays are copies.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import numpy as np

from dsindex.datasets.base import MapDataset, return_unchanged, tensor_maker
from dsindex.datasets.decoding import decode_tokens
from dsindex.errors import FormatError
from dsindex.formats.dtypes import starts_of
from dsindex.formats.mmididx import check_index, read_index
from dsindex.store.read import input_status, open_items
from dsindex.store.urls import locate_dataset

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.store.read import Items


class IndexedDataset(MapDataset["NDArray[Any]"]):
    """The sequences of an MMIDIDX dataset as read-only numpy arrays: `ds[i]`, `ds[a:b]`, `ds.document(j)`.

    A sequence is one array even if the dataset has modes, which are in `sequence_modes`.

    Args:
        prefix: Path of the two files without `.bin` and `.idx`, or their address in an object store.
        check: Check every entry of the index when opening, which takes some nanoseconds per sequence. Otherwise only
            sizes and the first and last entries are checked, in constant time; an index that is wrong in the middle
            then causes a FormatError or wrong tokens later, but nothing is read outside the file.
        torch: Return `ds[i]` and `ds[a:b]` as tensors, of int64 if tokens are integers. They are copies, since torch
            has no read-only tensors.
        by_documents: Read each document as one sequence, as MaxText does.

    Raises:
        FormatError: If a file is missing or damaged, or the two files do not match.
        InputError: If an object cannot be read. Methods that read tokens also raise it, even for a replaced object.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    noun = "sequence"

    def __init__(
        self, prefix: str | os.PathLike[str], *, check: bool = True, torch: bool = False, by_documents: bool = False
    ) -> None:
        self._keep_arguments(locals())
        self.prefix = self.place = locate_dataset(prefix)
        self._convert = tensor_maker(torch)
        self._arguments["check"] = False
        idx_path = f"{self.prefix}.idx"
        index = read_index(idx_path)
        self.dtype: np.dtype[Any] = index.dtype
        """Type of the tokens, little-endian."""
        bin_path = f"{self.prefix}.bin"
        try:
            self._tokens, size_bytes = open_items(bin_path, self.dtype), input_status(bin_path).size_bytes
        except (OSError, ValueError) as error:
            raise FormatError(f"{bin_path}: cannot be read ({getattr(error, 'strerror', error)})") from error
        check_index(idx_path, index, bin_size_bytes=size_bytes, every_entry=check)
        index = index.join_sequences() if by_documents else index
        self.num_documents = index.header.num_documents
        """Number of documents, including empty ones."""
        self.num_tokens = len(self._tokens)
        """Number of tokens in the `.bin`."""
        self.sequence_lengths = index.sequence_lengths
        """Number of tokens of each sequence, shape [sequences]."""
        self.document_indices = index.document_indices
        """First sequence of each document, then the number of sequences; shape [documents + 1]."""
        self.sequence_modes = index.sequence_modes
        """Modality of each sequence (0 is text), shape [sequences]; None if the dataset has no modes."""
        self._shift = self.dtype.itemsize.bit_length() - 1
        self._sequence_pointers = index.sequence_pointers
        # A memoryview reads plain ints from unaligned memory, which makes ds[i] twice as fast as numpy scalars do.
        self._lengths = _plain_ints(index.sequence_lengths, "i")
        self._pointers = _plain_ints(index.sequence_pointers, "q")

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._lengths)

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
            return super().__getitem__(index)
        try:
            begin = self._pointers[index] >> self._shift
            length = self._lengths[index]
        except (IndexError, TypeError):
            self._number(index)  # raises an error that names the dataset
            raise
        tokens = self._tokens[begin : begin + length]
        if begin < 0 or len(tokens) != length:
            raise self._bounds_error(index)
        return tokens if self._convert is return_unchanged else self._convert(tokens)

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
        number = self._number(index)
        begin, remaining_tokens = (self._pointers[number] >> self._shift) + offset, self._lengths[number] - offset
        length = remaining_tokens if length is None else length
        if offset < 0 or not 0 <= length <= remaining_tokens:
            problem = f"sequence {index} has {remaining_tokens + offset} tokens"
            raise IndexError(f"{self.prefix}: {problem}; a part of {length} from {offset} is outside")
        tokens = self._tokens[begin : begin + length]
        if begin < offset or len(tokens) != length:
            raise self._bounds_error(index)
        return tokens

    def take(self, indices: Iterable[SupportsIndex]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return copies of many sequences in one array.

        Args:
            indices: n sequence numbers in any order, possibly repeated or negative.

        Returns:
            (values, offsets): the concatenated tokens, shape [offsets[n]], and the starts of sequences, shape [n + 1].
            Sequence k of the result is `values[offsets[k]:offsets[k + 1]]`.

        Raises:
            IndexError: If there is no such sequence.
            FormatError: If the index points outside the `.bin`.
        """
        sequences = [self.get(index) for index in indices]
        offsets = starts_of(np.array([len(sequence) for sequence in sequences], np.int64))
        return np.concatenate([np.empty(0, self.dtype), *sequences]), offsets

    def token_columns(self) -> tuple[Items, NDArray[np.int32], NDArray[np.int64], int]:
        """Return all tokens, sequence lengths and pointers, and log2 of a token's bytes."""
        return self._tokens, self.sequence_lengths, self._sequence_pointers, self._shift

    def document_sequences(self, document: SupportsIndex) -> range:
        """Return the numbers of a document's sequences; empty for a document without tokens.

        Raises:
            IndexError: If there is no such document.
            FormatError: If its boundaries lie outside the sequences.
        """
        number = document.__index__()
        number += self.num_documents if number < 0 else 0
        if not 0 <= number < self.num_documents:
            raise IndexError(f"{self.prefix}: there is no document {document}; it has {self.num_documents}")
        begin, end = self.document_indices[number : number + 2].tolist()
        if not 0 <= begin <= end <= len(self):  # possible only if the index was not checked on opening
            raise FormatError(
                f"{self.prefix}.idx: document {number} has sequences {begin} to {end} of {len(self)}",
                hint="verify the dataset",
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
        begin = self._pointers[sequences[0]] >> self._shift
        end = (self._pointers[sequences[-1]] >> self._shift) + self._lengths[sequences[-1]]
        if not 0 <= begin <= end <= self.num_tokens:
            raise self._bounds_error(sequences[0])
        return self._tokens[begin:end]

    def document_of(self, index: SupportsIndex) -> int:
        """Return the number of the document that a sequence belongs to.

        Raises:
            IndexError: If there is no such sequence.
        """
        # An empty document begins where the next one does, so the last document that begins at or before the sequence
        # owns it. np.searchsorted would copy the boundaries, as they are not aligned in the file.
        return bisect_right(self.document_indices, self._number(index)) - 1

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a sequence, with special tokens.

        Args:
            index: Number of the sequence.
            tokenizer: A tokenizer, its path, or an object with `decode`; None for the tokenizer that the manifest
                names, whose hash is checked.

        Raises:
            IndexError: If there is no such sequence.
            TokenizerError: If the tokenizer is not found, or has another hash.
        """
        return decode_tokens(self.get(index), prefix=self.prefix, tokenizer=tokenizer)

    def decode_document(self, document: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of all sequences of a document, as `decode` does for one sequence."""
        return decode_tokens(self.document(document), prefix=self.prefix, tokenizer=tokenizer)

    def _bounds_error(self, index: object) -> FormatError:
        return FormatError(f"{self.prefix}.idx: sequence {index} is outside the .bin", hint="verify the dataset")


def _plain_ints(array: NDArray[Any], code: Literal["i", "q"]) -> memoryview[int] | tuple[int, ...]:
    """Return a view of an array whose items are plain ints; a tuple if it is empty, since memoryviews cannot be."""
    if not len(array):
        return ()
    native_array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return memoryview(native_array.view(np.uint8).data).cast(code)
