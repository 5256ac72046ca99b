"""Put the documents of all shards into a random order (dsindex.shards.document_order), in bounded memory.

The documents are sorted by their keys in two steps, each of which runs as independent tasks:

    sort     consecutive shards of together about `run_bytes` of tokens become a run, which is sorted by key
    gather   the range of all keys is cut evenly into buckets; each bucket takes its part of every run, sorted again

The buckets, one after the other, are the shuffled dataset. A task holds one run or bucket of one key in memory, or one
very long document. A run and a bucket consist of the files of one attempt: a part for each key, `prov` with the
provenance of the documents, and, for a run, `order` with their keys.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import read_index
from dsindex.range_copy import open_source
from dsindex.shards.attempt import Attempt, shard_folder
from dsindex.shards.document_order import KEY, document_keys, find_keys
from dsindex.shards.provenance import ShardProvenance, read_placed_rows
from dsindex.storage import StoredFile  # noqa: TC001 - the ledger parses results by their annotations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.merging import Part

MIN_RUN_BYTES = 64 << 20
MAX_RUNS = 8192
"""Above MAX_RUNS · MIN_RUN_BYTES of tokens, runs grow, since every bucket reads from every run."""
RUN_DOCUMENTS = 1 << 20
"""Largest number of documents of a run, and about that of a bucket, which limits the memory for their positions."""

_CHUNK_BYTES = 8 << 20
"""Tokens that are written at once."""


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

    @property
    def files(self) -> list[StoredFile]:
        """All its files."""
        return [file for group in self.groups for file in group.files]


def choose_run_bytes(total_bytes: int) -> int:
    """Return the size of a run or a bucket for tokens of a total size.

    >>> choose_run_bytes(10 << 30) >> 20, choose_run_bytes(4 << 40) >> 20
    (64, 512)
    """
    return max(MIN_RUN_BYTES, -(-total_bytes // MAX_RUNS))


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
        runs = [
            _write_sorted(attempt, str(number), slices, np.dtype(settings.dtype), keeps_keys=True)
            for number, slices in enumerate(_cut_runs(task, settings))
        ]
        attempt.commit()
    return SortResult(groups=tuple(runs))


def gather_documents(task: GatherTask, settings: GatherSettings) -> SortResult:
    """Write one bucket, under names unique to this attempt.

    Raises:
        InputError: If a file of a run is missing or shorter than recorded.
        OutputError: If the work folder cannot be written.
    """
    folder, name = shard_folder(task.number), f"bucket-{task.number:08d}"
    slices = []
    for run in settings.runs:
        keys = _map_keys(run)
        begin, end = find_keys(keys, task.low, task.high)
        slices.append(_Slice(source=run, begin=begin, end=end, keys=np.array(keys[begin:end])))
    with Attempt(settings.work_dir, folder=folder, name=name) as attempt:
        bucket = _write_sorted(attempt, "0", slices, np.dtype(settings.dtype), keeps_keys=False)
        attempt.commit()
    return SortResult(groups=(bucket,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """Documents [begin, end) of a source, and their keys."""

    source: DocumentSource
    begin: int
    end: int
    keys: NDArray[np.uint64]


def _cut_runs(task: SortTask, settings: SortSettings) -> Iterator[list[_Slice]]:
    """Cut the documents of a task into runs; there is at least one, which may be empty."""
    held: list[_Slice] = []
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
                held.append(_Slice(source=source, begin=begin, end=begin + count, keys=keys))
                room_bytes, room_documents = room_bytes - int(ends[count - 1]), room_documents - count
                begin, first = begin + count, first + count
            if begin < source.num_documents:
                yield held
                held, room_bytes, room_documents = [], settings.run_bytes, RUN_DOCUMENTS
    if held or first == task.first_document:
        yield held or [_Slice(source=task.sources[0], begin=0, end=0, keys=np.empty(0, KEY))]


def _document_ends(source: DocumentSource, begin: int, end: int) -> NDArray[np.int64]:
    """Return where documents [begin, end) end in the tokens of all keys, in bytes from the first; shape [documents]."""
    total = np.zeros(end - begin, np.int64)
    for part in source.parts:
        boundaries, lengths = _read_lengths(part, begin, end)
        tokens = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        total += tokens[boundaries[1:] - boundaries[0]] * part.header.dtype.itemsize
    return total


def _read_lengths(part: Part, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the boundaries of documents [begin, end), shape [documents + 1], and the lengths of their sequences."""
    try:
        index = read_index(part.idx_path)
    except FormatError as error:
        raise _lost(part.idx_path, str(error)) from error
    boundaries = np.array(index.document_indices[begin : end + 1])
    lengths = np.array(index.sequence_lengths[boundaries[0] : boundaries[-1]])
    if len(boundaries) != end - begin + 1 or len(lengths) != boundaries[-1] - boundaries[0]:
        raise _lost(part.idx_path, "its documents are not those of the ledger")
    return boundaries, lengths


def _write_sorted(
    attempt: Attempt, name: str, slices: Sequence[_Slice], dtype: np.dtype[Any], *, keeps_keys: bool
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
            file.write(_read_provenance(slices)[order].data)
            provenance = file.finish()
        order_file = None
        if keeps_keys:
            file = attempt.open(f"{name}.order")
            file.write(keys[order].data)
            order_file = file.finish()
    return SortedDocuments(num_documents=len(keys), parts=tuple(parts), provenance=provenance, order=order_file)


def _read_provenance(slices: Sequence[_Slice]) -> NDArray[Any]:
    rows = [
        read_placed_rows(piece.source.provenance, piece.begin, piece.end)
        for piece in slices
        if piece.source.provenance is not None
    ]
    return np.concatenate(rows)


class _Documents:
    """The documents of slices, for one key, in memory."""

    def __init__(self, slices: Sequence[_Slice], number: int, dtype: np.dtype[Any]) -> None:
        slices = [piece for piece in slices if piece.begin < piece.end]
        parts = [piece.source.parts[number] for piece in slices]
        indices = [_read_lengths(part, piece.begin, piece.end) for part, piece in zip(parts, slices, strict=True)]
        self._dtype = dtype
        self._counts = _joined([np.diff(boundaries) for boundaries, _ in indices], np.int64)
        self._lengths = _joined([lengths for _, lengths in indices], np.int32)
        self._first_sequences = _starts(self._counts)
        self._starts = _starts(self._lengths)[self._first_sequences] * dtype.itemsize
        """Byte at which each document begins, and the end of the last; shape [documents + 1]."""
        self._tokens = memoryview(bytearray(int(self._starts[-1])))
        filled = 0
        for part, (boundaries, lengths) in zip(parts, indices, strict=True):
            size_bytes = int(lengths.sum(dtype=np.int64)) * dtype.itemsize
            if size_bytes:
                offset = int(read_index(part.idx_path).sequence_pointers[boundaries[0]])
                with open_source(part.bin_path) as source:
                    source.read_into(self._tokens[filled : filled + size_bytes], offset)
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


def _lost(path: str, reason: str) -> InputError:
    return InputError(f"{path}: cannot be read ({reason}); run the same command again to rebuild it")
