"""The sources of documents: how many documents and tokens each has, and some documents of each, drawn evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dsindex.errors import FormatError
from dsindex.shards.provenance import ROWS_PER_GROUP, count_rows, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DRAWN = 16
"""Documents drawn of each source."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Sources(Protocol):
    """The source of each document."""

    num_sources: int

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sources of documents [begin, end).

        Raises:
            FormatError: If that cannot be read.
        """
        ...


class OneSource:
    """All documents are of one source."""

    num_sources = 1

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return zeros."""
        return np.zeros(end - begin, np.int64)


class ConsecutiveSources:
    """Sources whose documents follow each other, as in a merged dataset.

    Args:
        num_documents: Documents of each source.
    """

    def __init__(self, num_documents: Sequence[int]) -> None:
        self.num_sources = len(num_documents)
        self._ends = np.cumsum(np.array(num_documents, np.int64))

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sources of documents [begin, end)."""
        return np.searchsorted(self._ends, np.arange(begin, end), side="right")


class RecordedSources:
    """The inputs that a provenance file records; blocks must be asked for in order to be read once.

    Args:
        path: The provenance file.
        num_documents: Documents of the dataset.
        num_inputs: Inputs in its manifest.

    Raises:
        FormatError: If the file is not the dataset's provenance.
    """

    def __init__(self, path: str, *, num_documents: int, num_inputs: int) -> None:
        rows = count_rows(path)
        if rows != num_documents:
            msg = f"{path}: expected {num_documents:,} rows, got {rows:,}; it belongs to another dataset"
            raise FormatError(msg)
        self.num_sources = num_inputs
        self._path = path
        self._rows = rows
        self._group = -1
        self._inputs = np.empty(0, np.int64)

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the inputs of documents [begin, end).

        Raises:
            FormatError: If the file is damaged.
        """
        found = []
        while begin < end:
            group = begin // ROWS_PER_GROUP
            if group != self._group:
                first = group * ROWS_PER_GROUP
                inputs, _, _ = read_rows(self._path, first, min(first + ROWS_PER_GROUP, self._rows))
                self._check(inputs)
                self._group, self._inputs = group, inputs.astype(np.int64)
            stop = min(end, (group + 1) * ROWS_PER_GROUP)
            first = group * ROWS_PER_GROUP
            found.append(self._inputs[begin - first : stop - first])
            begin = stop
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _check(self, inputs: NDArray[np.int32]) -> None:
        if len(inputs) and not 0 <= inputs.min() <= inputs.max() < self.num_sources:
            msg = f"{self._path}: expected inputs from 0 to {self.num_sources - 1}, got others; the file is damaged"
            raise FormatError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTotals:
    """What a dataset has of one source."""

    documents: int
    tokens: int
    drawn: tuple[int, ...]
    """Numbers of up to DRAWN documents, which depend on nothing but the numbers of its documents."""


class SourceCounter:
    """Counts documents and tokens by source."""

    def __init__(self, num_sources: int) -> None:
        self._documents = np.zeros(num_sources, np.int64)
        self._tokens = np.zeros(num_sources, np.int64)
        self._worst = np.full(num_sources, np.iinfo(np.uint64).max, np.uint64)
        """The largest priority of the documents drawn of a source that has enough of them."""
        self._drawn: dict[int, list[tuple[int, int]]] = {}
        """Source -> priority and number of documents."""

    def add(self, sources: NDArray[np.int64], lengths: NDArray[np.int64], first: int) -> None:
        """Count a block of documents, the first of which has the number `first`."""
        np.add.at(self._documents, sources, 1)
        np.add.at(self._tokens, sources, lengths)
        priorities = _mix(np.arange(first, first + len(lengths)).astype(np.uint64))
        offered = np.flatnonzero((priorities < self._worst[sources]) & (lengths > 0))
        # Only the first few of each source in the block can stay.
        order = offered[np.lexsort((priorities[offered], sources[offered]))]
        own = sources[order]
        begins = np.searchsorted(own, own)
        kept = order[np.arange(len(order)) - begins < DRAWN]
        for place in kept.tolist():
            self._draw(int(sources[place]), int(priorities[place]), first + place)

    def _draw(self, source: int, priority: int, document: int) -> None:
        drawn = self._drawn.setdefault(source, [])
        drawn.append((priority, document))
        if len(drawn) >= DRAWN:
            drawn.sort()
            del drawn[DRAWN:]
            self._worst[source] = drawn[-1][0]

    def totals(self) -> tuple[SourceTotals, ...]:
        """Return what there is of each source."""
        return tuple(
            SourceTotals(
                documents=documents,
                tokens=tokens,
                drawn=tuple(sorted(document for _, document in self._drawn.get(number, ()))),
            )
            for number, (documents, tokens) in enumerate(
                zip(self._documents.tolist(), self._tokens.tolist(), strict=True)
            )
        )


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers in an order that looks random: SplitMix64."""
    mixed = (numbers + np.uint64(1)) * _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
