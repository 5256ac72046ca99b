"""One pass over the tokens of a dataset, by threads that each take a block of documents at a time."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsindex.datasets.gpt import open_cached_index
from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.execution.local import map_ahead
from dsindex.index.cache import BLENDED_CLASS, descriptions_in, read_description
from dsindex.index.cuts import Cuts, count_cuts
from dsindex.index.epochs import SPLIT_NAMES, split_bounds
from dsindex.tools.kinds import DocumentRun
from dsindex.tools.lengths import LengthCounter
from dsindex.tools.phases import count_drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.formats.mmididx import Tokens
    from dsindex.tools.kinds import TokenStore
    from dsindex.tools.lengths import LengthSummary


# Documents that occur more than once, by 64-bit digests of their tokens, in memory that does not grow with the dataset.
#
# Of a large dataset, all copies of a share of the different documents are counted, chosen by digest, and all copies of
# the documents that an even sample shows to be frequent. The rest is estimated from the share.

GROUPS = np.dtype([("digest", "<u8"), ("first", "<i8"), ("num_tokens", "<i8"), ("copies", "<i8")])
"""Equal documents: their digest, the number of the first, its length, and how many there are."""
MOST_DIGESTS = 1 << 21
"""Documents of which all are counted."""
SHARE_DIGESTS = 1 << 19
"""The largest share of more documents."""
FREQUENT = 1 << 10
"""The largest number of frequent documents that are counted beyond the share."""
FREQUENT_COPIES = 8
"""Copies in the even sample from which a document is frequent."""
SAMPLED_RUNS, RUN_DOCUMENTS = 64, 1 << 14
"""Runs of consecutive documents of that sample."""


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
    one_of: int
    """Of how many different documents one was counted; 1 if all were."""


class RepeatCounter:
    """Counts equal documents.

    Args:
        one_of: Of how many different documents one is counted, a power of 2.
        frequent: Digests of documents that are counted anyway, ascending.
    """

    def __init__(self, one_of: int, frequent: NDArray[np.uint64]) -> None:
        self._one_of = one_of
        self._frequent = frequent
        self.limit = np.uint64((1 << 64) // one_of - 1)
        """The largest digest of the share."""
        self.slots = np.zeros(1 << (16 * len(frequent)).bit_length(), np.uint64)
        """Hash table of the frequent digests, for `measure_documents`; sparse, so that most documents meet none."""
        for digest in frequent.tolist():
            slot = (digest >> 1) % len(self.slots)
            while self.slots[slot]:
                slot = (slot + 1) % len(self.slots)
            self.slots[slot] = digest
        self._groups = np.empty(0, GROUPS)
        self._waiting: list[NDArray[np.void]] = []
        self._num_waiting = 0

    def add(self, groups: NDArray[np.void]) -> None:
        """Add the groups of a block."""
        self._waiting.append(groups)
        self._num_waiting += len(groups)
        if self._num_waiting > len(self._groups) // 2 + (1 << 18):
            self._merge()

    def _merge(self) -> None:
        self._groups = _group(np.concatenate([self._groups, *self._waiting]))
        self._waiting, self._num_waiting = [], 0

    def find(self, most: int) -> Repeats:
        """Return what is repeated, naming up to `most` documents."""
        self._merge()
        groups = self._groups[self._groups["copies"] > 1]
        of = np.where(np.isin(groups["digest"], self._frequent), 1, self._one_of)
        more = groups["copies"] - 1
        order = np.lexsort((groups["first"], -groups["num_tokens"], -groups["copies"]))[:most]
        return Repeats(
            num_repeated=int(of.sum()),
            num_extra=int((of * more).sum()),
            extra_tokens=int((of * more * groups["num_tokens"]).sum()),
            most=tuple(
                RepeatedDocument(
                    first=int(each["first"]), num_tokens=int(each["num_tokens"]), copies=int(each["copies"])
                )
                for each in groups[order]
            ),
            one_of=self._one_of,
        )


def _group(documents: NDArray[np.void]) -> NDArray[np.void]:
    """Return one entry for equal documents, by ascending digest."""
    if len(documents) < 2:
        return documents
    order = np.argsort(documents["digest"])
    digests = documents["digest"][order]
    begins = np.flatnonzero(np.concatenate([[True], digests[1:] != digests[:-1]]))
    groups = documents[order[begins]]
    groups["first"] = np.minimum.reduceat(documents["first"][order], begins)
    groups["copies"] = np.add.reduceat(documents["copies"][order], begins)
    return groups


# The sources of documents: how many documents and tokens each has, and some documents of each, drawn evenly.

DRAWN = 16
"""Documents drawn of each source."""


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
        ends = np.clip(self._ends, begin, end)
        return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=begin))


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
    learned: int | None
    """Tokens that are learned; None where there are no masks."""
    drawn: tuple[int, ...]
    """Numbers of up to DRAWN documents, which depend on nothing but the numbers of its documents."""


class SourceCounter:
    """Counts documents and tokens by source."""

    def __init__(self, num_sources: int) -> None:
        from dsindex.tools.report_kernels import count_sources  # compiled by numba, which is slow to import

        self._count = count_sources
        self._documents = np.zeros(num_sources, np.int64)
        self._tokens = np.zeros(num_sources, np.int64)
        self._learned: NDArray[np.int64] | None = None
        self._worst = np.full(num_sources, np.iinfo(np.uint64).max, np.uint64)
        """The largest priority of the documents drawn of a source that has enough of them."""
        self._drawn: dict[int, list[tuple[int, int]]] = {}
        """Source -> priority and number of documents."""

    def add(
        self, sources: NDArray[np.int64], lengths: NDArray[np.int64], first: int, learned: NDArray[np.int64] | None
    ) -> None:
        """Count a block of documents, the first of which has the number `first`, and the learned tokens of each."""
        if learned is not None:
            self._learned = np.zeros_like(self._tokens) if self._learned is None else self._learned
            np.add.at(self._learned, sources, learned)
        priorities, places = np.empty(len(lengths), np.uint64), np.empty(len(lengths), np.int64)
        num = self._count(first, lengths, sources, self._documents, self._tokens, self._worst, priorities, places)
        # Only the first few of each source in the block can stay.
        owners = sources[places[:num]]
        order = np.lexsort((priorities[:num], owners))
        begins = np.searchsorted(owners[order], owners[order])
        for offered in order[np.arange(num) - begins < DRAWN].tolist():
            source = int(owners[offered])
            offer = (int(priorities[offered]), first + int(places[offered]))
            drawn = sorted([*self._drawn.get(source, ()), offer])[:DRAWN]
            self._drawn[source] = drawn
            if len(drawn) == DRAWN:
                self._worst[source] = drawn[-1][0]

    def totals(self) -> tuple[SourceTotals, ...]:
        """Return what there is of each source."""
        pairs = zip(self._documents.tolist(), self._tokens.tolist(), strict=True)
        return tuple(
            SourceTotals(
                documents=documents,
                tokens=tokens,
                learned=None if self._learned is None else int(self._learned[number]),
                drawn=tuple(sorted(document for _, document in self._drawn.get(number, ()))),
            )
            for number, (documents, tokens) in enumerate(pairs)
        )


# What index caches draw from datasets: the tokens and epochs of each split, and the datasets of each blend.

ROUNDING = 1e-9
"""How far running sums of shares may exceed 1."""


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
    part: tuple[int, int]
    """First sequence of the split, and one past its last."""
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
    for path in descriptions_in(folder):
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
    split, sequence_length = str(described["index_split"]), described["sequence_length"]
    samples = open_cached_index(path, "shuffle_index")
    part = _part(path, split, described.get("split_matrix"))
    begin, end = (0, len(lengths)) if part is None else split_bounds(part, len(lengths))
    return DrawnSplit(
        prefix=str(described["dataset_path"]),
        split=split,
        sequence_length=sequence_length,
        num_samples=len(samples),
        intended=None if part is None else part[1] - part[0],
        part=(begin, end),
        part_tokens=int(lengths[begin:end].sum(dtype=np.int64)),
        dataset_tokens=int(lengths.sum(dtype=np.int64)),
        cuts=_count_cuts(path, lengths, sequence_length, len(samples)),
    )


def _count_cuts(path: str, lengths: Any, sequence_length: int, num_samples: int) -> Cuts:  # noqa: ANN401 - mapped
    documents = open_cached_index(path, "document_index")
    try:
        return count_cuts(lengths, documents, sequence_length=sequence_length, num_samples=num_samples)
    except IndexError as error:
        raise FormatError(f"{path}: expected sequences of the dataset ({error}); build the cache again") from error


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
    drawn = count_drawn(path, open_cached_index(path, "dataset_index"), len(parts))
    return BlendOfSplit(
        split=str(described["split"]),
        sequence_length=parts[0]["sequence_length"],
        prefixes=tuple(str(part.get("dataset_path")) for part in parts),
        intended=tuple(weight / sum(weights) for weight in weights),
        num_samples=tuple(drawn.tolist()),
    )


BLOCK_DOCUMENTS = 1 << 18
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
    lengths: LengthSummary
    longest: tuple[int, ...]
    shortest: tuple[int, ...]
    """Numbers of the shortest documents that have tokens."""
    counts: TokenCounts
    sources: tuple[SourceTotals, ...]
    repeats: Repeats


def measure(
    store: TokenStore,
    sources: Sources,
    *,
    masks: Tokens | None = None,
    threads: int,
    most: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Read all tokens of a dataset once. The result does not depend on the number of threads.

    Memory: the counts of ids for each thread (at most 16 MiB), some blocks, and MOST_DIGESTS groups of documents.

    Args:
        store: The dataset, with integer tokens.
        sources: The source of each document.
        masks: Of each token, other than 0 if it is learned.
        threads: Blocks that are read at once.
        most: The largest number of documents to name as longest, shortest, and most repeated.
        on_progress: Called with the number of tokens read since the last call.

    Raises:
        FormatError: If tokens are missing, or the sources cannot be read.
    """
    counter, lengths, by_source = _IdCounter(store.tokens.dtype), LengthCounter(), SourceCounter(sources.num_sources)
    longest, shortest = _Extremes(most, sign=1), _Extremes(most, sign=-1)
    wanted = MOST_DIGESTS if store.num_documents <= MOST_DIGESTS else SHARE_DIGESTS
    one_of = 1 << (max(1, -(-store.num_documents // wanted)) - 1).bit_length()
    repeats = RepeatCounter(one_of, np.empty(0, np.uint64) if one_of == 1 else _find_frequent(store))

    def read(block: DocumentRun) -> tuple[NDArray[np.void], NDArray[np.int64] | None]:
        return counter.add(store, block, repeats), None if masks is None else _count_learned(masks, block)

    documents = tokens = 0
    for block, (groups, learned) in map_ahead(read, _blocks(store), threads=threads, ahead=threads):
        repeats.add(groups)
        own = sources.of(block.first_document, block.first_document + len(block.lengths))
        by_source.add(own, block.lengths, block.first_document, learned)
        lengths.add(block.lengths)
        longest.add(block)
        shortest.add(block)
        documents += len(block.lengths)
        tokens += block.num_tokens
        on_progress(block.num_tokens)
    return Measurement(
        documents=documents,
        tokens=tokens,
        lengths=lengths.summary(),
        longest=longest.documents(),
        shortest=shortest.documents(),
        counts=counter.counts(),
        sources=by_source.totals(),
        repeats=repeats.find(most),
    )


def _count_learned(masks: Tokens, block: DocumentRun) -> NDArray[np.int64]:
    """Return the learned tokens of each document of a block."""
    filled, ends = np.flatnonzero(block.lengths), np.cumsum(block.lengths)
    learned = np.zeros(len(block.lengths), np.int64)
    if len(filled):
        own = masks[block.first_token : block.first_token + block.num_tokens] != 0
        learned[filled] = np.add.reduceat(own, ends[filled] - block.lengths[filled], dtype=np.int64)
    return learned


def _find_frequent(store: TokenStore) -> NDArray[np.uint64]:
    """Return the digests of documents that an even sample shows to be frequent."""
    counter, every = _IdCounter(store.tokens.dtype), RepeatCounter(1, np.empty(0, np.uint64))
    step = -(-store.num_documents // SAMPLED_RUNS)
    runs = store.runs([(begin, begin + min(RUN_DOCUMENTS, step)) for begin in range(0, store.num_documents, step)])
    digests, copies = np.unique(
        np.concatenate([counter.add(store, run, every)["digest"] for run in runs]), return_counts=True
    )
    digests, copies = digests[copies >= FREQUENT_COPIES], copies[copies >= FREQUENT_COPIES]
    return np.sort(digests[np.argsort(-copies, kind="stable")[:FREQUENT]])


class _Extremes:
    """Keeps the longest (sign 1) or shortest (sign -1) documents that have tokens, of equal ones the first."""

    def __init__(self, most: int, *, sign: int) -> None:
        self._most, self._sign = most, sign
        self._keys, self._documents = np.empty((2, 0), np.int64)

    def add(self, block: DocumentRun) -> None:
        """Offer the documents of a block, whose numbers are above all before."""
        least = self._keys[-1] if len(self._keys) == self._most else np.iinfo(np.int64).min
        if (block.lengths.max() if self._sign > 0 else -block.lengths.min()) <= least:
            return
        keys = self._sign * block.lengths
        places = np.flatnonzero((keys > least) & (block.lengths > 0))
        if not len(places):
            return
        keys, documents = keys[places], places + block.first_document
        if len(keys) > self._most:
            least = np.partition(keys, len(keys) - self._most)[len(keys) - self._most]
            above, equal = np.flatnonzero(keys > least), np.flatnonzero(keys == least)
            chosen = np.concatenate([above, equal[: self._most - len(above)]])
            keys, documents = keys[chosen], documents[chosen]
        keys, documents = np.concatenate([self._keys, keys]), np.concatenate([self._documents, documents])
        order = np.lexsort((documents, -keys))[: self._most]
        self._keys, self._documents = keys[order], documents[order]

    def documents(self) -> tuple[int, ...]:
        """Return the numbers of the documents, the most extreme first."""
        return tuple(self._documents.tolist())


def _blocks(store: TokenStore) -> Iterator[DocumentRun]:
    document = token = 0
    total = len(store.tokens)
    for lengths in store.document_lengths():
        begin, is_damaged = 0, len(lengths) > 0 and lengths.min() < 0
        while begin < len(lengths):
            block = lengths[begin : begin + BLOCK_DOCUMENTS]
            num_tokens = int(block.sum())
            if is_damaged or token + num_tokens > total:
                msg = f"expected documents within {total:,} tokens, got others; the dataset is damaged: verify it"
                raise FormatError(msg)
            if num_tokens > BLOCK_TOKENS:
                block = block[: max(1, int(np.searchsorted(np.cumsum(block), BLOCK_TOKENS, side="right")))]
                num_tokens = int(block.sum())
            yield DocumentRun(first_document=document, first_token=token, num_tokens=num_tokens, lengths=block)
            begin, document, token = begin + len(block), document + len(block), token + num_tokens


class _IdCounter:
    """Counts ids in tables of each thread."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        from dsindex.tools.report_kernels import measure_documents  # compiled by numba, which is slow to import

        self._measure = measure_documents
        self._size = min(LARGEST_VOCABULARY, 1 << (8 * dtype.itemsize)) if dtype.itemsize <= 2 else LARGEST_VOCABULARY
        self._own = threading.local()
        self._lock = threading.Lock()
        self._tables: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._others = 0
        self._range: tuple[int, int] | None = None

    def add(self, store: TokenStore, block: DocumentRun, repeats: RepeatCounter) -> NDArray[np.void]:
        """Count the tokens of a block, and return the groups of its documents that `repeats` counts."""
        if not hasattr(self._own, "tables"):
            self._own.tables = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
            with self._lock:
                self._tables.append(self._own.tables)
        tokens = store.tokens[block.first_token : block.first_token + block.num_tokens]
        groups = np.empty(len(block.lengths), GROUPS)
        others, smallest, largest, num_groups = self._measure(
            tokens,
            block.lengths,
            self._own.tables[0],
            self._own.tables[1],
            block.first_document,
            repeats.limit,
            repeats.slots,
            groups.view(np.int64).reshape(-1, 4),
        )
        if others:
            with self._lock:
                self._others += int(others)
                low, high = self._range or (smallest, largest)
                self._range = (min(low, int(smallest)), max(high, int(largest)))
        return groups[:num_groups].copy()

    def counts(self) -> TokenCounts:
        """Return the counts of all threads."""
        by_id, last_by_id = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        for own, own_last in self._tables:
            by_id += own
            last_by_id += own_last
        used = np.flatnonzero(by_id)
        size = int(used[-1]) + 1 if len(used) else 0
        return TokenCounts(by_id=by_id[:size], others=self._others, other_ids=self._range, last_by_id=last_by_id[:size])
