"""Determine the caches that a job will look for: Megatron's dataset builder as a pure function of settings and counts.

Source: docs/formats.md §2; megatron.core.datasets, blended_megatron_dataset_builder.py, `_build_blended_dataset_splits`
and `_get_size_per_split_per_dataset`; utils.py, `get_blend_from_list`; blended_dataset.py.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import InputError, LimitError
from dsindex.megatron.cache import (
    BLENDED_CLASS,
    DESCRIPTION_SUFFIX,
    GPT_CLASS,
    CacheFiles,
    Settings,
    array_bytes,
    cache_files,
)
from dsindex.megatron.epochs import (
    BLEND_DTYPES,
    DOCUMENT_DTYPE,
    SPLIT_NAMES,
    STOCK_ORDER,
    WHOLE,
    DocumentOrder,
    EpochCounts,
    SampleRule,
    SplitMatrix,
    count_epochs,
    normalise,
    sample_dtype,
    shuffle_dtype,
)
from dsindex.megatron.flags import MID_LEVEL_SURPLUS
from dsindex.megatron.maxtext import MAXTEXT_BLEND, MAXTEXT_CLASS, SPLITS_READ, describe_dataset
from dsindex.messages import show_value
from dsindex.store.protocol import store_of
from dsindex.store.read import is_stored
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.megatron.flags import Sizes

MAX_DATASETS = np.iinfo(np.int16).max - 1
"""Megatron asserts fewer than 32767 datasets, since the dataset index is int16."""
MAX_SEQUENCES = np.iinfo(DOCUMENT_DTYPE).max
VALID = SPLIT_NAMES.index("valid")
LIST_SUFFIX = ".txt"
LOOP_BYTES = 128 << 20
"""Memory that numba and its kernels take in addition to the arrays."""


# Blends.


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """The datasets of a split, or of all splits."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None
    """One for each prefix; None to blend in proportion to the datasets' lengths."""

    def shares(self, place: str) -> list[Fraction]:
        """Return each dataset's share of the total weight.

        Raises:
            InputError: If they have no weights.
        """
        if self.weights is None:
            raise InputError(f"{place}: the list has no weights", hint="give a weight before each of its datasets")
        total = sum(map(Fraction, self.weights))
        return [Fraction(weight) / total for weight in self.weights]


def parse_data_path(words: Sequence[str], *, flag: str = "--data-path") -> Blend:
    """Parse `W1 P1 W2 P2 …` or `P1 P2 …` as Megatron does: an even number of words may be pairs.

    A prefix may be the path of a list, whose datasets share its weight.

    Raises:
        InputError: If there is no prefix, only some weights are numbers, or a list does not name datasets.
        LimitError: If a weight is not a positive number, or there are too many datasets.

    >>> parse_data_path(["30", "web", "70", "books"])
    Blend(prefixes=('web', 'books'), weights=(30.0, 70.0))
    >>> parse_data_path(["web", "books"])
    Blend(prefixes=('web', 'books'), weights=None)
    """
    blend = _parse_words(words, flag)
    members = [read_list(prefix) for prefix in blend.prefixes]
    if blend.weights is None and len(members) == 1 and members[0] is not None:
        blend = members[0]
    elif any(members):
        prefixes, weights = list[str](), list[float]()
        for number, (prefix, member) in enumerate(zip(blend.prefixes, members, strict=True)):
            prefixes += [prefix] if member is None else member.prefixes
            if blend.weights is not None:
                shares = [Fraction(1)] if member is None else member.shares(prefix)
                weights += [float(share * Fraction(blend.weights[number])) for share in shares]
        blend = Blend(prefixes=tuple(prefixes), weights=tuple(weights) or None)
    for prefix in blend.prefixes:
        if prefix.encode(errors="replace").decode() != prefix:
            raise InputError(f"{flag}: {prefix}: a path in a cache has to be UTF-8", hint="rename the dataset")
    if len(blend.prefixes) > MAX_DATASETS:
        problem = f"{len(blend.prefixes)} datasets are more than the {MAX_DATASETS} of Megatron's int16 dataset index"
        raise LimitError(f"{flag}: {problem}", hint="merge some of them")
    return blend


def _parse_words(words: Sequence[str], flag: str) -> Blend:
    if not words:
        raise InputError(f"{flag}: give at least one prefix")
    prefixes, weights = [word.strip() for word in words], None
    if len(words) % 2 == 0:
        parsed = [_parse_weight(word) for word in words[::2]]
        numbers = [weight for weight in parsed if weight is not None]
        if numbers and len(numbers) < len(parsed):
            word = words[2 * parsed.index(None)]
            raise InputError(f"{flag}: {word!r} is not a weight", hint="give a weight before each prefix, or none")
        if numbers:
            prefixes, weights = prefixes[1::2], tuple(numbers)
    for prefix, weight in zip(prefixes, weights or (), strict=bool(weights)):
        if not 0 < weight < math.inf:
            hint = "leave the dataset out, or change its weight"
            raise LimitError(f"{flag}: Megatron refuses the weight {weight:g} of {prefix}", hint=hint)
    return Blend(prefixes=tuple(prefixes), weights=weights)


def read_words(path: str) -> list[str]:
    """Return the words of a file for Megatron's --data-args-path.

    Raises:
        InputError: If the file is missing, is not text, or has no words.
    """
    stored = store_of(path).read(path)
    try:
        words = [] if stored is None else stored[0].decode().split()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: these are not the words of --data-path ({error})") from error
    if not words:
        raise InputError(f"{path}: {'no such file' if stored is None else 'an empty file has no words of --data-path'}")
    return words


def read_list(path: str) -> Blend | None:
    """Return the datasets of a list, such as `dsindex build --max-dataset-size` writes; None for any other path.

    A list is a .txt file with the words of --data-path.

    Raises:
        InputError: If such a file does not name datasets.
    """
    if not path.endswith(LIST_SUFFIX) or path.endswith(DESCRIPTION_SUFFIX) or is_stored(f"{path}.idx"):
        return None
    blend = _parse_words(read_words(path), path)
    if not is_stored(f"{blend.prefixes[0]}.idx"):
        hint = "a list of datasets has weights and prefixes, as for Megatron's --data-args-path"
        raise InputError(f"{path}: {show_value(blend.prefixes[0])} is not a dataset", hint=hint)
    return blend


def _parse_weight(word: str) -> float | None:
    """Return a word as a weight; None for a prefix."""
    try:
        return float(word)
    except ValueError:
        return None


def requested_samples(weights: Sequence[float], num_samples: int, *, surplus: float = 0.0) -> list[int]:
    """Return the samples of each dataset of a blend, rounded up, and rounded up again with the surplus.

    Args:
        weights: As typed. They are normalised here, once.
        num_samples: Samples of the blend.
        surplus: 0 for the samples that the blend draws, MID_LEVEL_SURPLUS for those requested from each dataset.

    >>> requested_samples([0.9, 0.1], 900), requested_samples([0.9, 0.1], 900, surplus=0.005)
    ([810, 90], [815, 91])
    """
    return [math.ceil(math.ceil(num_samples * weight) * (1 + surplus)) for weight in normalise(list(weights))]


# Caches.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """The sequences and tokens of a dataset that a split draws from."""

    begin: int
    end: int
    tokens: int


Counts = dict[str, list[PartCounts | None]]
"""Prefix → its parts in train, valid and test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The settings that all caches of a job share."""

    sequence_length: int
    seed: int = 1234
    extra_token: bool = True
    keep_partial_validation: bool = False
    surplus: float = MID_LEVEL_SURPLUS
    split: str | None = None
    """--split as typed; None if each split has its own path."""
    matrix: SplitMatrix | None = None
    tokenizer: Mapping[str, Any] | None = None
    """The tokenizer's identifiers; None to name caches after datasets instead of hashes."""
    class_name: str = GPT_CLASS
    multiple_validation_sets: bool = False
    """Whether the datasets of valid are not blended; only with a path for each split."""
    order: DocumentOrder = STOCK_ORDER
    ordered_splits: tuple[str, ...] = ("train",)
    """The splits whose documents are in `order`; all other splits are in Megatron's order."""
    folder: str | None = None
    """The cache folder; None for one next to each dataset."""
    is_maxtext: bool = False
    """Whether MaxText reads the caches."""

    def order_of(self, split: int) -> DocumentOrder:
        """Return the order of a split's documents."""
        return self.order if SPLIT_NAMES[split] in self.ordered_splits else STOCK_ORDER

    def rule(self, split: int) -> SampleRule:
        """Return the rule by which a split's tokens are cut into samples."""
        return SampleRule(
            sequence_length=self.sequence_length,
            extra_token=self.extra_token,
            keep_partial=self.keep_partial_validation and split == VALID,
        )

    def files_of(self, identifiers: Mapping[str, Any], prefix: str, name: str | None) -> CacheFiles:
        """Return the paths of a cache; file names begin with `name` or, without it, with the hash."""
        folder = self.folder or os.path.join(prefix, "cache", f"{self.class_name}_indices")  # Megatron's default
        return cache_files(os.path.abspath(folder), identifiers, name=name)


Segment = tuple[int, int]
"""Number of positions in the document index, and their epoch, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedIndex:
    """How the index of a dataset continues after a first job."""

    files: CacheFiles | None
    """The first job's cache; None for a dataset that is new."""
    begin: int
    """First sequence that the first job draws from."""
    end: int
    num_tokens: int
    """Tokens of the first job's document index."""
    taken: int
    """Samples of the dataset that were read."""
    consumed: int
    """Samples of the run that were read; part of the seed, so that every continuation has its own order."""
    segments: tuple[Segment, ...]
    """All segments of the document index: the old ones, new sequences for each open epoch, and new epochs."""
    num_old: int
    num_grown: int
    """Number of segments after the old ones that have only new sequences."""

    @property
    def num_positions(self) -> int:
        """Entries of the document index."""
        return sum(count for count, _ in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCurve:
    """The weight of each dataset as a piecewise linear function of the sample number."""

    starts: NDArray[np.float64]
    """First sample of each piece, shape [k]."""
    weights: NDArray[np.float64]
    """Normalised weights at the start of each piece, shape [k, datasets]."""
    slopes: NDArray[np.float64]
    """Change of each weight per sample, shape [k, datasets]."""
    num_samples: int

    def integral(self, begin: float, end: float) -> NDArray[np.float64]:
        """Return the samples that each dataset should give to [begin, end), shape [datasets]."""
        total = np.zeros(self.weights.shape[1])
        for number, start in enumerate(self.starts):
            stop = self.starts[number + 1] if number + 1 < len(self.starts) else max(end, start)
            low, high = max(begin, start) - start, min(end, stop) - start
            if high > low:
                total += self.weights[number] * (high - low) + self.slopes[number] * (high * high - low * low) / 2
        return total

    def tail_from(self, begin: int) -> WeightCurve:
        """Return the curve from a sample on, which becomes sample 0."""
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        starts = np.maximum(self.starts[first:] - begin, 0.0)
        weights = self.weights[first:].copy()
        weights[0] += self.slopes[first] * (begin - self.starts[first])
        return WeightCurve(
            starts=starts, weights=weights, slopes=self.slopes[first:], num_samples=self.num_samples - begin
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedBlend:
    """How the blend of a run continues."""

    consumed: int
    """Samples that were read; 0 for a schedule from the beginning."""
    old: CacheFiles | None
    """The first job's blend; None without a first job, or if the first job had one dataset."""
    numbers: tuple[int | None, ...]
    """For each dataset of the first job, its number in this job; None if it is left out, and was never read."""
    taken: tuple[int, ...]
    """Samples of each dataset that were read."""
    curve: WeightCurve
    """The weights of the samples that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTCache:
    """The document, sample and shuffle index of one split of one dataset."""

    prefix: str
    """The dataset's prefix as typed."""
    path: str
    """The absolute prefix, since another machine may build the cache."""
    split: str
    part: PartCounts
    seed: int
    epochs: EpochCounts
    rule: SampleRule
    order: DocumentOrder
    settings: Settings
    identifiers: dict[str, Any]
    files: CacheFiles
    continued: ContinuedIndex | None = None
    """How the index continues; None unless the job continues a first one or has a blend schedule."""

    @property
    def name(self) -> str:
        """Name of the cache for users."""
        return f"{self.prefix}, split {self.split}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of its datasets."""
        return (self.path,)

    @property
    def num_samples(self) -> int:
        """Samples of the index."""
        return self.epochs.num_samples

    @property
    def of_documents(self) -> bool:
        """Whether the index and `part` count documents instead of sequences."""
        return bool(self.identifiers["class"] == MAXTEXT_CLASS)

    @property
    def num_sequences(self) -> int:
        """Sequences or documents of the part."""
        return self.part.end - self.part.begin

    @property
    def num_positions(self) -> int:
        """Entries of the document index."""
        if self.continued is not None:
            return self.continued.num_positions
        return self.epochs.num_epochs * self.num_sequences

    @property
    def file_bytes(self) -> int:
        """Size of the arrays on disk."""
        samples = self.num_samples
        return (
            array_bytes(self.num_positions, DOCUMENT_DTYPE)
            + array_bytes(2 * (samples + 1), sample_dtype(self.num_positions))
            + array_bytes(samples, shuffle_dtype(samples))
        )

    @property
    def memory_bytes(self) -> int:
        """Peak memory: the arrays, the lengths and one epoch of ids."""
        # A continuation marks unread samples and their epochs; an order file is read, and its numbers are counted.
        marks = 0 if self.continued is None else 10 * self.num_samples
        marks += 0 if self.order.digest is None else 32 * self.num_sequences
        return self.file_bytes + 2 * 4 * self.num_sequences + marks + LOOP_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendedCache:
    """The dataset index and dataset sample index of one split of a blend."""

    split: str
    datasets: tuple[GPTCache, ...]
    settings: Settings
    identifiers: dict[str, Any]
    files: CacheFiles
    surplus: float
    requested: int | None
    """Samples that the job reads; rounding makes the blend a little larger. None for all."""
    continued: ContinuedBlend | None = None

    @property
    def name(self) -> str:
        """Name of the cache for users."""
        return f"blend of {len(self.datasets)}, split {self.split}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of its datasets."""
        return tuple(dataset.path for dataset in self.datasets)

    @property
    def weights(self) -> list[float]:
        """Weights, normalised as often as in Megatron, since that decides the last bit; lengths if there is no size."""
        weights: list[float] = self.identifiers["weights"]
        return weights

    @property
    def num_samples(self) -> int:
        """Samples of the blend."""
        size: int | None = self.identifiers["size"]
        return int(sum(self.weights)) if size is None else size

    @property
    def file_bytes(self) -> int:
        """Size of the arrays on disk."""
        return sum(array_bytes(self.num_samples, dtype) for dtype in BLEND_DTYPES)

    @property
    def memory_bytes(self) -> int:
        """Peak memory: the arrays."""
        return self.file_bytes + LOOP_BYTES


Cache = GPTCache | BlendedCache


def find_needed_caches(
    blends: Sequence[Blend | None],
    sizes: Sequence[Sizes],
    *,
    settings: CacheSettings,
    counts: Mapping[str, Sequence[PartCounts | None]],
    job_path: Callable[[str], str] = str,
) -> tuple[list[GPTCache], list[BlendedCache]]:
    """Return the caches of train, valid and test in each phase of a job, each once.

    Args:
        blends: The datasets of each split; None for a split without any. With `settings.matrix`, all are the same.
        sizes: Samples requested from each split in each phase; None for one epoch.
        settings: Settings of all caches.
        counts: Prefix → its parts in train, valid and test.
        job_path: Turns a prefix into the path that the job will type.

    Raises:
        LimitError: If Megatron would loop forever, stop, or run past the data.
    """
    matrix = settings.matrix or (WHOLE,) * len(SPLIT_NAMES)
    by_split = {split: blend for split, blend in enumerate(blends) if blend is not None and matrix[split] is not None}
    planner = _Planner(settings, counts, job_path, *_name_caches(settings, counts, by_split.values()))
    blended: dict[str, BlendedCache] = {}
    for phase in sizes:
        for split, blend in by_split.items():
            cache = planner.plan_split(split, blend, phase[split])
            if cache is not None:
                blended.setdefault(repr(cache.identifiers), cache)
    return list(planner.datasets.values()), list(blended.values())


@dataclass(frozen=True, slots=True)
class _Planner:
    """The settings of a job, and the caches of datasets planned so far."""

    settings: CacheSettings
    counts: Mapping[str, Sequence[PartCounts | None]]
    job_path: Callable[[str], str]
    plain_names: Mapping[str, str]
    """Prefix → start of its caches' names, instead of a hash."""
    blend_names: Sequence[str | None]
    """For each split, start of its blend's cache names; None for a hash."""
    datasets: dict[str, GPTCache] = field(default_factory=dict)

    def plan_split(self, split: int, blend: Blend, size: int | None) -> BlendedCache | None:
        """Plan the datasets of a split, and return their blend if there is one."""
        settings = self.settings
        is_single, place = len(blend.prefixes) == 1, f"split {SPLIT_NAMES[split]}"
        if blend.weights is not None and size is None:
            hint = "set --num-samples TRAIN,VALID,TEST (0 for an unused split), or leave the split out of --split"
            raise LimitError(f"{place}: a weighted blend needs a number of samples", hint=hint)
        # Megatron treats a single weighted prefix as a blend with --data-path, but not with a path for each split.
        is_alone = is_single and (blend.weights is None or settings.matrix is None or settings.is_maxtext)
        if is_alone or (settings.multiple_validation_sets and settings.matrix is None and split == VALID):
            for prefix in blend.prefixes:
                self._plan_dataset(prefix, split, size)
            return None
        if blend.weights is not None and size is not None:
            total = size if settings.is_maxtext else sum(requested_samples(blend.weights, size))
            sample_counts = requested_samples(blend.weights, size, surplus=settings.surplus)
            pairs = zip(blend.prefixes, sample_counts, strict=True)
            datasets = [self._plan_dataset(prefix, split, count) for prefix, count in pairs]
            return self._plan_blend(datasets, split, normalise(normalise(list(blend.weights))), total, size)
        if settings.is_maxtext:
            raise LimitError(f"{place}: MaxText needs a weight for each dataset of a blend")
        datasets = [self._plan_dataset(prefix, split, None) for prefix in blend.prefixes]
        lengths = [cache.num_samples for cache in datasets]
        if 0 in lengths:
            name, hint = datasets[lengths.index(0)].name, "leave the dataset out, or give the split a larger share"
            raise LimitError(f"{name} has no sample, so Megatron would stop at the blend", hint=hint)
        if size is None:
            return self._plan_blend(datasets, split, lengths, None, None)
        if size > sum(lengths):
            problem = f"{size} samples were requested, but the datasets have {sum(lengths)}"
            hint = "request at most that many (--num-samples), or use weights"
            raise LimitError(f"{place}: {problem}, so the job would run out of data", hint=hint)
        return self._plan_blend(datasets, split, normalise(list(lengths)), size, size)

    def _plan_dataset(self, prefix: str, split: int, num_samples: int | None) -> GPTCache:
        settings, part = self.settings, self.counts[prefix][split]
        if part is None:
            raise KeyError(f"{prefix}: split {SPLIT_NAMES[split]} was not counted")
        if part.end > MAX_SEQUENCES:
            problem = f"{part.end} sequences are more than the {MAX_SEQUENCES} of Megatron's int32 document index"
            raise LimitError(f"{prefix}: {problem}", hint="split the dataset and blend the parts")
        rule, order, place = settings.rule(split), settings.order_of(split), f"{prefix}, split {SPLIT_NAMES[split]}"
        epochs, path = count_epochs(part.tokens, num_samples, rule=rule, place=place), self.job_path(prefix)
        identifiers: dict[str, Any] = {  # Megatron's, in the order in which they are hashed
            "class": settings.class_name,
            "dataset_path": path,
            "num_samples": num_samples,
            "index_split": SPLIT_NAMES[split],
            "random_seed": settings.seed,
            "sequence_length": settings.sequence_length,
            "split": settings.split,
            "split_matrix": settings.matrix,
            "tokenizer": settings.tokenizer,
        }
        if settings.is_maxtext:
            split_index = 0 if settings.split is None else split
            options = {"seed": settings.seed, "sequence_length": settings.sequence_length}
            identifiers = describe_dataset(path, epochs, split=settings.split, split_index=split_index, **options)
        cache = GPTCache(
            prefix=prefix,
            path=absolute(prefix),
            split=SPLIT_NAMES[split],
            part=part,
            seed=settings.seed,
            epochs=epochs,
            rule=rule,
            order=order,
            settings=Settings(extra_token=rule.extra_token, keep_partial=rule.keep_partial, **order.as_settings()),
            identifiers=identifiers,
            files=settings.files_of(identifiers, prefix, self.plain_names.get(prefix)),
        )
        return self.datasets.setdefault(repr(identifiers), cache)

    def _plan_blend(
        self,
        datasets: Sequence[GPTCache],
        split: int,
        weights: Sequence[float],
        size: int | None,
        requested: int | None,
    ) -> BlendedCache:
        settings = self.settings
        identifiers = {  # in Megatron's order
            "class": BLENDED_CLASS,
            "datasets": [dataset.identifiers for dataset in datasets],
            "split": SPLIT_NAMES[split],
            "weights": list(weights),
            "size": size,
        }
        return BlendedCache(
            split=SPLIT_NAMES[split],
            datasets=tuple(datasets),
            settings=Settings(),
            identifiers=identifiers,
            files=settings.files_of(identifiers, datasets[0].prefix, self.blend_names[split]),
            surplus=settings.surplus,
            requested=requested,
        )


def _name_caches(
    settings: CacheSettings, prefixes: Iterable[str], blends: Iterable[Blend]
) -> tuple[dict[str, str], Sequence[str | None]]:
    """Return the names that replace the hash in file names: one per dataset, and one for the blend of each split.

    Without the tokenizer's identifiers, a dataset's name is the end of its path, with a number if that is not unique.
    """
    if settings.is_maxtext:  # all blends are in one folder, where MaxText's fixed names fit only one of them
        has_one_blend = sum(len(blend.prefixes) > 1 for blend in blends) < 2
        return {}, [MAXTEXT_BLEND if has_one_blend else f"maxtext-{BLENDED_CLASS}-{name}" for name in SPLITS_READ]
    if settings.tokenizer is not None:
        return {}, [None] * len(SPLIT_NAMES)
    bases = {prefix: os.path.basename(prefix) for prefix in prefixes}
    counts_by_base = Counter(bases.values())
    names = {
        prefix: f"{number}-{base}" if counts_by_base[base] > 1 else base
        for number, (prefix, base) in enumerate(bases.items())
    }
    return names, ["blend"] * len(SPLIT_NAMES)
