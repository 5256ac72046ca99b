"""The unit of work of an index job: build one cache, on any executor.

Tasks are small and picklable; they contain paths and counts. If two tasks build the same cache at the same time, one
waits for the other and then finds it built.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex import __version__
from dsindex.errors import InputError
from dsindex.formats.mmididx import read_index
from dsindex.indices import bigscience
from dsindex.indices.blend import check_draws
from dsindex.indices.cache import CacheFiles, array_bytes
from dsindex.indices.dtypes import BLEND_DTYPES, DOCUMENT_DTYPE, sample_dtype, shuffle_dtype
from dsindex.indices.memory import MemoryGate
from dsindex.indices.needed_caches import PartCounts
from dsindex.indices.slot import CacheSlot, has_recorded_files, lock_slot, read_record, write_slot
from dsindex.indices.source import SourceFingerprint, count_tokens, fingerprint, read_lengths
from dsindex.indices.splits import split_bounds
from dsindex.readable import is_stored
from dsindex.storage import make_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dsindex.indices.epochs import EpochCounts, SampleRule
    from dsindex.indices.splits import Part

_GATE = MemoryGate()

LOOP_BYTES = 128 << 20
"""Memory that numba and its kernels take in addition to the arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """Task of counting the tokens of a dataset's parts in train, valid and test."""

    prefix: str
    parts: tuple[Part | None, ...]
    """The parts as shares; None for a part that is not needed."""
    bigscience_split: str | None = None
    """A split by BigScience's rule, which replaces `parts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTIndexTask:
    """Task of building the document, sample and shuffle index of one split of one dataset."""

    name: str
    """Name of the task for users."""
    prefix: str
    """Absolute, since the task may run in another folder or on another machine."""
    begin: int
    end: int
    seed: int
    epochs: EpochCounts
    rule: SampleRule
    array_paths: tuple[str, str, str]
    """Paths of the document, sample and shuffle index."""
    files: CacheFiles | None
    """Paths of description and record; None in a layout without them."""
    description: str | None
    """Text of the description, if there is one."""
    settings: Mapping[str, Any]
    """Options for the record that the hash does not cover."""
    threads: int = 1

    @property
    def slot(self) -> CacheSlot:
        """The files in the order in which they are written."""
        if self.files is not None:
            return self.files.slot
        return CacheSlot(paths=self.array_paths, record=bigscience.record_path(self.array_paths[0]))

    @property
    def num_positions(self) -> int:
        """Entries of the document index."""
        return self.epochs.num_epochs * (self.end - self.begin)

    @property
    def file_bytes(self) -> int:
        """Size of the arrays on disk."""
        samples = self.epochs.num_samples
        return (
            array_bytes(self.num_positions, DOCUMENT_DTYPE)
            + array_bytes(2 * (samples + 1), sample_dtype(self.num_positions))
            + array_bytes(samples, shuffle_dtype(samples))
        )

    @property
    def memory_bytes(self) -> int:
        """Peak memory: the arrays, the lengths and one epoch of ids."""
        return self.file_bytes + 2 * 4 * (self.end - self.begin) + LOOP_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendIndexTask:
    """Task of building the dataset index and dataset sample index of one split of a blend."""

    split: str
    prefixes: tuple[str, ...]
    lengths: tuple[int, ...]
    """Samples of each dataset's index."""
    weights: tuple[float, ...] | tuple[int, ...]
    size: int | None
    files: CacheFiles
    description: str
    surplus: float

    @property
    def name(self) -> str:
        """Name of the task for users."""
        return f"blend of {len(self.prefixes)}, split {self.split}"

    @property
    def num_samples(self) -> int:
        """Samples of the blend."""
        return int(sum(self.weights)) if self.size is None else self.size

    @property
    def file_bytes(self) -> int:
        """Size of the arrays on disk."""
        return sum(array_bytes(self.num_samples, dtype) for dtype in BLEND_DTYPES)

    @property
    def memory_bytes(self) -> int:
        """Peak memory: the arrays."""
        return self.file_bytes + LOOP_BYTES


IndexTask = GPTIndexTask | BlendIndexTask


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexResult:
    """The result of one task."""

    name: str
    paths: tuple[str, ...]
    num_samples: int
    num_epochs: int | None
    """Number of epochs; None for a blend."""
    file_bytes: int
    seconds: float
    reused: bool
    """Whether the cache existed already, built from the same lengths with the same options."""


def count_parts(task: PartTask) -> list[PartCounts | None]:
    """Return the sequences and tokens of each part; None for a part that is not needed.

    Raises:
        InputError: If there is no such dataset.
        FormatError: If the `.idx` is damaged.
    """
    if not is_stored(f"{task.prefix}.idx"):
        msg = f"{task.prefix}.idx: no such file; use the prefix of a .bin and .idx, without the suffix"
        raise InputError(msg)
    lengths = read_index(f"{task.prefix}.idx").sequence_lengths
    bounds: list[tuple[int, int] | None]
    if task.bigscience_split is None:
        bounds = [None if part is None else split_bounds(part, len(lengths)) for part in task.parts]
    else:
        bounds = list(bigscience.split_bounds(task.bigscience_split, len(lengths)))
    return [
        None if pair is None else PartCounts(begin=pair[0], end=pair[1], tokens=count_tokens(lengths[slice(*pair)]))
        for pair in bounds
    ]


def build_index_cache(task: IndexTask) -> IndexResult:
    """Build one cache and write it, or keep an existing one that is still valid.

    Raises:
        LimitError: If it takes more memory than is available.
        FormatError: If the `.idx` changed since the task was planned.
        OutputError: If the cache cannot be written.
    """
    started = time.monotonic()
    with _GATE.reserve(task.memory_bytes, place=task.name, what="the index"):
        if isinstance(task, BlendIndexTask):
            return _build_blend(task, started)
        return _build_dataset(task, started)


def _build_dataset(task: GPTIndexTask, started: float) -> IndexResult:
    slot = task.slot
    lengths = read_lengths(task.prefix, task.begin, task.end)
    source = fingerprint(task.prefix, task.begin, task.end, lengths)
    reused = _is_current(task, source) and not os.path.lexists(slot.lock)
    if not reused:
        make_folder(os.path.dirname(slot.record) or ".")
        with lock_slot(slot):
            reused = _is_current(task, source) or _write_dataset(task, lengths, source)
    return IndexResult(
        name=task.name,
        paths=(slot.paths[-1], slot.record, *slot.paths[:-1]),
        num_samples=task.epochs.num_samples,
        num_epochs=task.epochs.num_epochs,
        file_bytes=task.file_bytes,
        seconds=time.monotonic() - started,
        reused=reused,
    )


def build_arrays(
    lengths: NDArray[np.int32], epochs: EpochCounts, *, begin: int, rule: SampleRule, seed: int, threads: int = 1
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """Build document, sample and shuffle index of the sequences [begin, begin + len(lengths)).

    Args:
        lengths: Tokens of each sequence.
        epochs: The result of `count_epochs` for the sum of the lengths.
        begin: Id of the first sequence.
        rule: How tokens are cut into samples.
        seed: Seed of the job; one generator serves all three indices, in this order.
        threads: Threads for the sample index.
    """
    from dsindex.indices.document import build_document_index
    from dsindex.indices.sample import build_sample_index
    from dsindex.indices.shuffle import build_shuffle_index

    rng = np.random.RandomState(seed)
    documents = build_document_index(
        begin, begin + len(lengths), epochs.num_epochs, rng=rng, separate_final_epoch=epochs.separate_final_epoch
    )
    samples = build_sample_index(lengths, documents, epochs.num_samples, rule=rule, begin=begin, threads=threads)
    order = build_shuffle_index(epochs.num_samples, shuffled_together=epochs.shuffled_together, rng=rng)
    return documents, samples, order


def _write_dataset(task: GPTIndexTask, lengths: NDArray[np.int32], source: SourceFingerprint) -> bool:
    arrays = build_arrays(lengths, task.epochs, begin=task.begin, rule=task.rule, seed=task.seed, threads=task.threads)
    described = () if task.description is None else (task.description.encode(),)
    record = {**_made_by(), "settings": dict(task.settings), "source": source.as_record()}
    return write_slot(task.slot, (*arrays, *described), record)


def _made_by() -> dict[str, Any]:
    return {"dsindex": __version__, "numpy": np.__version__}


def _is_current(task: GPTIndexTask, source: SourceFingerprint) -> bool:
    """Tell whether this cache exists with the recorded sizes, built from the same lengths and options."""
    record = read_record(task.slot.record)
    if record is None or record.get("settings") != dict(task.settings) or not has_recorded_files(task.slot, record):
        return False
    recorded = record.get("source")
    if not isinstance(recorded, dict) or recorded.get("lengths_digest") != source.lengths_digest:
        return False
    same_bounds = (recorded.get("begin"), recorded.get("end")) == (source.begin, source.end)
    return same_bounds and sum(map(os.path.getsize, task.array_paths)) == task.file_bytes


def _build_blend(task: BlendIndexTask, started: float) -> IndexResult:
    from dsindex.indices.greedy import blend_by_weights, blend_exhaustively

    if task.size is None:
        datasets, samples = blend_exhaustively([int(length) for length in task.weights])
    else:
        datasets, samples = blend_by_weights(task.weights, task.size)
    drawn = Counter(dict(enumerate(np.bincount(datasets, minlength=len(task.prefixes)).tolist())))
    check_draws(drawn, task.lengths, task.prefixes, place=task.name, surplus=task.surplus)
    slot = task.files.slot
    make_folder(os.path.dirname(slot.record) or ".")
    with lock_slot(slot):
        reused = write_slot(slot, (datasets, samples, task.description.encode()), _made_by())
    return IndexResult(
        name=task.name,
        paths=(slot.paths[-1], slot.record, *slot.paths[:-1]),
        num_samples=len(datasets),
        num_epochs=None,
        file_bytes=task.file_bytes,
        seconds=time.monotonic() - started,
        reused=reused,
    )
