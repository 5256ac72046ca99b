"""Put the documents of all shards into a random order (dsindex.shards.document_order), in bounded memory.

The documents are sorted by their keys in two steps, each of which runs as independent tasks:

    sort     consecutive shards of together about `run_bytes` of tokens become a run, which is sorted by key
    gather   the range of all keys is cut evenly into buckets; each bucket takes its part of every run, sorted again

The buckets, one after the other, are the shuffled dataset. A task holds one run or bucket of one key in memory, or one
very long document. A run and a bucket consist of the files of one attempt: a part for each key, `prov` with the
provenance of the documents, and, for a run, `order` with their keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.objects.requests import RequestCounts, request_counts
from dsindex.objects.urls import is_url
from dsindex.range_copy import Extent, read_extents
from dsindex.shards.attempt import Attempt, shard_folder
from dsindex.shards.document_order import KEY, document_keys
from dsindex.shards.document_slices import (
    DocumentSlice,
    DocumentSource,
    IndexSlice,
    indices_held,
    read_indices,
    read_provenance,
    slice_runs,
)
from dsindex.storage import StoredFile  # noqa: TC001 - the ledger parses results by their annotations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.merging.parts import Part

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
    return SortResult(groups=tuple(runs), requests=_asked(settings.work_dir))


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
    return SortResult(groups=(bucket,), requests=_asked(settings.work_dir))


def _asked(work_dir: str) -> RequestCounts | None:
    return request_counts() if is_url(work_dir) else None


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
        tokens = np.concatenate(([0], np.cumsum(index.lengths, dtype=np.int64)))
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
        self._first_sequences = _starts(self._counts)
        self._starts = _starts(self._lengths)[self._first_sequences] * dtype.itemsize
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
        done = _starts(ends - begins)
        at = 0
        while at < len(order):
            to = max(at + 1, int(np.searchsorted(done, done[at] + _CHUNK_BYTES, side="right")) - 1)
            counts = self._counts[order[at:to]]
            # The sequences of document d are first[d], first[d] + 1, …
            shifts = self._first_sequences[order[at:to]] - _starts(counts)[:-1]
            sequences = np.repeat(shifts, counts) + np.arange(counts.sum())
            bounds = zip(begins[at:to].tolist(), ends[at:to].tolist(), strict=True)
            texts = [self._tokens[begin:end] for begin, end in bounds]
            data = texts[0] if len(texts) == 1 else b"".join(texts)
            yield np.frombuffer(data, self._dtype), self._lengths[sequences], counts
            at = to


def _joined(arrays: list[NDArray[Any]], dtype: type[np.integer[Any]]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _starts(sizes: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return where consecutive items of these sizes begin, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
