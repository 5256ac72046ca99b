"""What every export is made of: the tokens and loss masks of a split; and the counts of what was written."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.indexed import IndexedDataset
from dsindex.errors import FormatError
from dsindex.store.storage import (
    StoredFile,
    open_file,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


FACTS_PREFIX = "dsindex."
"""Beginning of the names in the footer of a Parquet file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSource:
    """Prefixes of a split's datasets."""

    tokens: str
    mask: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSequences:
    """A split to export."""

    name: str
    """Its name in the export: `train`, `validation` or `test`."""
    source: SequenceSource
    num_sequences: int


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was written."""

    rows: int = 0
    sequences: int = 0
    tokens: int = 0
    trainable: int = 0
    """Tokens that the loss mask says are trainable."""
    targets: int = 0
    """Trainable tokens that a trainer predicts: all but those at the start of a sequence."""

    def add(self, mask: NDArray[np.uint8], offsets: NDArray[np.int64], *, num_rows: int) -> None:
        """Count sequences: their masks one after the other, and their starts, shape [sequences + 1]."""
        trainable = int(np.count_nonzero(mask))
        starts = offsets[:-1][np.diff(offsets) > 0]
        self.rows += num_rows
        self.sequences += len(offsets) - 1
        self.tokens += len(mask)
        self.trainable += trainable
        self.targets += trainable - int(np.count_nonzero(mask[starts]))

    def __iadd__(self, other: Counts) -> Counts:
        """Add the counts of another file."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def facts(self) -> dict[str, str]:
        """Return the counts as names and values for the footer of a Parquet file."""
        return {f"{FACTS_PREFIX}{name}": str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file of an export, with its counts."""

    file: StoredFile
    """Its name is relative to the export's folder."""
    counts: Counts


class Sequences:
    """The sequences of a split with their masks.

    Raises:
        FormatError: If a file is missing or damaged, or masks and tokens do not fit each other.
    """

    def __init__(self, source: SequenceSource) -> None:
        self._tokens = IndexedDataset(source.tokens, check=False)
        self._mask = IndexedDataset(source.mask, check=False)
        if self._mask.dtype != np.uint8 or len(self._mask) != len(self._tokens):
            msg = f"{source.mask}.idx: expected a mask for each sequence of {source.tokens}, got another dataset"
            raise FormatError(msg)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sequence, shape [sequences]."""
        return self._tokens.sequence_lengths

    def take(self, ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
        """Return some sequences, one after the other.

        Args:
            ids: Numbers of the sequences, in any order; shape [n].

        Returns:
            (tokens, mask, offsets): tokens and mask of shape [offsets[n]], and starts of the sequences, shape [n + 1].

        Raises:
            FormatError: If masks and tokens do not fit each other.
        """
        tokens, offsets = self._tokens.take(ids)
        mask, own = self._mask.take(ids)
        if not np.array_equal(offsets, own):
            msg = f"{self._mask.prefix}.idx: expected the lengths of {self._tokens.prefix}.idx, got other lengths"
            raise FormatError(msg)
        return tokens.astype(np.int32), mask, offsets


@lru_cache(maxsize=2)
def open_sequences(source: SequenceSource) -> Sequences:
    """Return the sequences of a split, which stay mapped while this process writes its files."""
    return Sequences(source)


def split_file_name(split: str, number: int, total: int, suffix: str) -> str:
    """Return the name of a split's file, by which `datasets` finds the splits of a folder.

    >>> split_file_name("train", 0, 2, "parquet")
    'train-00000-of-00002.parquet'
    """
    return f"{split}-{number:05d}-of-{total:05d}.{suffix}"


def file_rows(num_rows: int, rows_per_file: int) -> list[tuple[int, int]]:
    """Return the rows of each file; without rows there is one empty file.

    >>> file_rows(5, 2), file_rows(0, 2)
    ([(0, 2), (2, 4), (4, 5)], [(0, 0)])
    """
    begins = range(0, num_rows, rows_per_file)
    return [(begin, min(begin + rows_per_file, num_rows)) for begin in begins] or [(0, 0)]


def list_array(values: NDArray[Any], offsets: NDArray[np.int64]) -> pa.ListArray:
    """Return an Arrow array of lists, whose values are fewer than 2**31 together."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


# Tell whether a path belongs to an export, and what the footer of one of its Parquet files says.

EXPORT_MANIFEST = "export.manifest.json"
"""Name of the manifest in the folder of an export."""
_DATA_SUFFIXES = (".parquet", f"/{EXPORT_MANIFEST}")


def export_folder_of(path: str) -> str | None:
    """Return the folder of the export that a path is, or a file of it; None if it is none."""
    if os.path.isdir(path):
        folders = [path]
    elif path.endswith(_DATA_SUFFIXES):
        folders = [os.path.dirname(path)]
    else:
        folders = []
    return next((each for each in folders if os.path.isfile(os.path.join(each, EXPORT_MANIFEST))), None)


def read_facts(path: str) -> dict[str, str]:
    """Return what dsindex wrote into the footer of a Parquet file, without the beginning of the names.

    Returns:
        `export`, the kind, and counts as text; empty for a file of another program.

    Raises:
        FormatError: If it is no Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as file, pq.ParquetFile(file) as parquet:
            stored = parquet.metadata.metadata or {}
    except (OSError, pa.ArrowException, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as a Parquet file ({error})") from error
    named = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in stored.items()}
    return {name.removeprefix(FACTS_PREFIX): value for name, value in named.items() if name.startswith(FACTS_PREFIX)}
