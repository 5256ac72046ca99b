"""A training sample, traced to the documents and lines that its tokens come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsindex.tracing.merged import find_document_origins
from dsindex.tracing.origins import map_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.tracing.merged import DocumentOrigin, PartDocument
    from dsindex.tracing.origins import SourceLine


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
