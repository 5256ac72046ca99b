"""Training samples as Megatron-core's GPTDataset and BlendedDataset return them, from its index caches or dsindex's.

A sample is a run of tokens over the sequences in the order of the document index. The sample index says where each
sample begins, and the shuffle index sets the order of training. All three are memory-mapped.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dsindex.datasets.base import tensor_maker
from dsindex.datasets.decoding import decode_tokens
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.samples import LocatedSample, SampleDataset, SamplePart
from dsindex.errors import FormatError
from dsindex.megatron.cache import (
    BLENDED_ARRAYS,
    BLENDED_CLASS,
    GPT_ARRAYS,
    GPT_CLASS,
    files_of,
    find_description,
    open_array,
    read_description,
)
from dsindex.megatron.maxtext import MAXTEXT_CLASS
from dsindex.store.urls import require_confirmed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.megatron.cache import IndexSource


# Options of a training sample's masks and positions, and how they are applied, as in Megatron-core's GPTDataset.


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """How masks and positions of a sample are made. The names are Megatron's."""

    eod_token: int | None = None
    """Id of EOD; `reset_position_ids`, `reset_attention_mask` and `eod_mask_loss` need it."""
    reset_position_ids: bool = False
    """Restart positions at 0 after each EOD."""
    reset_attention_mask: bool = False
    """Hide tokens up to an EOD from those after it; needs `create_attention_mask`."""
    eod_mask_loss: bool = False
    """Mask the loss where the input is EOD."""
    create_attention_mask: bool = False
    """Add `attention_mask`, sequence_length squared bytes per sample; most attention kernels do not need it."""
    pad_token: int | None = None
    """Pads a partial last sample. As in Megatron, loss on it is masked and the model sees token 0 instead."""
    inter_document_masking: bool = False
    """Add `cu_seqlens` and `max_seqlen`, which keep attention inside documents, as Megatron-core does from 0.19 on."""

    def __post_init__(self) -> None:
        if self.eod_token is None and (self.reset_position_ids or self.reset_attention_mask or self.eod_mask_loss):
            raise ValueError("reset_position_ids, reset_attention_mask and eod_mask_loss need an eod_token, got None")
        if self.pad_token is not None and self.pad_token == self.eod_token:
            raise ValueError(f"pad_token {self.pad_token} is the eod_token, whose loss is masked; leave pad_token out")


DEFAULT_OPTIONS = SampleOptions()


def apply_boundaries(sample: dict[str, NDArray[Any]], options: SampleOptions) -> None:
    """Apply the options that concern document boundaries to the arrays of a sample, and add its attention mask."""
    sequence_length = len(sample["tokens"])
    if options.eod_token is None:
        if options.create_attention_mask:
            sample["attention_mask"] = _causal_mask(sequence_length, [])
        return
    ends = np.flatnonzero(sample["tokens"] == options.eod_token)
    if options.eod_mask_loss:
        sample["loss_mask"][ends] = 0.0
    if options.reset_position_ids:
        sample["position_ids"] -= _document_starts(sequence_length, ends)
    if options.create_attention_mask:
        sample["attention_mask"] = _causal_mask(sequence_length, ends.tolist() if options.reset_attention_mask else [])


def add_document_bounds(sample: dict[str, NDArray[Any]], lengths: list[int], *, extra: int) -> None:
    """Add the bounds of documents to a sample, and restart its positions at each.

    Args:
        sample: The arrays of a sample.
        lengths: Tokens of each of its parts in order, empty ones included, with the extra token if there is one.
        extra: Tokens at the end that only labels have: 1 or 0.

    `cu_seqlens`, int32, shape [sequence_length + 1], has the start of each part; all later items are sequence_length.
    `max_seqlen`, int32, shape [], is the length of the longest part. Padding belongs to the last part.

    Source: Megatron-core 0.19, GPTDataset.__getitem__.
    """
    sequence_length = len(sample["tokens"])
    sizes = np.array(lengths, np.int64)
    sizes[-1] -= extra
    if extra and sizes[-1] == 0 and len(sizes) > 1:
        sizes = sizes[:-1]
    sizes[-1] += sequence_length - sizes.sum()
    if len(sizes) > sequence_length:
        sizes = sizes[sizes > 0]  # Megatron stops at a sample with so many empty parts
    ends = np.cumsum(sizes)
    bounds = np.full(sequence_length + 1, sequence_length, np.int32)
    bounds[0] = 0
    bounds[1 : len(ends) + 1] = ends
    sample["cu_seqlens"] = bounds
    sample["max_seqlen"] = np.array(sizes.max(), np.int32)
    sample["position_ids"] = np.arange(sequence_length, dtype=np.int64) - np.repeat(ends - sizes, sizes)


def _document_starts(sequence_length: int, ends: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the start of each position's document, given the positions of the EODs.

    >>> _document_starts(6, np.array([1, 3]))
    array([0, 0, 2, 2, 4, 4])
    """
    starts = np.zeros(sequence_length + 1, np.int64)
    starts[ends + 1] = ends + 1
    return np.asarray(np.maximum.accumulate(starts)[:-1])


def _causal_mask(sequence_length: int, hidden_after: list[int]) -> NDArray[np.bool_]:
    """Return a mask, True where the row must not see the column: later tokens, and those up to a given end."""
    mask = ~np.tri(sequence_length, dtype=np.bool_)
    for end in hidden_after:
        mask[end + 1 :, : end + 1] = True
    return mask[np.newaxis]


class MegatronSamples(SampleDataset[dict[str, Any]]):
    """Training samples of one dataset or of a blend."""

    num_sample_tokens: int
    """Tokens of a sample, the extra one included."""

    def tokens(self, index: SupportsIndex) -> NDArray[np.int64]:
        """Return the tokens of a sample, shape [sequence_length + 1] ([sequence_length] without the extra token).

        A partial last sample is padded with the pad token, or with -1 without a pad token.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        tokens: NDArray[np.int64] = self.batch([index])[0]
        return tokens

    def batch(self, indices: Sequence[SupportsIndex]) -> NDArray[np.int64]:
        """Return the tokens of n samples, each as `tokens` does, shape [n, sequence_length (+ 1)].

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        out = np.empty((len(indices), self.num_sample_tokens), np.int64)
        for index, text in zip(indices, out, strict=True):
            dataset, number = self._find_dataset(self._number(index))
            dataset._copy_tokens(number, text)
        return out

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a sample, with special tokens and without padding, as `IndexedDataset.decode` does.

        A sample of a blend is decoded by the tokenizer of its own dataset.
        """
        length, prefix = sum(part.num_tokens for part in self.parts(index)), self.locate(index).data.prefix
        return decode_tokens(self.tokens(index)[:length], prefix=prefix, tokenizer=tokenizer)

    @abstractmethod
    def _find_dataset(self, number: int) -> tuple[GPTDataset, int]:
        """Return the dataset of a sample, and the sample's number in it."""


_PADDING = -1
"""Placeholder for missing tokens while a sample is assembled; no vocabulary contains it."""


class GPTDataset(MegatronSamples):
    """Map-style dataset of training samples.

    `ds[i]` is a sample for training, `ds.tokens(i)` and `ds.batch(ids)` are bare tokens, and `ds.parts(i)` says where
    they come from. It is pickled as paths if it was opened from paths.

    Args:
        dataset: The tokens.
        document_index: Sequence numbers in the order of training, shape [epochs * sequences of the split].
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        shuffle_index: Row of the sample index for each sample, shape [samples].
        sequence_length: Tokens of a sample that the model sees.
        add_extra_token: Samples have one more token, the label of the last input. Must match the indices, which do not
            record it.
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
        self._keep_arguments(locals())
        if dataset.dtype.kind not in "iu":
            raise ValueError(f"{dataset.prefix}: its {dataset.dtype} values are no tokens")
        if sequence_length < 1:
            raise ValueError(f"the sequence length must be at least 1, not {sequence_length}")
        self.dataset, self.place = dataset, dataset.prefix
        self.sequence_length = sequence_length
        self.add_extra_token = add_extra_token
        self.num_sample_tokens = sequence_length + add_extra_token
        self.options = options
        self._convert = tensor_maker(torch)
        self.document_index = open_array(document_index, "document_index")
        self.sample_index = open_array(sample_index, "sample_index")
        self.shuffle_index = open_array(shuffle_index, "shuffle_index", length=max(len(self.sample_index) - 1, 0))
        self._num_extra = int(add_extra_token)
        self._tokens, *columns = dataset.token_columns()
        self._columns: tuple[Any, ...] = (*columns, self.document_index, self.sample_index)
        self._pad = _PADDING if options.pad_token is None else options.pad_token
        # Data may contain a pad token, and signed data the placeholder; unsigned data cannot contain -1.
        self._pad_may_occur = options.pad_token is not None or dataset.dtype.kind == "i"
        self._positions = np.arange(sequence_length, dtype=np.int64)
        self._ones = np.ones(sequence_length, np.float32)

    @classmethod
    def open_cache(
        cls,
        description_path: str | os.PathLike[str],
        *,
        prefix: str | os.PathLike[str] | None = None,
        add_extra_token: bool | None = None,
        options: SampleOptions = DEFAULT_OPTIONS,
        check: bool = True,
        torch: bool = False,
    ) -> GPTDataset:
        """Open one split of one dataset from Megatron-core's index cache, or from MaxText's.

        Args:
            description_path: The `<md5>-GPTDataset-<split>-description.txt`; the three indices are in the same folder.
            prefix: The dataset, if its path differs from the one in the description.
            add_extra_token: Whether the cache was built with the extra token, which the description does not say. None
                for the value in dsindex's record or, without a record, Megatron's default.
            options: How masks and positions of samples are made.
            check: As for IndexedDataset.
            torch: Return tensors instead of arrays.

        Raises:
            FormatError: If a file is missing or damaged, or is not the cache of a GPTDataset.
        """
        path = os.fspath(description_path)
        description = read_description(path)
        if description["class"] not in {GPT_CLASS, MAXTEXT_CLASS}:
            raise FormatError(f"{path}: the description of a {description['class']}, not of a {GPT_CLASS}")
        if add_extra_token is None:
            record = files_of(path).read_record()
            add_extra_token = record is None or record.settings.extra_token
        if prefix is None:
            prefix = str(description["dataset_path"])
            hint = "give the path of the dataset: inspect --data-path, trace --prefix, in Python prefix="
            require_confirmed(prefix, [path], hint=hint)
        return cls(
            IndexedDataset(prefix, check=check, by_documents=description["class"] == MAXTEXT_CLASS),
            *map(files_of(path).array, GPT_ARRAYS),
            sequence_length=description["sequence_length"],
            add_extra_token=add_extra_token,
            options=options,
            torch=torch,
        )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.shuffle_index)

    def _read(self, number: int) -> dict[str, NDArray[Any]]:
        """Return a sample for training.

        Returns:
            `tokens`, `labels` and `position_ids`, int64, and `loss_mask`, float32, each of shape [sequence_length];
            with `create_attention_mask` also `attention_mask`, bool, True where attention is forbidden, shape
            [1, sequence_length, sequence_length]; with `inter_document_masking` also `cu_seqlens`, int32, shape
            [sequence_length + 1], and `max_seqlen`, int32, shape []. As in Megatron, `tokens` and `labels` may share
            memory.

        Raises:
            FormatError: If the indices point outside the data.
        """
        text: NDArray[np.int64] = np.empty(self.num_sample_tokens, np.int64)
        self._copy_tokens(number, text)
        if self._num_extra:
            tokens, labels = text[:-1], text[1:]
        else:
            tokens, labels = text, np.append(text[1:], self._pad)
        loss_mask = self._ones.copy()
        sample: dict[str, NDArray[Any]] = {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": loss_mask,
            "position_ids": self._positions.copy(),
        }
        apply_boundaries(sample, self.options)
        if self.options.inter_document_masking:
            lengths = [num_tokens for *_, num_tokens in self._find_parts(number)]
            add_document_bounds(sample, lengths, extra=self._num_extra)
        if self._pad_may_occur or labels[-1] == self._pad:
            loss_mask[labels == self._pad] = 0.0
            text[text == self._pad] = 0
            labels[labels == self._pad] = 0
        return self._convert(sample)

    def _find_dataset(self, number: int) -> tuple[GPTDataset, int]:
        return self, number

    def _copy_tokens(self, number: int, out: NDArray[np.int64]) -> None:
        row = int(self.shuffle_index[number])
        if not self._copy_sample(self._tokens, self._columns, row, self._num_extra, self._pad, out):
            raise self._damage_error(number)

    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number and parts; `trace_samples` traces many of them at once."""
        number = self._number(index)
        parts = [
            SamplePart(prefix=self.dataset.prefix, sequence=sequence, offset=offset, num_tokens=num_tokens)
            for sequence, offset, _, num_tokens in self._find_parts(number)
            if num_tokens
        ]
        return LocatedSample(sample=number, dataset=0, data=self.dataset, parts=parts)

    @cached_property
    def _copy_sample(self) -> Callable[..., bool]:
        """The kernel that copies a sample, imported on first use since numba is slow to import."""
        from dsindex.datasets.sample_assembly import copy_sample

        is_mapped = isinstance(self._tokens, np.ndarray)  # tokens in an object store are not an array
        kernel: Callable[..., bool] = copy_sample if is_mapped else getattr(copy_sample, "py_func", copy_sample)
        return kernel

    def _find_parts(self, number: int) -> list[tuple[int, int, int, int]]:
        """Return the parts of a sample as `find_part` returns them."""
        from dsindex.datasets.sample_assembly import list_parts

        row = int(self.shuffle_index[number])
        parts = list_parts(len(self._tokens), self._columns, row, self._num_extra, self.num_sample_tokens)
        if parts is None:
            raise self._damage_error(number)
        return parts

    def _damage_error(self, number: int) -> FormatError:
        return FormatError(
            f"{self.dataset.prefix}: the indices of sample {number} point outside the dataset, or to more than "
            f"{self.num_sample_tokens} tokens; they were built from other data or settings"
        )


class BlendedDataset(MegatronSamples):
    """Map-style dataset of a blend's samples. It is pickled as paths if it was opened from paths.

    Args:
        datasets: The blended datasets, all of the same sequence length.
        dataset_index: Dataset number of each sample, shape [samples].
        dataset_sample_index: Sample number within that dataset, shape [samples].

    Raises:
        FormatError: If an index cannot be read, or its shape or type is not as described.
        ValueError: If there are no datasets, or their samples differ in length.
    """

    def __init__(
        self, datasets: Sequence[GPTDataset], dataset_index: IndexSource, dataset_sample_index: IndexSource
    ) -> None:
        self._keep_arguments(locals())
        sample_sizes = {(dataset.sequence_length, dataset.add_extra_token) for dataset in datasets}
        if len(sample_sizes) != 1:
            raise ValueError(f"a blend needs datasets of one sequence length, not {sorted(sample_sizes)}")
        self._datasets = list(datasets)
        self.num_sample_tokens = datasets[0].num_sample_tokens
        self.place = f"a blend of {len(datasets)} datasets"
        self.dataset_index = open_array(dataset_index, "dataset_index")
        self.dataset_sample_index = open_array(dataset_sample_index, "dataset_sample_index", length=len(self))

    @property
    def datasets(self) -> list[GPTDataset]:
        """The datasets of the blend."""
        return self._datasets

    @classmethod
    def open_cache(
        cls,
        description_path: str | os.PathLike[str],
        *,
        prefixes: Sequence[str | os.PathLike[str]] | None = None,
        add_extra_token: bool | None = None,
        options: SampleOptions = DEFAULT_OPTIONS,
        check: bool = True,
        torch: bool = False,
    ) -> BlendedDataset:
        """Open one split of a blend from Megatron-core's index cache.

        Args:
            description_path: The `<md5>-BlendedDataset-<split>-description.txt`. Its two indices and the caches of the
                blended datasets are in the same folder, under their hashes or any other name.
            prefixes: The datasets in the order of the blend, if their paths differ from those in the description.
            add_extra_token: As for GPTDataset.
            options: How masks and positions of samples are made.
            check: As for IndexedDataset.
            torch: Return tensors instead of arrays.

        Raises:
            FormatError: If a file is missing or damaged, or is not the cache of a BlendedDataset.
            ValueError: If the number of prefixes is not the number of datasets.
        """
        path = os.fspath(description_path)
        description = read_description(path)
        if description["class"] != BLENDED_CLASS:
            raise FormatError(f"{path}: the description of a {description['class']}, not of a {BLENDED_CLASS}")
        parts = description["datasets"]
        if prefixes is not None and len(prefixes) != len(parts):
            raise ValueError(f"{path}: {len(prefixes)} prefixes were given for {len(parts)} datasets")
        datasets = [
            GPTDataset.open_cache(
                find_description(os.path.dirname(path), part),
                prefix=None if prefixes is None else prefixes[number],
                add_extra_token=add_extra_token,
                options=options,
                check=check,
                torch=torch,
            )
            for number, part in enumerate(parts)
        ]
        blend = cls(datasets, *map(files_of(path).array, BLENDED_ARRAYS))
        blend.place = path
        return blend

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset_index)

    def _read(self, number: int) -> dict[str, Any]:
        """Return a sample as GPTDataset does, with the number of its dataset as `dataset_id`."""
        dataset, sample = self._find_dataset(number)
        return {"dataset_id": self.dataset_index[number], **dataset[sample]}  # of the index's type, as in Megatron

    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number, dataset and parts; `trace_samples` traces many of them at once."""
        number = self._number(index)
        dataset, sample = self._find_dataset(number)
        return replace(dataset.locate(sample), sample=number, dataset=int(self.dataset_index[number]))

    def _find_dataset(self, number: int) -> tuple[GPTDataset, int]:
        """Return the dataset of a sample, and the sample's number in it.

        Raises:
            FormatError: If there is no such sample.
        """
        index, sample = int(self.dataset_index[number]), int(self.dataset_sample_index[number])
        if not 0 <= index < len(self.datasets) or not 0 <= sample < len(self.datasets[index]):
            raise FormatError(
                f"{self.place}: there is no sample {sample} of dataset {index}; the blend was built from other datasets"
            )
        return self.datasets[index], sample
