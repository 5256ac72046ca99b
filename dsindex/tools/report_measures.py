"""One pass over the tokens of a dataset, by threads that each take a block of documents at a time."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import xxhash

from dsindex.datasets.gpt import open_index_array
from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.execution.local import map_ahead
from dsindex.index.cache import BLENDED_CLASS, read_description
from dsindex.index.cuts import Cuts, count_cuts
from dsindex.index.epochs import SPLIT_NAMES, split_bounds
from dsindex.store.storage import output_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from dsindex.tools.inspect_kinds import TokenStore


# How long documents are: counts by length on a logarithmic scale, and the longest and shortest documents.

EDGES: NDArray[np.int64] = np.unique(np.rint(2.0 ** (np.arange(0, 2 * 44) / 2)).astype(np.int64))
"""Where bins begin: 1, 2, 3, 4, 6, 8, 11, 16, …, two for each doubling. Empty documents have a bin before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The documents whose number of tokens is in [begin, end)."""

    begin: int
    end: int
    documents: int
    tokens: int


class LengthCounter:
    """Counts documents and tokens by length."""

    def __init__(self) -> None:
        self._documents = np.zeros(len(EDGES) + 1, np.int64)
        self._tokens = np.zeros(len(EDGES) + 1, np.int64)

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count a block of documents."""
        places = np.searchsorted(EDGES, lengths, side="right")
        self._documents += np.bincount(places, minlength=len(self._documents))
        np.add.at(self._tokens, places, lengths)

    def bins(self) -> tuple[LengthBin, ...]:
        """Return the bins from the first to the last that has documents, without empty documents."""
        used = np.flatnonzero(self._documents[1:])
        if not len(used):
            return ()
        return tuple(
            LengthBin(
                begin=int(EDGES[number]),
                end=int(EDGES[number + 1]) if number + 1 < len(EDGES) else 2**63 - 1,
                documents=int(self._documents[number + 1]),
                tokens=int(self._tokens[number + 1]),
            )
            for number in range(int(used[0]), int(used[-1]) + 1)
        )


class Extremes:
    """Keeps the documents with the largest keys, of equal ones the first.

    Args:
        most: Number of documents to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys = np.empty(0, np.int64)
        self._documents = np.empty(0, np.int64)

    def add(self, keys: NDArray[np.int64], documents: NDArray[np.int64]) -> None:
        """Offer documents, whose numbers are above all before."""
        if len(keys) > self._most:
            least = np.partition(keys, len(keys) - self._most)[len(keys) - self._most]
            above, equal = np.flatnonzero(keys > least), np.flatnonzero(keys == least)
            chosen = np.concatenate([above, equal[: self._most - len(above)]])
            keys, documents = keys[chosen], documents[chosen]
        keys, documents = np.concatenate([self._keys, keys]), np.concatenate([self._documents, documents])
        order = np.lexsort((documents, -keys))[: self._most]
        self._keys, self._documents = keys[order], documents[order]

    def documents(self) -> tuple[int, ...]:
        """Return the numbers of the documents, the largest key first."""
        return tuple(self._documents.tolist())


# Documents that occur more than once, found by 128-bit digests of their tokens in bounded memory.
#
# Digests are sorted in parts of about PART_DOCUMENTS. If there are several parts, they wait in files without a name,
# which the system removes however the process ends.

DOCUMENTS = np.dtype([("high", "<u8"), ("low", "<u8"), ("first", "<i8"), ("num_tokens", "<i8"), ("copies", "<i8")])
"""Equal documents: their digest, the number of the first, its length, and how many there are."""

PART_DOCUMENTS = 1 << 20
"""Documents whose digests are sorted at once; a part of them takes about 100 MiB."""
MOST_PARTS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedDocument:
    """A document that occurs several times."""

    first: int
    """Number of its first occurrence."""
    num_tokens: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The documents of a dataset that occur more than once; empty ones do not count."""

    num_repeated: int
    """Different documents that occur several times."""
    num_extra: int
    """Documents that would go if each were kept once."""
    extra_tokens: int
    most: tuple[RepeatedDocument, ...]
    """Those with the most copies, then the longest, then the first."""


def group_documents(tokens: NDArray[Any], ends: NDArray[np.int64], first: int) -> NDArray[np.void]:
    """Return the different documents of a block, by ascending digest, without empty ones.

    Args:
        tokens: Contiguous tokens of the block.
        ends: End of each document in `tokens`, ascending, shape [documents].
        first: Number of the first document.

    Returns:
        Array of type DOCUMENTS.
    """
    size = tokens.itemsize
    data = memoryview(tokens.view(np.uint8))  # type: ignore[arg-type]  # numpy's stubs lack the buffer of slices
    digest = xxhash.xxh3_128_digest
    digests, begin = [], 0
    for end in (ends * size).tolist():
        digests.append(digest(data[begin:end]))
        begin = end
    words = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype("<u8")
    found = np.empty(len(ends), DOCUMENTS)
    found["high"], found["low"] = words[:, 0], words[:, 1]
    found["first"] = np.arange(first, first + len(ends))
    found["num_tokens"] = np.diff(ends, prepend=0)
    found["copies"] = 1
    return _group(found[found["num_tokens"] > 0])


class RepeatFinder:
    """Collects the documents of blocks, and finds those that are equal.

    Args:
        num_documents: Documents that will be added.
        folder: Where files without a name may be made.
        part_documents: As PART_DOCUMENTS.
    """

    def __init__(self, num_documents: int, *, folder: str, part_documents: int = PART_DOCUMENTS) -> None:
        parts = -(-num_documents // part_documents)
        self._bits = min((max(parts, 1) - 1).bit_length(), MOST_PARTS.bit_length() - 1)
        self._folder = folder
        self._files: list[IO[bytes]] = []
        self._held: list[NDArray[np.void]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # a full disk was reported by `add`
                file.close()

    def add(self, documents: NDArray[np.void]) -> None:
        """Add the documents of a block, as `group_documents` returns them.

        Raises:
            OutputError: If the folder or the disk refuses.
        """
        if not self._bits:
            self._held.append(documents)
            return
        parts = (documents["high"] >> np.uint64(64 - self._bits)).astype(np.int64)
        bounds = np.searchsorted(parts, np.arange((1 << self._bits) + 1)).tolist()
        try:
            while len(self._files) < 1 << self._bits:
                self._files.append(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115 - closed on exit
            for file, begin, end in zip(self._files, bounds[:-1], bounds[1:], strict=True):
                file.write(documents[begin:end].tobytes())
        except OSError as error:
            raise output_error(self._folder, error) from error

    def find(self, most: int) -> Repeats:
        """Return what is repeated.

        Args:
            most: The largest number of documents to name.

        Raises:
            OutputError: If a file cannot be written.
        """
        num_repeated = num_extra = extra_tokens = 0
        top = np.empty(0, DOCUMENTS)
        for part in self._parts():
            groups = _group(part)
            groups = groups[groups["copies"] > 1]
            num_repeated += len(groups)
            num_extra += int((groups["copies"] - 1).sum())
            extra_tokens += int(((groups["copies"] - 1) * groups["num_tokens"]).sum())
            top = np.concatenate([top, groups])
            order = np.lexsort((top["first"], -top["num_tokens"], -top["copies"]))
            top = top[order[:most]]
        return Repeats(
            num_repeated=num_repeated,
            num_extra=num_extra,
            extra_tokens=extra_tokens,
            most=tuple(
                RepeatedDocument(
                    first=int(each["first"]), num_tokens=int(each["num_tokens"]), copies=int(each["copies"])
                )
                for each in top
            ),
        )

    def _parts(self) -> Iterator[NDArray[np.void]]:
        """Yield documents so that equal ones are in the same part."""
        if not self._bits:
            yield np.concatenate([np.empty(0, DOCUMENTS), *self._held])
        for file in self._files:
            try:
                file.seek(0)
                yield np.frombuffer(file.read(), DOCUMENTS)
            except OSError as error:
                raise output_error(self._folder, error) from error


def _group(documents: NDArray[np.void]) -> NDArray[np.void]:
    """Return one entry for equal documents, by ascending digest."""
    if not len(documents):
        return documents
    order = np.lexsort((documents["first"], documents["low"], documents["high"]))
    high, low = documents["high"][order], documents["low"][order]
    begins = np.flatnonzero(np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])]))
    groups = documents[order[begins]]
    groups["copies"] = np.add.reduceat(documents["copies"][order], begins)
    return groups


# The sources of documents: how many documents and tokens each has, and some documents of each, drawn evenly.

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
            raise FormatError(f"{path}: expected {num_documents:,} rows, got {rows:,}; it belongs to another dataset")
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


# What index caches draw from datasets: the tokens and epochs of each split, and the datasets of each blend.

CHUNK_ITEMS = 1 << 22
ROUNDING = 1e-9
"""How far running sums of shares may exceed 1."""
DESCRIPTION_SUFFIX = "-description.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSplit:
    """What the cache of one split draws from one dataset."""

    prefix: str
    """As in the description."""
    split: str
    sequence_length: int
    num_samples: int
    intended: float | None
    """Share of the dataset's sequences that the split was to have; None if it has its own dataset."""
    part_tokens: int
    """Tokens of the split's part."""
    dataset_tokens: int
    cuts: Cuts
    """The documents that the borders of samples cut."""

    @property
    def epochs(self) -> float:
        """How often each token of the part is seen, on average."""
        return self.num_samples * self.sequence_length / self.part_tokens if self.part_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOfSplit:
    """What the cache of a blend draws from its datasets."""

    split: str
    sequence_length: int
    prefixes: tuple[str, ...]
    intended: tuple[float, ...]
    num_samples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCaches:
    """What the caches of a folder draw."""

    splits: tuple[DrawnSplit, ...]
    blends: tuple[BlendOfSplit, ...]
    findings: tuple[str, ...]
    """Sentences about caches that cannot be read."""


def read_drawn(folder: str, lengths_of: Callable[[str], Any]) -> DrawnCaches:
    """Read the caches of a folder that are of known datasets.

    Args:
        folder: The cache folder (`--data-cache-path`).
        lengths_of: Returns the tokens of each sequence of the dataset that a description names; None if it is not one
            of those that are looked at.

    Raises:
        InputError: If there is no folder, or no cache of these datasets.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: expected a folder with index caches, found none; check --cache")
    splits: list[DrawnSplit] = []
    blends: list[BlendOfSplit] = []
    findings: list[str] = []
    others = 0
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"*{DESCRIPTION_SUFFIX}"))):
        try:
            described = read_description(path)
            if described["class"] == BLENDED_CLASS:
                if any(lengths_of(str(part.get("dataset_path"))) is not None for part in described["datasets"]):
                    blends.append(_read_blend(path, described))
                else:
                    others += 1
                continue
            lengths = lengths_of(str(described["dataset_path"]))
            if lengths is None:
                others += 1
            else:
                splits.append(_read_split(path, described, lengths))
        except DsindexError as error:
            findings.append(str(error))
    if not (splits or blends or findings):
        got = "caches of other datasets only" if others else "none"
        raise InputError(f"{folder}: expected index caches of the datasets, got {got}; check --cache")
    order = {name: place for place, name in enumerate(SPLIT_NAMES)}
    splits.sort(key=lambda each: (each.prefix, order.get(each.split, len(order)), each.sequence_length))
    blends.sort(key=lambda each: (order.get(each.split, len(order)), each.prefixes))
    return DrawnCaches(splits=tuple(splits), blends=tuple(blends), findings=tuple(findings))


def _read_split(path: str, described: Mapping[str, Any], lengths: Any) -> DrawnSplit:  # noqa: ANN401 - mapped
    split, sequence_length = str(described["index_split"]), _length(path, described)
    samples = open_index_array(_array(path, "shuffle_index"), what="a shuffle index", shape=(None,))
    part = _part(path, split, described.get("split_matrix"))
    begin, end = (0, len(lengths)) if part is None else split_bounds(part, len(lengths))
    return DrawnSplit(
        prefix=str(described["dataset_path"]),
        split=split,
        sequence_length=sequence_length,
        num_samples=len(samples),
        intended=None if part is None else part[1] - part[0],
        part_tokens=int(lengths[begin:end].sum(dtype=np.int64)),
        dataset_tokens=int(lengths.sum(dtype=np.int64)),
        cuts=_count_cuts(path, lengths, sequence_length, len(samples)),
    )


def _count_cuts(path: str, lengths: Any, sequence_length: int, num_samples: int) -> Cuts:  # noqa: ANN401 - mapped
    name = _array(path, "document_index")
    documents = open_index_array(name, what="a document index", shape=(None,))
    try:
        return count_cuts(lengths, documents, sequence_length=sequence_length, num_samples=num_samples)
    except IndexError as error:
        raise FormatError(f"{name}: expected sequences of the dataset ({error}); build the cache again") from error


def _part(path: str, split: str, matrix: object) -> tuple[float, float] | None:
    """Return the part of a split in a description; None if the split has its own dataset.

    Raises:
        FormatError: If it is something else.
    """
    if matrix is None:
        return None
    place = SPLIT_NAMES.index(split) if split in SPLIT_NAMES else len(SPLIT_NAMES)
    part = matrix[place] if isinstance(matrix, list) and place < len(matrix) else None
    if isinstance(part, list) and len(part) == 2 and all(isinstance(bound, int | float) for bound in part):
        begin, end = map(float, part)
        if 0 <= begin <= end <= 1 + ROUNDING:
            return begin, min(end, 1.0)
    raise FormatError(f"{path}: expected the part of {split} as two shares, got {part!r}; build the cache again")


def _read_blend(path: str, described: Mapping[str, Any]) -> BlendOfSplit:
    parts, weights = described["datasets"], described.get("weights")
    is_number = isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights)
    if not is_number or weights is None or len(weights) != len(parts) or not 0 < sum(weights) < float("inf"):
        msg = f"{path}: expected a weight for each of {len(parts)} datasets, got {weights!r}; build the cache again"
        raise FormatError(msg)
    name = _array(path, "dataset_index")
    index = open_index_array(name, what="a dataset index", shape=(None,))
    drawn = np.zeros(len(parts), np.int64)
    for begin in range(0, len(index), CHUNK_ITEMS):
        chunk = index[begin : begin + CHUNK_ITEMS]
        if chunk.min() < 0 or chunk.max() >= len(parts):
            raise FormatError(f"{name}: expected datasets below {len(parts)}, got {chunk.max()}; build the cache again")
        drawn += np.bincount(chunk, minlength=len(parts))
    return BlendOfSplit(
        split=str(described["split"]),
        sequence_length=_length(path, parts[0]),
        prefixes=tuple(str(part.get("dataset_path")) for part in parts),
        intended=tuple(weight / sum(weights) for weight in weights),
        num_samples=tuple(drawn.tolist()),
    )


def _length(path: str, described: Mapping[str, Any]) -> int:
    length = described.get("sequence_length")
    if type(length) is not int or length < 1:
        raise FormatError(f"{path}: expected a sequence length, got {length!r}; build the cache again")
    return length


def _array(path: str, name: str) -> str:
    return f"{path.removesuffix(DESCRIPTION_SUFFIX)}-{name}.npy"


BLOCK_DOCUMENTS = 1 << 16
BLOCK_TOKENS = 1 << 24
"""Tokens of a block, unless a single document has more."""
LARGEST_VOCABULARY = 1 << 20
"""Ids from here on are counted together; the largest vocabularies have about 2**18."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """How often each id occurs."""

    by_id: NDArray[np.int64]
    """Shape [the largest id that occurs + 1]."""
    others: int
    """Tokens whose id is negative or LARGEST_VOCABULARY or more."""
    other_ids: tuple[int, int] | None
    """The smallest and the largest of those ids."""
    last_by_id: NDArray[np.int64]
    """How many documents end with each id, shape as `by_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one pass over a dataset finds."""

    documents: int
    tokens: int
    empty: int
    lengths: tuple[LengthBin, ...]
    longest: tuple[int, ...]
    shortest: tuple[int, ...]
    """Numbers of the shortest documents that have tokens."""
    counts: TokenCounts
    sources: tuple[SourceTotals, ...]
    repeats: Repeats


class _Block(NamedTuple):
    first_document: int
    first_token: int
    lengths: NDArray[np.int64]


def measure(
    store: TokenStore,
    sources: Sources,
    *,
    threads: int,
    folder: str,
    most: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Read all tokens of a dataset once. The result does not depend on the number of threads.

    Memory: the counts of ids for each thread (at most 16 MiB), a block's digests, and 1 Mi documents to sort.

    Args:
        store: The dataset, with integer tokens.
        sources: The source of each document.
        threads: Blocks that are read at once.
        folder: Where files without a name may be made, 40 bytes per document, if there are more than 1 Mi of them.
        most: The largest number of documents to name as longest, shortest, and most repeated.
        on_progress: Called with the number of tokens read since the last call.

    Raises:
        FormatError: If tokens are missing, or the sources cannot be read.
        OutputError: If `folder` cannot be written to.
    """
    counter = _IdCounter(store.tokens.dtype)
    lengths, by_source = LengthCounter(), SourceCounter(sources.num_sources)
    longest, shortest = Extremes(most), Extremes(most)
    documents = tokens = empty = 0

    def read(block: _Block) -> NDArray[np.void]:
        end = block.first_token + int(block.lengths.sum())
        found = store.tokens[block.first_token : end]
        ends = np.cumsum(block.lengths)
        counter.add(found, ends[block.lengths > 0])
        return group_documents(found, ends, block.first_document)

    with RepeatFinder(store.num_documents, folder=folder) as finder:
        for block, groups in map_ahead(read, _blocks(store), threads=threads, ahead=threads):
            finder.add(groups)
            own = sources.of(block.first_document, block.first_document + len(block.lengths))
            by_source.add(own, block.lengths, block.first_document)
            lengths.add(block.lengths)
            has_tokens = np.flatnonzero(block.lengths)
            longest.add(block.lengths[has_tokens], has_tokens + block.first_document)
            shortest.add(-block.lengths[has_tokens], has_tokens + block.first_document)
            documents += len(block.lengths)
            tokens += int(block.lengths.sum())
            empty += len(block.lengths) - len(has_tokens)
            on_progress(int(block.lengths.sum()))
        repeats = finder.find(most)
    return Measurement(
        documents=documents,
        tokens=tokens,
        empty=empty,
        lengths=lengths.bins(),
        longest=longest.documents(),
        shortest=shortest.documents(),
        counts=counter.counts(),
        sources=by_source.totals(),
        repeats=repeats,
    )


def find_spans(store: TokenStore, documents: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the first token of documents, and one past their last, from one pass over the lengths."""
    wanted = np.array(sorted(set(documents)), np.int64)
    spans: dict[int, tuple[int, int]] = {}
    for block in _blocks(store):
        some = wanted[(wanted >= block.first_document) & (wanted < block.first_document + len(block.lengths))]
        if len(some):
            ends = np.cumsum(block.lengths) + block.first_token
            for document in some.tolist():
                place = document - block.first_document
                spans[document] = (int(ends[place] - block.lengths[place]), int(ends[place]))
    return spans


def _blocks(store: TokenStore) -> Iterator[_Block]:
    document = token = 0
    total = len(store.tokens)
    for lengths in store.document_lengths():
        begin = 0
        ends = np.cumsum(lengths)
        if len(lengths) and (lengths.min() < 0 or token + int(ends[-1]) > total):
            msg = f"expected documents within {total:,} tokens, got others; the dataset is damaged: verify it"
            raise FormatError(msg)
        while begin < len(lengths):
            before = int(ends[begin - 1]) if begin else 0
            stop = int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right"))
            stop = min(max(stop, begin + 1), begin + BLOCK_DOCUMENTS)
            yield _Block(document + begin, token + before, lengths[begin:stop])
            begin = stop
        document += len(lengths)
        token += int(ends[-1]) if len(ends) else 0


class _IdCounter:
    """Counts ids in tables of each thread."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        from dsindex.kernels.tokens import count_tokens  # compiled by numba, which is slow to import

        self._count = count_tokens
        self._size = min(LARGEST_VOCABULARY, 1 << (8 * dtype.itemsize)) if dtype.itemsize <= 2 else LARGEST_VOCABULARY
        self._own = threading.local()
        self._lock = threading.Lock()
        self._tables: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._others = 0
        self._range: tuple[int, int] | None = None

    def add(self, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Count tokens, and those before each end as the last of a document."""
        if not hasattr(self._own, "tables"):
            self._own.tables = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
            with self._lock:
                self._tables.append(self._own.tables)
        by_id, last_by_id = self._own.tables
        others, smallest, largest = self._count(tokens, by_id)
        self._count(tokens[ends - 1], last_by_id)
        if others:
            with self._lock:
                self._others += int(others)
                low, high = self._range or (smallest, largest)
                self._range = (min(low, int(smallest)), max(high, int(largest)))

    def counts(self) -> TokenCounts:
        """Return the counts of all threads."""
        by_id, last_by_id = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        for own, own_last in self._tables:
            by_id += own
            last_by_id += own_last
        used = np.flatnonzero(by_id)
        size = int(used[-1]) + 1 if len(used) else 0
        return TokenCounts(by_id=by_id[:size], others=self._others, other_ids=self._range, last_by_id=last_by_id[:size])
