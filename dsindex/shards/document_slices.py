"""Runs of documents in shards and sorted runs, on a disk or in an object store, as a shuffle reads them.

A gather task reads a slice of every run. In an object store each costs a few requests, so those of all runs are in
flight together; a run's keys are not searched, but read around where a range of keys is expected to be.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import BOUNDARY, LENGTH, POINTER, read_index
from dsindex.objects.blocks import Blocks
from dsindex.objects.recent import holding
from dsindex.objects.urls import is_url
from dsindex.range_copy import Extent, read_extents
from dsindex.shards.document_order import KEY, KEY_RANGE, find_keys
from dsindex.shards.provenance import ShardProvenance, place_rows, read_placed_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.merging.parts import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSource:
    """The files of a shard or of a run, with the same documents for each key."""

    parts: tuple[Part, ...]
    """The part of each key."""
    provenance: ShardProvenance | None
    keys_path: str | None = None
    """File with the key of each document, for a run."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self.parts[0].header.num_documents

    @property
    def bin_bytes(self) -> int:
        """Size of the tokens of all keys."""
        return sum(part.bin_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSlice:
    """Documents [begin, end) of a source, and their keys."""

    source: DocumentSource
    begin: int
    end: int
    keys: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSlice:
    """What the index of a part says about a run of its documents."""

    boundaries: NDArray[np.int64]
    """First sequence of each document, and the end of the last; shape [documents + 1]."""
    lengths: NDArray[np.int32]
    """Tokens of each sequence."""
    offset: int
    """Byte of the `.bin` at which the first one begins."""


def read_indices(wanted: Sequence[tuple[Part, int, int]]) -> list[IndexSlice]:
    """Read what the indices of parts say about documents [begin, end).

    Raises:
        InputError: If an index is missing, or not what the ledger says.
    """
    if not wanted or not is_url(wanted[0][0].idx_path):
        return [_read_index(part, begin, end) for part, begin, end in wanted]
    boundaries = _read_items([(p.idx_path, p.header.boundaries_offset, b, e + 1) for p, b, e in wanted], BOUNDARY)
    bounds = [(part, int(own[0]), int(own[-1])) for (part, _, _), own in zip(wanted, boundaries, strict=True)]
    for part, begin, end in bounds:
        if not 0 <= begin <= end <= part.header.num_sequences:
            raise _lost(part.idx_path, "its documents are not those of the ledger")
    lengths = _read_items([(p.idx_path, p.header.lengths_offset, b, e) for p, b, e in bounds], LENGTH)
    filled = [(p.idx_path, p.header.pointers_offset, b, b + 1 if b < e else b) for p, b, e in bounds]
    pointers = _read_items(filled, POINTER)
    return [
        IndexSlice(boundaries=own, lengths=each, offset=int(first[0]) if len(first) else 0)
        for own, each, first in zip(boundaries, lengths, pointers, strict=True)
    ]


def _read_index(part: Part, begin: int, end: int) -> IndexSlice:
    try:
        index = read_index(part.idx_path)
    except FormatError as error:
        raise _lost(part.idx_path, str(error)) from error
    boundaries = np.array(index.document_indices[begin : end + 1])
    lengths = np.array(index.sequence_lengths[boundaries[0] : boundaries[-1]])
    if len(boundaries) != end - begin + 1 or len(lengths) != boundaries[-1] - boundaries[0]:
        raise _lost(part.idx_path, "its documents are not those of the ledger")
    offset = int(index.sequence_pointers[boundaries[0]]) if len(lengths) else 0
    return IndexSlice(boundaries=boundaries, lengths=lengths, offset=offset)


def slice_runs(runs: Sequence[DocumentSource], low: int, high: int) -> list[DocumentSlice]:
    """Return the documents of sorted runs whose keys are in [low, high).

    Raises:
        InputError: If a file with keys is missing, or not what the ledger says.
    """
    if not runs or not is_url(runs[0].keys_path):
        return [_slice_of(run, 0, _map_keys(run), low, high) for run in runs]
    windows = [expect_window(run.num_documents, low, high) for run in runs]
    found = _read_keys(runs, windows)
    missed = [
        number
        for number, (run, window, keys) in enumerate(zip(runs, windows, found, strict=True))
        if not reaches_beyond(keys, window, run.num_documents, low, high)
    ]
    again = [runs[number] for number in missed]
    for number, keys in zip(missed, _read_keys(again, [(0, run.num_documents) for run in again]), strict=True):
        windows[number], found[number] = (0, len(keys)), keys
    return [_slice_of(run, window[0], keys, low, high) for run, window, keys in zip(runs, windows, found, strict=True)]


def expect_window(num_documents: int, low: int, high: int) -> tuple[int, int]:
    """Return where keys in [low, high) are among so many, with eight standard deviations to each side.

    Keys are hashes, so a share of low / KEY_RANGE of them is below `low`, give or take sqrt(documents) / 2.
    """
    margin = 4 * math.isqrt(num_documents) + 4
    begin, end = (num_documents * bound // KEY_RANGE for bound in (low, high))
    return max(0, begin - margin), min(num_documents, end + margin)


def reaches_beyond(keys: NDArray[np.uint64], window: tuple[int, int], num_documents: int, low: int, high: int) -> bool:
    """Tell whether a window of a run's keys has a key before those in [low, high) and one after them."""
    begins = window[0] == 0 or (len(keys) > 0 and int(keys[0]) < low)
    ends = window[1] == num_documents or (len(keys) > 0 and int(keys[-1]) >= high)
    return begins and ends


def _slice_of(run: DocumentSource, first: int, keys: NDArray[np.uint64], low: int, high: int) -> DocumentSlice:
    begin, end = find_keys(keys, low, high)
    return DocumentSlice(source=run, begin=first + begin, end=first + end, keys=np.array(keys[begin:end]))


def _read_keys(runs: Sequence[DocumentSource], windows: Sequence[tuple[int, int]]) -> list[NDArray[np.uint64]]:
    places = [(run.keys_path or "", 0, *window) for run, window in zip(runs, windows, strict=True)]
    return _read_items(places, KEY)


def _map_keys(run: DocumentSource) -> NDArray[np.uint64]:
    """Map a run's keys."""
    path = run.keys_path or ""
    try:
        size_bytes = os.path.getsize(path)
        keys = np.memmap(path, KEY, mode="r") if size_bytes else np.empty(0, KEY)
    except (OSError, ValueError) as error:
        raise _lost(path, str(error)) from error
    if len(keys) != run.num_documents:
        raise _lost(path, f"expected {run.num_documents} keys, got {len(keys)}")
    return keys


def read_provenance(slices: Sequence[DocumentSlice]) -> NDArray[Any]:
    """Return the provenance of the documents of slices, as PLACED_PROVENANCE.

    Raises:
        InputError: If a file cannot be read.
        FormatError: If one has fewer rows.
    """
    known = [(each.source.provenance, each) for each in slices if each.source.provenance is not None]
    if not is_url(known[0][0].path):
        return np.concatenate([read_placed_rows(rows, each.begin, each.end) for rows, each in known])
    found = _read_items([(rows.path, 0, each.begin, each.end) for rows, each in known], known[0][0].dtype)
    return np.concatenate([place_rows(rows, own) for (rows, _), own in zip(known, found, strict=True)])


@contextlib.contextmanager
def indices_held(sources: Sequence[DocumentSource]) -> Iterator[None]:
    """Hold the indices and rows of sources in an object store for the time of the block.

    Each is then one request, however often it is read. The tokens are not held, since they are read once.

    Raises:
        InputError: If an object cannot be read, or is shorter than recorded.
    """
    if not is_url(sources[0].parts[0].bin_path):
        yield
        return
    sizes = {part.idx_path: part.header.size_bytes for source in sources for part in source.parts}
    for source in sources:
        if source.provenance is not None:
            sizes[source.provenance.path] = source.num_documents * source.provenance.dtype.itemsize
    contents = {path: bytearray(size_bytes) for path, size_bytes in sizes.items()}
    read_extents(
        (Extent(path=path, begin=0, end=len(content)), memoryview(content)) for path, content in contents.items()
    )
    with holding({path: Blocks.of(content) for path, content in contents.items()}):
        yield


def _read_items(places: Sequence[tuple[str, int, int, int]], dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """Read items [begin, end) of arrays, each of which begins at an offset of an object."""
    arrays = [np.empty(end - begin, dtype) for _, _, begin, end in places]
    size = dtype.itemsize
    read_extents(
        (Extent(path=path, begin=offset + begin * size, end=offset + end * size), array.view(np.uint8).data)
        for (path, offset, begin, end), array in zip(places, arrays, strict=True)
    )
    return arrays


def _lost(path: str, reason: str) -> InputError:
    return InputError(f"{path}: cannot be read ({reason}); run the same command again to rebuild it")
