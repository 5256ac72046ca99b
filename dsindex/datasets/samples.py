"""A training sample, traced to the documents and lines that its tokens come from."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsindex.datasets.origins import find_document_origins, map_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.origins import DocumentOrigin, PartDocument, SourceLine


class Part(Protocol):
    """A run of a sample's tokens, such as a SamplePart."""

    @property
    def sequence(self) -> int:
        """Number of the sequence in the dataset."""

    @property
    def offset(self) -> int:
        """Position of the first token in the sequence."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""


class Documents(Protocol):
    """What tracing asks of a dataset; an IndexedDataset has it."""

    prefix: str

    @property
    def num_documents(self) -> int:
        """Number of documents."""

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """Tokens of each sequence."""

    def document_of(self, index: Any, /) -> int:  # noqa: ANN401 - anything that is an index
        """Return the document of a sequence."""

    def document_sequences(self, document: Any, /) -> range:  # noqa: ANN401 - as above
        """Return the sequences of a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedSample:
    """A sample and the sequences that it consists of."""

    sample: int
    """Number of the sample, in the order of training."""
    dataset: int
    """Number of the dataset in the blend."""
    data: Documents
    parts: Sequence[Part]


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


def _trace_part(located: LocatedSample, part: Part, document: int, origin: DocumentOrigin) -> TracedPart:
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


# Find values in the large arrays of an index cache, block by block on all CPUs.

BLOCK = 1 << 20
"""Items that are compared at once, so that what is compared stays in the CPU's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Tokens of a document in a training sample."""

    sample: int
    """Number of the sample, in the order of training."""
    epoch: int
    """1 for the first copy of the sequence in the document index, 2 for the second, and so on."""
    sequence: int
    """Number of the sequence in the dataset."""
    offset: int
    """Position of the first token in the sequence."""
    num_tokens: int
    dataset: int = 0
    """Number of the dataset in the blend."""


def find_range(array: NDArray[Any], begin: int, end: int) -> NDArray[np.int64]:
    """Return the positions of the values in [begin, end), in order."""
    return _in_blocks(len(array), lambda a, b: np.flatnonzero((array[a:b] >= begin) & (array[a:b] < end)))


def find_values(array: NDArray[Any], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the positions of any of the values, in order.

    Args:
        array: What is searched, shape [n].
        values: The wanted ones, each in [0, size).
        size: What every item should be below; larger ones are passed over.
    """
    wanted = _table(values, size)
    return _in_blocks(len(array), lambda a, b: np.flatnonzero(_look_up(wanted, array[a:b])))


def find_pairs(
    firsts: NDArray[Any], seconds: NDArray[Any], first: int, values: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Return the positions where `firsts` is `first` and `seconds` is any of the values, in order."""
    wanted = _table(values, size)

    def search(begin: int, end: int) -> NDArray[np.int64]:
        own = np.flatnonzero(firsts[begin:end] == first)
        return own[_look_up(wanted, seconds[begin:end][own])]

    return _in_blocks(len(firsts), search)


def rows_with_position(
    sample_index: NDArray[Any], position: int, num_tokens: int, extra: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples that have tokens of the sequence at a position of the document index.

    Args:
        sample_index: Rows [position in the document index, token offset], shape [samples + 1, 2].
        position: Of the sequence in the document index.
        num_tokens: Of the sequence.
        extra: Tokens that a sample shares with the next: 1 or 0.

    Returns:
        Rows of the sample index, and where each one's tokens begin and end in the sequence.
    """
    column = sample_index[:, 0]  # bisect, since numpy's search would copy the column
    low = max(bisect_left(column, position) - 1, 0)
    high = min(bisect_right(column, position), len(sample_index) - 1)
    rows = np.arange(low, max(low, high), dtype=np.int64)
    edges = np.asarray(sample_index[low : max(low, high) + 1], np.int64)
    (first, first_offset), (last, last_offset) = edges[:-1].T, edges[1:].T
    begins = np.where(first == position, first_offset, 0)
    ends = np.minimum(np.where(last == position, last_offset + extra, num_tokens), num_tokens)
    own = (first <= position) & (position <= last) & (begins < ends)
    return rows[own], begins[own], ends[own]


def _table(values: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    table = np.zeros(size + 1, np.bool_)  # the last item stands for all that is out of range
    table[values] = True
    return table


def _look_up(table: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = table.take(values, mode="clip")
    return found & (values >= 0)


def _in_blocks(size: int, search: Callable[[int, int], NDArray[Any]]) -> NDArray[np.int64]:
    begins = range(0, size, BLOCK)
    if len(begins) < 2:
        return np.asarray(search(0, size), np.int64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda begin: search(begin, begin + BLOCK) + begin, begins)
        return np.concatenate([np.empty(0, np.int64), *found])


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
