"""Training samples of several datasets in turn, as Megatron-core's BlendedDataset returns them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex

from dsindex.datasets.gpt import DEFAULT_OPTIONS, GPTDataset, MegatronSamples, absolute_source
from dsindex.errors import FormatError
from dsindex.megatron.cache import (
    BLENDED_ARRAYS,
    BLENDED_CLASS,
    files_of,
    find_description,
    open_array,
    read_description,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.samples import LocatedSample
    from dsindex.megatron.cache import IndexSource


class BlendedDataset(MegatronSamples):
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
            raise ValueError(f"a blend needs datasets of one sequence length, not {sorted(widths)}")
        self._datasets = list(datasets)
        self.num_sample_tokens = datasets[0].num_sample_tokens
        self.place = f"a blend of {len(datasets)} datasets"
        self._reopen = partial(
            BlendedDataset, self._datasets, *map(absolute_source, (dataset_index, dataset_sample_index))
        )
        self.dataset_index = open_array(dataset_index, "dataset_index")
        length = len(self.dataset_index)
        self.dataset_sample_index = open_array(dataset_sample_index, "dataset_sample_index", length=length)

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
        blend = cls(datasets, *map(files_of(path).array, BLENDED_ARRAYS))
        blend.place = path
        return blend

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset_index)

    def _read(self, number: int) -> dict[str, Any]:
        """Return a sample as GPTDataset does, with the number of its dataset as `dataset_id`."""
        dataset, sample = self._find(number)
        return {"dataset_id": self.dataset_index[number], **dataset[sample]}  # of the index's type, as in Megatron

    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number, dataset and parts, for `trace_samples`, which traces many at once."""
        number = self._number(index)
        dataset, sample = self._find(number)
        return replace(dataset.locate(sample), sample=number, dataset=int(self.dataset_index[number]))

    def _find(self, number: int) -> tuple[GPTDataset, int]:
        """Return the dataset of a sample, and the sample's number in it.

        Raises:
            FormatError: If there is no such sample.
        """
        place, sample = int(self.dataset_index[number]), int(self.dataset_sample_index[number])
        if not 0 <= place < len(self.datasets) or not 0 <= sample < len(self.datasets[place]):
            raise FormatError(
                f"{self.place}: there is no sample {sample} of dataset {place}; the blend was built from other datasets"
            )
        return self.datasets[place], sample
