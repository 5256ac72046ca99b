"""Put the documents of all shards into a random order (dsindex.engine.shards.shuffle), in bounded memory.

The documents are sorted by their keys in two steps, each of which runs as independent tasks:

    sort     consecutive shards of together about `run_bytes` of tokens become a run, which is sorted by key
    gather   the range of all keys is cut evenly into buckets; each bucket takes its part of every run, sorted again

The buckets, one after the other, are the shuffled dataset. A task holds one run or bucket of one key in memory, or one
very long document. A run and a bucket consist of the files of one attempt: a part for each key, `prov` with the
provenance of the documents, and, for a run, `order` with their keys.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.datasets.provenance import ShardProvenance, place_rows, read_placed_rows
from dsindex.dtypes import starts_of
from dsindex.engine.shards.attempt import Attempt, shard_folder
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import BOUNDARY, LENGTH, POINTER, read_index
from dsindex.store.clients import Blocks
from dsindex.store.range_copy import Extent, read_extents
from dsindex.store.requests import RequestCounts, requests_so_far
from dsindex.store.storage import (
    StoredFile,
    can_map,
)
from dsindex.store.writing import holding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.merge import Part


# The order of shuffled documents: by a key that is a hash of the seed and the document's number.
#
# A document's number counts the documents of all shards in the order of the inputs, from 0. The keys of a seed are all
# different, since the hash is invertible, so they alone determine the order: it does not depend on shards or on how the
# work is divided.

KEY = np.dtype("<u8")
KEY_RANGE = 1 << 64
"""Keys are in [0, KEY_RANGE)."""

_CHUNK_DOCUMENTS = 1 << 20


def document_keys(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of documents [first, first + count).

    Twice the finalizer of splitmix64, with a half of XXH3-128 of the seed added before each; both steps are invertible.

    >>> document_keys(1234, 0, 2).tolist()
    [14902054254488592312, 16958783590660293857]
    """
    digest = xxhash.xxh3_128_digest(f"dsindex --shuffle-documents {seed}".encode())
    halves = np.frombuffer(digest, ">u8").astype(np.uint64)
    keys = np.arange(first, first + count, dtype=np.uint64)
    for half in halves:
        keys += half
        keys ^= keys >> np.uint64(30)
        keys *= np.uint64(0xBF58476D1CE4E5B9)
        keys ^= keys >> np.uint64(27)
        keys *= np.uint64(0x94D049BB133111EB)
        keys ^= keys >> np.uint64(31)
    return keys.astype(KEY, copy=False)


def cut_key_range(num_buckets: int) -> list[tuple[int, int]]:
    """Cut the keys evenly into ranges [low, high).

    >>> cut_key_range(1) == [(0, 2**64)], cut_key_range(2)[0] == (0, 2**63)
    (True, True)
    """
    return list(pairwise(bucket * KEY_RANGE // num_buckets for bucket in range(num_buckets + 1)))


def find_keys(keys: NDArray[np.uint64], low: int, high: int) -> tuple[int, int]:
    """Return where ascending keys in [low, high) begin and end."""
    begin = int(np.searchsorted(keys, np.uint64(low)))
    end = len(keys) if high >= KEY_RANGE else int(np.searchsorted(keys, np.uint64(high)))
    return begin, end


def shuffled_order(seed: int, num_documents: int) -> NDArray[np.int64]:
    """Return the number of the document at each position of the shuffled dataset; takes 16 bytes per document."""
    keys = np.empty(num_documents, KEY)
    for begin in range(0, num_documents, _CHUNK_DOCUMENTS):
        count = min(_CHUNK_DOCUMENTS, num_documents - begin)
        keys[begin : begin + count] = document_keys(seed, begin, count)
    return np.argsort(keys)


# Runs of documents in shards and sorted runs, on a disk or in an object store, as a shuffle reads them.
#
# A gather task reads a slice of every run. In an object store each costs a few requests, so those of all runs are in
# flight together; a run's keys are not searched, but read around where a range of keys is expected to be.


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
    if not wanted or can_map(wanted[0][0].idx_path):
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
    if not runs or can_map(runs[0].keys_path):
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
    if can_map(known[0][0].path):
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
    if can_map(sources[0].parts[0].bin_path):
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


MIN_RUN_BYTES = 64 << 20
MAX_RUNS = 8192
"""Above MAX_RUNS · MIN_RUN_BYTES of tokens, runs grow, since every bucket reads from every run."""
MIN_OBJECT_RUN_BYTES = 256 << 20
MAX_OBJECT_RUNS = 2048
"""The same for runs in an object store: the requests grow with the square of the number of runs."""
RUN_DOCUMENTS = 1 << 20
"""Largest number of documents of a run, and about that of a bucket, which limits the memory for their positions."""

_CHUNK_BYTES = 8 << 20
"""Tokens that are written at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortTask:
    """Consecutive shards whose documents are sorted by their keys."""

    number: int
    sources: tuple[DocumentSource, ...]
    first_document: int
    """Number of the first shard's first document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortSettings:
    """The settings that all sort tasks share."""

    seed: int
    run_bytes: int
    """A run is cut before it has more bytes of tokens, unless one document has more."""
    dtype: str
    work_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherTask:
    """A bucket: the documents of all runs whose keys are in [low, high)."""

    number: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSettings:
    """The settings that all gather tasks share."""

    runs: tuple[DocumentSource, ...]
    """All runs, each sorted by key."""
    dtype: str
    work_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedPart:
    """One key's part of a run or a bucket."""

    num_sequences: int
    bin: StoredFile
    idx: StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedDocuments:
    """A run or a bucket: documents in the order of their keys."""

    num_documents: int
    parts: tuple[SortedPart, ...]
    """The part of each key."""
    provenance: StoredFile | None
    order: StoredFile | None
    """The keys of a run's documents."""

    @property
    def files(self) -> list[StoredFile]:
        """All its files."""
        files = [self.provenance, self.order]
        for part in self.parts:
            files += [part.bin, part.idx]
        return [file for file in files if file is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SortResult:
    """The result of one attempt at a task."""

    groups: tuple[SortedDocuments, ...]
    """The runs of a sort task, or the one bucket of a gather task."""
    requests: RequestCounts | None = None
    """The requests to object stores that this process has made so far; for the driver, and not recorded."""

    @property
    def files(self) -> list[StoredFile]:
        """All its files."""
        return [file for group in self.groups for file in group.files]


def choose_run_bytes(total_bytes: int, *, in_store: bool = False) -> int:
    """Return the size of a run or a bucket for tokens of a total size.

    Args:
        total_bytes: Size of the tokens of all keys.
        in_store: Whether runs are objects, of which each bucket reads a part by a handful of requests.

    >>> choose_run_bytes(10 << 30) >> 20, choose_run_bytes(4 << 40) >> 20
    (64, 512)
    >>> choose_run_bytes(10 << 30, in_store=True) >> 20, choose_run_bytes(4 << 40, in_store=True) >> 20
    (256, 2048)
    """
    least, most = (MIN_OBJECT_RUN_BYTES, MAX_OBJECT_RUNS) if in_store else (MIN_RUN_BYTES, MAX_RUNS)
    return max(least, -(-total_bytes // most))


def plan_groups(sources: Sequence[DocumentSource], run_bytes: int) -> list[SortTask]:
    """Group consecutive shards, so that each group is about one run; a shard that is larger becomes several runs."""
    tasks: list[SortTask] = []
    held: list[DocumentSource] = []
    first = num_documents = bin_bytes = 0

    def close() -> None:
        tasks.append(SortTask(number=len(tasks), sources=tuple(held), first_document=first))
        held.clear()

    for source in sources:
        too_large = bin_bytes + source.bin_bytes > run_bytes or num_documents + source.num_documents > RUN_DOCUMENTS
        if held and too_large:
            close()
            first, num_documents, bin_bytes = first + num_documents, 0, 0
        held.append(source)
        num_documents, bin_bytes = num_documents + source.num_documents, bin_bytes + source.bin_bytes
    if held:
        close()
    return tasks


def count_buckets(*, total_bytes: int, num_documents: int, run_bytes: int) -> int:
    """Return the number of buckets that are on average as large as a run may be."""
    return max(1, -(-total_bytes // run_bytes), -(-num_documents // RUN_DOCUMENTS))


def sort_documents(task: SortTask, settings: SortSettings) -> SortResult:
    """Write the documents of shards as sorted runs, under names unique to this attempt.

    Raises:
        InputError: If a file of a shard is missing or shorter than recorded.
        OutputError: If the work folder cannot be written.
    """
    folder, name = shard_folder(task.number), f"run-{task.number:08d}"
    with Attempt(settings.work_dir, folder=folder, name=name) as attempt:
        with indices_held(task.sources):
            runs = [
                _write_sorted(attempt, str(number), slices, np.dtype(settings.dtype), keeps_keys=True)
                for number, slices in enumerate(_cut_runs(task, settings))
            ]
        attempt.commit()
    return SortResult(groups=tuple(runs), requests=requests_so_far(settings.work_dir))


def gather_documents(task: GatherTask, settings: GatherSettings) -> SortResult:
    """Write one bucket, under names unique to this attempt.

    Raises:
        InputError: If a file of a run is missing or shorter than recorded.
        OutputError: If the work folder cannot be written.
    """
    folder, name = shard_folder(task.number), f"bucket-{task.number:08d}"
    slices = slice_runs(settings.runs, task.low, task.high)
    with Attempt(settings.work_dir, folder=folder, name=name) as attempt:
        bucket = _write_sorted(attempt, "0", slices, np.dtype(settings.dtype), keeps_keys=False)
        attempt.commit()
    return SortResult(groups=(bucket,), requests=requests_so_far(settings.work_dir))


def _cut_runs(task: SortTask, settings: SortSettings) -> Iterator[list[DocumentSlice]]:
    """Cut the documents of a task into runs; there is at least one, which may be empty."""
    held: list[DocumentSlice] = []
    room_bytes, room_documents = settings.run_bytes, RUN_DOCUMENTS
    first = task.first_document
    for source in task.sources:
        begin = 0
        while begin < source.num_documents:
            ends = _document_ends(source, begin, min(source.num_documents, begin + room_documents))
            count = int(np.searchsorted(ends, room_bytes, side="right"))
            if not held:
                count = max(count, 1)  # a document that is larger than a run
            if count:
                keys = document_keys(settings.seed, first, count)
                held.append(DocumentSlice(source=source, begin=begin, end=begin + count, keys=keys))
                room_bytes, room_documents = room_bytes - int(ends[count - 1]), room_documents - count
                begin, first = begin + count, first + count
            if begin < source.num_documents:
                yield held
                held, room_bytes, room_documents = [], settings.run_bytes, RUN_DOCUMENTS
    if held or first == task.first_document:
        yield held or [DocumentSlice(source=task.sources[0], begin=0, end=0, keys=np.empty(0, KEY))]


def _document_ends(source: DocumentSource, begin: int, end: int) -> NDArray[np.int64]:
    """Return where documents [begin, end) end in the tokens of all keys, in bytes from the first; shape [documents]."""
    total = np.zeros(end - begin, np.int64)
    for part in source.parts:
        [index] = read_indices([(part, begin, end)])
        tokens = starts_of(index.lengths)
        total += tokens[index.boundaries[1:] - index.boundaries[0]] * part.header.dtype.itemsize
    return total


def _write_sorted(
    attempt: Attempt, name: str, slices: Sequence[DocumentSlice], dtype: np.dtype[Any], *, keeps_keys: bool
) -> SortedDocuments:
    """Write the documents of slices in the order of their keys."""
    keys = np.concatenate([piece.keys for piece in slices])
    order = np.argsort(keys)
    parts = []
    with attempt.errors_named():
        for number in range(len(slices[0].source.parts)):
            writer = attempt.open_part(f"{name}.{number}", dtype)
            documents = _Documents(slices, number, dtype)
            for tokens, lengths, counts in documents.in_order(order):
                writer.add(tokens, lengths, counts)
            bin_file, idx_file = writer.finish()
            parts.append(SortedPart(num_sequences=writer.index.num_sequences, bin=bin_file, idx=idx_file))
            del documents  # before the next key is read
        provenance = None
        if slices[0].source.provenance is not None:
            file = attempt.open(f"{name}.prov")
            file.write(read_provenance(slices)[order].data)
            provenance = file.finish()
        order_file = None
        if keeps_keys:
            file = attempt.open(f"{name}.order")
            file.write(keys[order].data)
            order_file = file.finish()
    return SortedDocuments(num_documents=len(keys), parts=tuple(parts), provenance=provenance, order=order_file)


class _Documents:
    """The documents of slices, for one key, in memory."""

    def __init__(self, slices: Sequence[DocumentSlice], number: int, dtype: np.dtype[Any]) -> None:
        slices = [piece for piece in slices if piece.begin < piece.end]
        parts = [piece.source.parts[number] for piece in slices]
        indices = read_indices([(part, own.begin, own.end) for part, own in zip(parts, slices, strict=True)])
        self._dtype = dtype
        self._counts = _joined([np.diff(index.boundaries) for index in indices], np.int64)
        self._lengths = _joined([index.lengths for index in indices], np.int32)
        self._first_sequences = starts_of(self._counts)
        self._starts = starts_of(self._lengths)[self._first_sequences] * dtype.itemsize
        """Byte at which each document begins, and the end of the last; shape [documents + 1]."""
        self._tokens = memoryview(bytearray(int(self._starts[-1])))
        read_extents(self._wanted(parts, indices))

    def _wanted(self, parts: Sequence[Part], indices: Sequence[IndexSlice]) -> Iterator[tuple[Extent, memoryview]]:
        """Yield the tokens of each slice, and where they are put."""
        filled = 0
        for part, index in zip(parts, indices, strict=True):
            size_bytes = int(index.lengths.sum(dtype=np.int64)) * self._dtype.itemsize
            if size_bytes:
                extent = Extent(path=part.bin_path, begin=index.offset, end=index.offset + size_bytes)
                yield extent, self._tokens[filled : filled + size_bytes]
            filled += size_bytes

    def in_order(self, order: NDArray[np.int64]) -> Iterator[tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int64]]]:
        """Yield documents in an order, a chunk at a time: tokens, sequence lengths, sequences per document."""
        begins, ends = self._starts[:-1][order], self._starts[1:][order]
        done = starts_of(ends - begins)
        at = 0
        while at < len(order):
            to = max(at + 1, int(np.searchsorted(done, done[at] + _CHUNK_BYTES, side="right")) - 1)
            counts = self._counts[order[at:to]]
            # The sequences of document d are first[d], first[d] + 1, …
            shifts = self._first_sequences[order[at:to]] - starts_of(counts)[:-1]
            sequences = np.repeat(shifts, counts) + np.arange(counts.sum())
            bounds = zip(begins[at:to].tolist(), ends[at:to].tolist(), strict=True)
            texts = [self._tokens[begin:end] for begin, end in bounds]
            data = texts[0] if len(texts) == 1 else b"".join(texts)
            yield np.frombuffer(data, self._dtype), self._lengths[sequences], counts
            at = to


def _joined(arrays: list[NDArray[Any]], dtype: type[np.integer[Any]]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays])
