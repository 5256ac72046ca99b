"""Training samples of several datasets in turn, as Megatron-core's BlendedDataset returns them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dsindex.datasets.gpt import DEFAULT_OPTIONS, GPTDataset, open_index_array, sample_numbers
from dsindex.datasets.samples import LocatedSample, SampleTrace, trace_samples
from dsindex.errors import FormatError
from dsindex.index.cache import BLENDED_ARRAYS, BLENDED_CLASS, array_beside, find_description, read_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from dsindex.datasets.decoding import TokenizerLike
    from dsindex.datasets.gpt import IndexSource, SampleOptions
    from dsindex.datasets.samples import SamplePart


class BlendedDataset:
    """Map-style dataset of a blend's samples. Pickled as paths if it was opened from paths.

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
        widths = {(dataset.sequence_length, dataset.add_extra_token) for dataset in datasets}
        if len(widths) != 1:
            raise ValueError(f"expected datasets of one sequence length to blend, got {sorted(widths)}")
        self.datasets = list(datasets)
        self._sources = (dataset_index, dataset_sample_index)
        self.dataset_index = open_index_array(dataset_index, what="a dataset index", shape=(None,))
        self.dataset_sample_index = open_index_array(
            dataset_sample_index, what="the dataset index's sample index", shape=(len(self.dataset_index),)
        )

    @classmethod
    def open_cache(
        cls,
        description_path: str | os.PathLike[str],
        *,
        prefixes: Sequence[str | os.PathLike[str]] | None = None,
        add_extra_token: bool = True,
        options: SampleOptions = DEFAULT_OPTIONS,
        check: bool = True,
        torch: bool = False,
    ) -> BlendedDataset:
        """Open one split of a blend from Megatron-core's index cache.

        Args:
            description_path: The `<md5>-BlendedDataset-<split>-description.txt`. Its two indices and the caches of the
                blended datasets are in the same folder, under their hashes or any other name.
            prefixes: The datasets in the order of the blend, if their paths differ from those in the description.
            add_extra_token: Whether the caches were built with it; the description does not say.
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
            raise FormatError(f"{path}: expected the description of a {BLENDED_CLASS}, got a {description['class']}")
        parts = description["datasets"]
        if prefixes is not None and len(prefixes) != len(parts):
            raise ValueError(f"{path}: expected {len(parts)} prefixes, one for each dataset, got {len(prefixes)}")
        folder = os.path.dirname(path)
        datasets = [
            GPTDataset.open_cache(
                find_description(folder, part),
                prefix=None if prefixes is None else prefixes[number],
                add_extra_token=add_extra_token,
                options=options,
                check=check,
                torch=torch,
            )
            for number, part in enumerate(parts)
        ]
        return cls(datasets, *(array_beside(path, name) for name in BLENDED_ARRAYS))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset_index)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Return a sample as GPTDataset does, with the number of its dataset as `dataset_id`.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the datasets.
        """
        dataset_id, sample = self._locate(index)
        return {"dataset_id": dataset_id, **self.datasets[dataset_id].make_sample(self.tokens(index), sample)}

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Return many samples, each as `ds[i]`, with one call for all tokens; torch's DataLoader calls this."""
        numbers = sample_numbers([index.__index__() for index in indices])
        texts = self.batch(numbers)
        return [
            {"dataset_id": dataset_id, **self.datasets[dataset_id].make_sample(text, sample)}
            for dataset_id, sample, text in zip(
                self.dataset_index[numbers], self.dataset_sample_index[numbers], texts, strict=True
            )
        ]

    def tokens(self, index: SupportsIndex) -> NDArray[np.int64]:
        """Return the tokens of a sample, as `GPTDataset.tokens` does."""
        dataset_id, sample = self._locate(index)
        return self.datasets[dataset_id].tokens(sample)

    def parts(self, index: SupportsIndex) -> list[SamplePart]:
        """Return the datasets and sequences that a sample's tokens come from, as `GPTDataset.parts` does."""
        dataset_id, sample = self._locate(index)
        return self.datasets[dataset_id].parts(sample)

    def trace(self, index: SupportsIndex) -> SampleTrace:
        """Return the documents and lines that a sample's tokens come from, as `GPTDataset.trace` does."""
        return trace_samples([self.locate(index)])[0]

    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number, dataset and parts, for `trace_samples`, which traces many at once."""
        dataset_id, sample = self._locate(index)
        number = index.__index__()
        own = self.datasets[dataset_id].locate(sample)
        return replace(own, sample=number + len(self) if number < 0 else number, dataset=int(dataset_id))

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many samples at once, each as `tokens` does, shape [n, sequence_length (+ 1)]."""
        numbers = sample_numbers(indices)
        for end in (numbers.min(), numbers.max()) if numbers.size else ():
            self._check_number(end)
        dataset_ids, samples = self.dataset_index[numbers], self.dataset_sample_index[numbers]
        first = self.datasets[0]
        out = np.empty((len(numbers), first.sequence_length + int(first.add_extra_token)), np.int64)
        for dataset_id in np.unique(dataset_ids):
            places = np.flatnonzero(dataset_ids == dataset_id)
            for end in (samples[places].min(), samples[places].max()):
                self._check_location(dataset_id, end)
            out[places] = self.datasets[dataset_id].batch(samples[places])
        return out

    def decode(self, index: SupportsIndex, *, tokenizer: TokenizerLike | None = None) -> str:
        """Return the text of a sample, as `GPTDataset.decode` does, by default with its own dataset's tokenizer."""
        dataset_id, sample = self._locate(index)
        return self.datasets[dataset_id].decode(sample, tokenizer=tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        sources = [
            os.path.abspath(source) if isinstance(source, str | os.PathLike) else source for source in self._sources
        ]
        return {"sources": (self.datasets, *sources)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["sources"])  # type: ignore[misc]  # sets up again what pickle has made

    def __repr__(self) -> str:
        prefixes = ", ".join(repr(dataset.dataset.prefix) for dataset in self.datasets)
        return (
            f"BlendedDataset({prefixes}: {len(self):,} samples, sequence_length={self.datasets[0].sequence_length:,})"
        )

    def _locate(self, index: SupportsIndex) -> tuple[np.integer[Any], int]:
        """Return the dataset number, in the index's dtype as in Megatron, and the sample number."""
        number = index.__index__()
        self._check_number(number)
        dataset_id, sample = self.dataset_index[number], int(self.dataset_sample_index[number])
        self._check_location(dataset_id, sample)
        return dataset_id, sample

    def _check_number(self, number: int) -> None:
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected a sample below {len(self)}, got {number}")

    @property
    def description_path(self) -> str:
        """Path of the cache's description; empty if it was not opened from paths."""
        source = self._sources[0]
        ending = "dataset_index.npy"
        if isinstance(source, np.ndarray) or not os.fspath(source).endswith(ending):
            return ""
        return f"{os.fspath(source).removesuffix(ending)}description.txt"

    def _check_location(self, dataset_id: np.integer[Any], sample: int) -> None:
        if not 0 <= dataset_id < len(self.datasets) or not 0 <= sample < len(self.datasets[dataset_id]):
            raise FormatError(
                f"expected only samples that the blend's {len(self.datasets)} datasets have, got sample {sample} of "
                f"dataset {dataset_id}; the blend was built from other datasets"
            )
