"""Training samples, and the sequences, documents and input lines that their tokens come from."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from dsindex.datasets.base import Item, MapDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.datasets.lineage import DocumentOrigin, SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """A run of a sample's tokens, and the sequence that it comes from."""

    prefix: str
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
        """The datasets of a blend; without a blend, only this dataset."""
        return [self]

    @abstractmethod
    def locate(self, index: SupportsIndex) -> LocatedSample:
        """Return a sample's number, dataset and parts; `trace_samples` traces many of them at once."""

    def parts(self, index: SupportsIndex) -> list[SamplePart]:
        """Return the sequences that a sample's tokens come from, in order; parts without tokens are left out.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        return list(self.locate(index).parts)

    def trace(self, index: SupportsIndex) -> SampleTrace:
        """Return the documents and input lines that a sample's tokens come from.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data, or manifest or provenance are damaged.
        """
        return trace_samples([self.locate(index)])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPart:
    """A run of a sample's tokens within one sequence of a document."""

    prefix: str
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
    tokens: tuple[int, ...] = ()
    """The first tokens, if `dsindex trace` shows them."""
    text: str | None = None
    """The text of `tokens`; None if there is no tokenizer."""

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
    """The parts, in the order of their tokens."""
    notes: tuple[str, ...] = ()
    """Sentences about sources that are unknown."""
    step: int | None = None
    """The training step that reads the sample, from 1; None if the batch size is unknown."""


def trace_samples(located_samples: Iterable[LocatedSample], *, contact: Sequence[str] = ()) -> list[SampleTrace]:
    """Trace samples; the manifest and provenance of each dataset are opened once.

    Raises:
        FormatError: If a manifest or provenance is damaged or belongs to another dataset.
    """
    from dsindex.datasets.lineage import find_document_origins  # not needed to read samples

    samples = list(located_samples)
    documents: dict[IndexedDataset, set[int]] = {}
    for sample in samples:
        documents.setdefault(sample.data, set()).update(sample.data.document_of(part.sequence) for part in sample.parts)
    origins_by_dataset = {
        data: find_document_origins(data.prefix, data.num_documents, numbers, contact=contact)
        for data, numbers in documents.items()
    }
    traces = []
    for sample in samples:
        data, (origins, notes), parts = sample.data, origins_by_dataset[sample.data], list[TracedPart]()
        for part in sample.parts:
            document = data.document_of(part.sequence)
            earlier_lengths = data.sequence_lengths[data.document_sequences(document).start : part.sequence]
            traced_part = TracedPart(
                prefix=data.prefix,
                dataset=sample.dataset,
                document=document,
                offset=int(earlier_lengths.sum(dtype=np.int64)) + part.offset,
                sequence=part.sequence,
                sequence_offset=part.offset,
                num_tokens=part.num_tokens,
                origin=origins[document],
            )
            parts.append(traced_part)
        traces.append(SampleTrace(sample=sample.sample, parts=tuple(parts), notes=notes))
    return traces
