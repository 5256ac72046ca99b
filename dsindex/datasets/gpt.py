"""Training samples of one dataset as Megatron-core's GPTDataset returns them, from its index cache or dsindex's.

A sample is a run of tokens over the sequences in the order of the document index. The sample index says where each
sample begins, and the shuffle index sets the order of training. All three are memory-mapped.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dsindex.datasets.decoding import decode_tokens
from dsindex.datasets.index_files import open_index_array, sample_numbers
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.object_samples import ObjectSamples
from dsindex.datasets.sample_masks import DEFAULT_OPTIONS, SampleOptions, add_document_bounds, apply_boundaries
from dsindex.datasets.sample_parts import SamplePart, find_occurrences, find_parts
from dsindex.datasets.tables import describe_tokenizer, html_table
from dsindex.datasets.tensors import convert_arrays, tensor_maker
from dsindex.errors import FormatError
from dsindex.indices.cache import GPT_CLASS, read_description
from dsindex.tracing.samples import LocatedSample, SampleTrace, trace_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.datasets.index_files import IndexSource
    from dsindex.tracing.search import Occurrence

_PADDING = -1
"""Placeholder for missing tokens while a sample is assembled; no vocabulary contains it."""


class GPTDataset:
    """Map-style dataset of training samples.

    `ds[i]` is a sample for training, `ds.tokens(i)` and `ds.batch(ids)` are bare tokens, and `ds.parts(i)` says where
    they come from. Negative numbers count from the end. It is pickled as paths if it was opened from paths.

    Args:
        dataset: The tokens.
        document_index: Sequence numbers in the order of training, shape [epochs * sequences of the split].
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        shuffle_index: Row of the sample index for each sample, shape [samples].
        sequence_length: Tokens of a sample that the model sees.
        add_extra_token: Samples have one more token, so that the last one has a label, too. It must be as the indices
            were built; they do not say.
        options: How masks and positions of samples are made.
        torch: Return tensors instead of arrays.

    Raises:
        FormatError: If an index cannot be read, or its shape or type is not as described.
        ValueError: If the dataset does not hold integers, or the sequence length is below 1.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        document_index: IndexSource,
        sample_index: IndexSource,
        shuffle_index: IndexSource,
        *,
        sequence_length: int,
        add_extra_token: bool = True,
        options: SampleOptions = DEFAULT_OPTIONS,
        torch: bool = False,
    ) -> None:
        if dataset.dtype.kind not in "iu":
            msg = f"{dataset.prefix}: expected integer tokens, got {dataset.dtype}; choose a dataset of tokens"
            raise ValueError(msg)
        if sequence_length < 1:
            msg = f"expected a sequence length of at least 1, got {sequence_length}"
            raise ValueError(msg)
        self.dataset = dataset
        self.sequence_length = sequence_length
        self.add_extra_token = add_extra_token
        self.options = options
        self._make_tensor = tensor_maker(torch)
        self._sources = (document_index, sample_index, shuffle_index)
        self.document_index = open_index_array(document_index, what="a document index", shape=(None,))
        self.sample_index = open_index_array(sample_index, what="a sample index", shape=(None, 2))
        self.shuffle_index = open_index_array(
            shuffle_index, what="the sample index's shuffle index", shape=(max(len(self.sample_index) - 1, 0),)
        )
        self._extra = int(add_extra_token)
        tokens, *columns = dataset.token_columns()
        is_mapped = isinstance(tokens, np.ndarray)
        self._columns = (tokens, *columns, self.document_index, self.sample_index)
        self._objects = None if is_mapped else ObjectSamples(dataset, self.document_index, self.sample_index)
        self._pad = _PADDING if options.pad_token is None else options.pad_token
        # Only then can a token of the data equal the padding.
        self._pad_may_occur = options.pad_token is not None or dataset.dtype.kind == "i"
        self._positions = np.arange(sequence_length, dtype=np.int64)
        self._ones = np.ones(sequence_length, np.float32)

    @classmethod
    def open_cache(
        cls,
        description_path: str | os.PathLike[str],
        *,
        prefix: str | os.PathLike[str] | None = None,
        add_extra_token: bool = True,
        options: SampleOptions = DEFAULT_OPTIONS,
        check: bool = True,
        torch: bool = False,
        endpoint_url: str | None = None,
        region: str | None = None,
    ) -> GPTDataset:
        """Open one split of one dataset from Megatron-core's index cache.

        Args:
            description_path: The `<md5>-GPTDataset-<split>-description.txt`; the three indices are in the same folder.
            prefix: The dataset, if its path differs from the one in the description.
            add_extra_token: Whether the cache was built with it; the description does not say.
            options: How masks and positions of samples are made.
            check: As for IndexedDataset.
            torch: Return tensors instead of arrays.
            endpoint_url: As for IndexedDataset.
            region: As for IndexedDataset.

        Raises:
            FormatError: If a file is missing or damaged, or is not the cache of a GPTDataset.
        """
        path = os.fspath(description_path)
        description = read_description(path)
        sequence_length, dataset_path = description.get("sequence_length"), description.get("dataset_path")
        if description["class"] != GPT_CLASS or type(sequence_length) is not int or not isinstance(dataset_path, str):
            msg = (
                f"{path}: expected the description of a {GPT_CLASS} with its dataset_path and sequence_length, got a "
                f"{description['class']} with {dataset_path!r} and {sequence_length!r}"
            )
            raise FormatError(msg)
        base = path.removesuffix("description.txt")
        data = dataset_path if prefix is None else prefix
        return cls(
            IndexedDataset(data, check=check, endpoint_url=endpoint_url, region=region),
            f"{base}document_index.npy",
            f"{base}sample_index.npy",
            f"{base}shuffle_index.npy",
            sequence_length=sequence_length,
            add_extra_token=add_extra_token,
            options=options,
            torch=torch,
        )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.shuffle_index)

    def __getitem__(self, index: SupportsIndex | None) -> dict[str, NDArray[Any]]:
        """Return a sample for training.

        Args:
            index: Number of the sample. None returns the first one with all loss masked, to fill up a batch.

        Returns:
            `tokens`, `labels` and `position_ids`, int64, and `loss_mask`, float32, each of shape [sequence_length];
            with `create_attention_mask` also `attention_mask`, bool, True where attention is forbidden, shape
            [1, sequence_length, sequence_length]; with `inter_document_masking` also `cu_seqlens`, int32, shape
            [sequence_length + 1], and `max_seqlen`, int32, shape []. As in Megatron, `tokens` and `labels` may share
            memory.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        number = 0 if index is None else index
        sample = self.make_sample(self.tokens(number), number)
        if index is None:
            sample["loss_mask"][:] = 0.0
        return sample

    def __getitems__(self, indices: Sequence[SupportsIndex | None]) -> list[dict[str, NDArray[Any]]]:
        """Return many samples, each as `ds[i]`, with one call for all tokens; torch's DataLoader calls this."""
        numbers = [index.__index__() for index in indices if index is not None]
        if len(numbers) < len(indices):
            return [self[index] for index in indices]
        return [self.make_sample(text, number) for text, number in zip(self.batch(numbers), numbers, strict=True)]

    def make_sample(self, text: NDArray[np.int64], index: SupportsIndex) -> dict[str, NDArray[Any]]:
        """Return a sample for training from tokens as `tokens` and `batch` return them; it takes over their memory."""
        options = self.options
        if self._extra:
            tokens, labels = text[:-1], text[1:]
        else:
            tokens, labels = text, np.append(text[1:], self._pad)
        position_ids = self._positions.copy()
        loss_mask = self._ones.copy()
        sample: dict[str, NDArray[Any]] = {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": loss_mask,
            "position_ids": position_ids,
        }
        apply_boundaries(sample, options)
        if options.inter_document_masking:
            lengths = [part.num_tokens for part in self._find_parts(index, keeps_empty=True)]
            add_document_bounds(sample, lengths, extra=self._extra)
        if self._pad_may_occur or labels[-1] == self._pad:
            loss_mask[labels == self._pad] = 0.0
            text[text == self._pad] = 0
            labels[labels == self._pad] = 0
        return sample if self._make_tensor is None else convert_arrays(sample, self._make_tensor)

    def tokens(self, index: SupportsIndex) -> NDArray[np.int64]:
        """Return the tokens of a sample, shape [sequence_length + 1] ([sequence_length] without the extra token).

        A partial last sample is padded with the pad token, or -1 if there is none.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        number = self._number(index)
        if self._objects is not None:
            return self.batch([number]).reshape(-1)
        text: NDArray[np.int64] = np.empty(self.sequence_length + self._extra, np.int64)
        rows = self.shuffle_index[number : number + 1]
        if not self._assemble(*self._columns, rows, self._extra, self._pad, text[np.newaxis]):
            raise self._damaged(number)
        return text

    def batch(self, indices: ArrayLike, *, reads_ahead: bool = True) -> NDArray[np.int64]:
        """Return the tokens of many samples at once, each as `tokens` does, shape [n, sequence_length (+ 1)].

        Args:
            indices: Numbers of the samples, shape [n].
            reads_ahead: Also request what comes next from an object store, if the batches before tell what that is.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        numbers = sample_numbers(indices)
        wrong = np.flatnonzero((numbers < -len(self)) | (numbers >= len(self)))
        if len(wrong):
            raise self._no_such_sample(numbers[wrong[0]])
        out = np.empty((len(numbers), self.sequence_length + self._extra), np.int64)
        if self._objects is not None:
            done = self._objects.fill(
                out, numbers, self.shuffle_index, extra=self._extra, pad=self._pad, reads_ahead=reads_ahead
            )
            if done < len(numbers):
                raise self._damaged(int(numbers[done]))
            return out
        rows = self.shuffle_index[numbers]
        rows.flags.writeable = False  # so that numba uses the kernel that was compiled for one sample
        done = self._assemble(*self._columns, rows, self._extra, self._pad, out)
        if done < len(numbers):
            raise self._damaged(int(numbers[done]))
        return out

    @property
    def is_in_store(self) -> bool:
        """Whether the tokens are in an object store."""
        return self._objects is not None

    def expect(self, indices: ArrayLike) -> None:
        """Request samples that will be read soon from an object store, as many of them as exist."""
        if self._objects is not None:
            numbers = sample_numbers(indices)
            known = numbers[(numbers >= 0) & (numbers < len(self))].tolist()
            width = self.sequence_length + self._extra
            self._objects.expect(known, self.shuffle_index, width=width, extra=self._extra)

    def parts(self, index: SupportsIndex) -> list[SamplePart]:
        """Return the sequences that a sample's tokens come from, in order; parts without tokens are left out.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        return self._find_parts(index, keeps_empty=False)

    def _find_parts(self, index: SupportsIndex, *, keeps_empty: bool) -> list[SamplePart]:
        number = self._number(index)
        parts = find_parts(
            self.dataset,
            self.document_index,
            self.sample_index,
            int(self.shuffle_index[number]),
            num_tokens=self.sequence_length + self._extra,
            extra=self._extra,
            keeps_empty=keeps_empty,
        )
        if parts is None:
            raise self._damaged(number)
        return parts

    def trace(self, index: SupportsIndex) -> SampleTrace:
        """Return the documents and the lines of the inputs that a sample's tokens come from.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data, or manifest or provenance are damaged.
        """
        return trace_samples([self.locate(index)])[0]

    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number and parts, for `trace_samples`, which traces many at once."""
        return LocatedSample(sample=self._number(index), dataset=0, data=self.dataset, parts=self.parts(index))

    def find_document(self, document: SupportsIndex) -> list[Occurrence]:
        """Return where the tokens of a document occur in the samples, by sample number.

        Raises:
            IndexError: If there is no such document.
            FormatError: If the indices point outside the data.
        """
        sequences = self.dataset.document_sequences(document)
        if not sequences:
            return []
        found = find_occurrences(
            sequences, self.dataset, self.document_index, self.sample_index, self.shuffle_index, extra=self._extra
        )
        if isinstance(found, int):
            raise self._damaged(found)
        return found

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a sample, with special tokens and without padding.

        Args:
            index: Number of the sample.
            tokenizer: A tokenizer, its path, or an object with `decode`; None for the one that the manifest beside the
                data names, which is checked by its hash.

        Raises:
            IndexError: If there is no such sample.
            TokenizerError: If the tokenizer is not found, or is another one.
        """
        tokens = self.tokens(index)
        if self.options.pad_token is not None:
            tokens = tokens[: sum(part.num_tokens for part in self.parts(index))]
        return decode_tokens(tokens, prefix=self.dataset.prefix, tokenizer=tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        sources = [
            os.path.abspath(source) if isinstance(source, str | os.PathLike) else source for source in self._sources
        ]
        return {
            "sources": (self.dataset, *sources),
            "settings": {
                "sequence_length": self.sequence_length,
                "add_extra_token": self.add_extra_token,
                "options": self.options,
                "torch": self._make_tensor is not None,
            },
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["sources"], **state["settings"])  # type: ignore[misc]  # sets up again what pickle has made

    def __repr__(self) -> str:
        return (
            f"GPTDataset({self.dataset.prefix!r}: {len(self):,} samples, sequence_length={self.sequence_length:,}, "
            f"add_extra_token={self.add_extra_token})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "prefix": self.dataset.prefix,
            "samples": len(self),
            "sequence length": self.sequence_length,
            "extra token": self.add_extra_token,
            "sequences of the order": len(self.document_index),
            "tokenizer": describe_tokenizer(self.dataset.prefix),
        }
        return html_table("GPTDataset", facts)

    @cached_property
    def _assemble(self) -> Callable[..., int]:
        """The compiled kernel; numba, which compiles it, is slow to import."""
        from dsindex.kernels.sample_assembly import assemble_samples

        return assemble_samples

    def _number(self, index: SupportsIndex) -> int:
        number = index.__index__()
        if not -len(self) <= number < len(self):
            raise self._no_such_sample(index)
        return number + len(self) if number < 0 else number

    def _no_such_sample(self, index: object) -> IndexError:
        return IndexError(f"{self.dataset.prefix}: expected a sample below {len(self)}, got {index}")

    def _damaged(self, number: int) -> FormatError:
        return FormatError(
            f"{self.dataset.prefix}: expected at most {self.sequence_length + self._extra} tokens of the dataset for "
            f"sample {number}, got indices that point elsewhere; they were built from other data or settings"
        )
