"""A training sample: the sequences, documents and lines that its tokens come from, and the step that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.datasets.origins import DocumentOrigin, PartDocument, SourceLine


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


def find_parts(
    dataset: IndexedDataset,
    document_index: NDArray[Any],
    sample_index: NDArray[Any],
    row: int,
    *,
    num_tokens: int,
    extra: int,
    keeps_empty: bool = False,
) -> list[SamplePart] | None:
    """Return the parts of a sample, in order, as a rule without those that have no tokens.

    Args:
        dataset: The tokens.
        document_index: Sequence numbers in the order of training.
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        row: Row of the sample index where the sample begins.
        num_tokens: Tokens of a whole sample.
        extra: Tokens that a sample shares with the next: 1 or 0.
        keeps_empty: Whether to return parts without tokens as well.

    Returns:
        The parts; None if the indices point outside the data, as `assemble_samples` tells.
    """
    tokens, lengths, pointers, shift = dataset.token_columns()
    if not 0 <= row < len(sample_index) - 1:
        return None
    (first, first_offset), (last, last_offset) = sample_index[row : row + 2].tolist()
    if not 0 <= first <= last < len(document_index):
        return None
    parts = []
    room = num_tokens
    for position in range(first, last + 1):
        sequence = int(document_index[position])
        if not 0 <= sequence < len(lengths):
            return None
        length = int(lengths[sequence])
        low = first_offset if position == first else 0
        high = last_offset + extra if position == last else length
        begin = (int(pointers[sequence]) >> shift) + low
        if not 0 <= low <= high <= length or high - low > room or not 0 <= begin <= len(tokens) - (high - low):
            return None
        if high > low or keeps_empty:
            parts.append(SamplePart(prefix=dataset.prefix, sequence=sequence, offset=low, num_tokens=high - low))
        room -= high - low
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedSample:
    """A sample and the sequences that it consists of."""

    sample: int
    """Number of the sample, in the order of training."""
    dataset: int
    """Number of the dataset in the blend."""
    data: IndexedDataset
    parts: Sequence[SamplePart]


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
    source: SourceLine | None
    """The record that the document was made from; None if it is unknown."""
    part: PartDocument | None = None
    """The document in the dataset that was merged into this one; None if it was not merged."""


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
    from dsindex.datasets.origins import find_document_origins, map_in_threads  # not needed to read samples

    samples = list(located)
    datasets = {each.data.prefix: each.data for each in samples}
    documents: dict[str, list[int]] = {prefix: [] for prefix in datasets}
    for each in samples:
        documents[each.data.prefix] += [each.data.document_of(part.sequence) for part in each.parts]

    def find_origins(prefix: str) -> tuple[Iterator[DocumentOrigin], tuple[str, ...]]:
        found, notes = find_document_origins(prefix, datasets[prefix].num_documents, documents[prefix])
        return iter(found), notes

    found = dict(zip(documents, map_in_threads(find_origins, list(documents)), strict=True))
    origins = {prefix: own for prefix, (own, _) in found.items()}
    notes = {prefix: own for prefix, (_, own) in found.items()}
    numbers = {prefix: iter(own) for prefix, own in documents.items()}
    return [
        SampleTrace(
            sample=each.sample,
            parts=tuple(
                _trace_part(each, part, next(numbers[each.data.prefix]), next(origins[each.data.prefix]))
                for part in each.parts
            ),
            notes=notes[each.data.prefix],
        )
        for each in samples
    ]


def _trace_part(located: LocatedSample, part: SamplePart, document: int, origin: DocumentOrigin) -> TracedPart:
    data = located.data
    before = data.sequence_lengths[data.document_sequences(document).start : part.sequence]
    return TracedPart(
        prefix=data.prefix,
        dataset=located.dataset,
        document=document,
        offset=int(before.sum(dtype=np.int64)) + part.offset,
        sequence=part.sequence,
        sequence_offset=part.offset,
        num_tokens=part.num_tokens,
        source=origin.source,
        part=origin.part,
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
        begin = (step - 1) * self.global_batch_size
        if rank is None:
            return list(range(begin, begin + self.global_batch_size))
        if self.micro_batch_size is None or self.data_parallel_size is None or not 0 <= rank < self.data_parallel_size:
            raise ValueError(f"expected a rank below the data-parallel size {self.data_parallel_size}, got {rank}")
        rounds = range(begin + rank * self.micro_batch_size, begin + self.global_batch_size, self._round)
        return [first + number for first in rounds for number in range(self.micro_batch_size)]

    def step_of(self, sample: int) -> int:
        """Return the step that reads a sample, counted from 1."""
        return sample // self.global_batch_size + 1

    def rank_of(self, sample: int) -> int | None:
        """Return the data-parallel rank that reads a sample; None if the sizes of ranks are not known."""
        if self.micro_batch_size is None:
            return None
        return sample % self._round // self.micro_batch_size
