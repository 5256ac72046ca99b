"""A training sample: the sequences, documents and lines that its tokens come from, and the step that reads it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dsindex.datasets.base import Item, MapDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.datasets.origins import DocumentOrigin, SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """A run of a sample's tokens, and the sequence that it comes from."""

    prefix: str
    """Prefix of the dataset."""
    sequence: int
    """Number of the sequence in the dataset."""
    offset: int
    """Position of the first token in the sequence."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedSample:
    """A sample and the sequences that it consists of."""

    sample: int
    """Number of the sample, in the order of training."""
    dataset: int
    """Number of the dataset in the blend."""
    data: IndexedDataset
    parts: Sequence[SamplePart]


class SampleDataset(MapDataset[Item]):
    """Samples that consist of sequences, and can be traced to them."""

    @property
    def datasets(self) -> Sequence[Any]:
        """The datasets of a blend; otherwise itself alone."""
        return [self]

    @abstractmethod
    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number, dataset and parts, for `trace_samples`, which traces many at once."""

    def parts(self, index: SupportsIndex) -> list[SamplePart]:
        """Return the sequences that a sample's tokens come from, in order; parts without tokens are left out.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        return list(self.locate(index).parts)

    def trace(self, index: SupportsIndex) -> SampleTrace:
        """Return the documents and the lines of the inputs that a sample's tokens come from.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data, or manifest or provenance are damaged.
        """
        return trace_samples([self.locate(index)])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPart:
    """A run of a sample's tokens within one sequence of a document."""

    prefix: str
    """Prefix of the dataset."""
    dataset: int
    """Number of the dataset in the blend, from 0; 0 if there is no blend."""
    document: int
    """Number of the document in the dataset."""
    offset: int
    """Position of the first token in the document."""
    sequence: int
    """Number of the sequence in the dataset."""
    sequence_offset: int
    """Position of the first token in the sequence."""
    num_tokens: int
    origin: DocumentOrigin

    @property
    def source(self) -> SourceLine | None:
        """The record that the document was made from; None if it is unknown."""
        return self.origin.source


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTrace:
    """Where the tokens of a training sample come from."""

    sample: int
    """Number of the sample, in the order of training."""
    parts: tuple[TracedPart, ...]
    """In the order of the tokens."""
    notes: tuple[str, ...] = ()
    """Sentences about sources that are unknown."""


def trace_samples(located: Iterable[LocatedSample]) -> list[SampleTrace]:
    """Trace samples; the manifest and provenance of each dataset are opened once.

    Raises:
        FormatError: If a manifest or provenance is damaged or belongs to another dataset.
    """
    from dsindex.datasets.origins import find_document_origins  # not needed to read samples

    samples = list(located)
    documents: dict[IndexedDataset, set[int]] = {}
    for each in samples:
        documents.setdefault(each.data, set()).update(each.data.document_of(part.sequence) for part in each.parts)
    found = {data: find_document_origins(data.prefix, data.num_documents, own) for data, own in documents.items()}
    return [
        SampleTrace(
            sample=each.sample,
            parts=tuple(_trace_part(each, part, found[each.data][0]) for part in each.parts),
            notes=found[each.data][1],
        )
        for each in samples
    ]


def _trace_part(located: LocatedSample, part: SamplePart, origins: Mapping[int, DocumentOrigin]) -> TracedPart:
    data, document = located.data, located.data.document_of(part.sequence)
    before = data.sequence_lengths[data.document_sequences(document).start : part.sequence]
    return TracedPart(
        prefix=data.prefix,
        dataset=located.dataset,
        document=document,
        offset=int(before.sum(dtype=np.int64)) + part.offset,
        sequence=part.sequence,
        sequence_offset=part.offset,
        num_tokens=part.num_tokens,
        origin=origins[document],
    )


# The samples of a training step, as Megatron's sampler for pretraining deals them out.
#
# Step s, counted from 1 as in Megatron's log, has the samples [(s - 1) * global_batch_size, s * global_batch_size).
# They are dealt out in rounds of micro_batch_size * data_parallel_size samples, of which each rank takes a run of
# micro_batch_size. This holds for a fixed global batch size and `--dataloader-type single`.
#
# Source: megatron.training.datasets.data_samplers, MegatronPretrainingSampler.


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How samples are dealt out to steps and ranks.

    Raises:
        ValueError: If the sizes are not positive, or do not divide the global batch.
    """

    global_batch_size: int
    micro_batch_size: int | None = None
    data_parallel_size: int | None = None

    def __post_init__(self) -> None:
        given = (self.global_batch_size, self.micro_batch_size, self.data_parallel_size)
        if any(size is not None and size < 1 for size in given):
            raise ValueError("expected batch sizes and a data-parallel size of at least 1")
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            raise ValueError("expected a micro-batch size and a data-parallel size, or neither: ranks depend on both")
        if self.global_batch_size % self._round:
            raise ValueError(
                f"expected a global batch that {self.micro_batch_size} samples on {self.data_parallel_size} ranks "
                f"divide, got {self.global_batch_size}"
            )

    @property
    def _round(self) -> int:
        """Samples that all ranks take at once."""
        return (self.micro_batch_size or 1) * (self.data_parallel_size or 1)

    def samples(self, step: int, num_samples: int, *, rank: int | None = None) -> list[int]:
        """Return the samples of a step, or those of one rank, in its order.

        Args:
            step: Counted from 1.
            num_samples: Samples of the data.
            rank: Data-parallel rank; None for all.

        Raises:
            ValueError: If there is no such step or rank.
        """
        last = num_samples // self.global_batch_size
        if not 1 <= step <= last:
            raise ValueError(
                f"expected a step from 1 to {last}, got {step}: the data has {num_samples} samples, in whole batches "
                f"of {self.global_batch_size}"
            )
        if rank is not None and not 0 <= rank < (self.data_parallel_size or 0):
            raise ValueError(f"expected a rank below the data-parallel size {self.data_parallel_size}, got {rank}")
        numbers = range((step - 1) * self.global_batch_size, step * self.global_batch_size)
        return [number for number in numbers if rank in {None, self.rank_of(number)}]

    def step_of(self, sample: int) -> int:
        """Return the step that reads a sample, counted from 1."""
        return sample // self.global_batch_size + 1

    def rank_of(self, sample: int) -> int | None:
        """Return the data-parallel rank that reads a sample; None if the sizes of ranks are not known."""
        if self.micro_batch_size is None:
            return None
        return sample % self._round // self.micro_batch_size
