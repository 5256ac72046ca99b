"""The unit of work of an index job: build one cache, on any executor.

Tasks are small and picklable; they contain paths and counts. If two tasks build the same cache at the same time, one
waits for the other and then finds it built.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex import __version__
from dsindex.errors import InputError, LimitError, OutputError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.index.blend import as_number, check_draws
from dsindex.index.cache import CacheFiles, SourceFingerprint, array_bytes, count_tokens, fingerprint, read_lengths
from dsindex.index.continuing import build_continued_arrays, build_continued_blend
from dsindex.index.epochs import (
    BLEND_DTYPES,
    DOCUMENT_DTYPE,
    ORDER_SETTINGS,
    PLAN,
    STOCK_ORDER,
    DocumentOrder,
    sample_dtype,
    shuffle_dtype,
    split_bounds,
)
from dsindex.index.needed_caches import PartCounts
from dsindex.index.slot import CacheSlot, has_recorded_files, lock_slot, read_record, write_slot
from dsindex.store.reading import digest_file, is_stored, stored_size
from dsindex.store.storage import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from dsindex.index.continuing import ContinuedBlend, ContinuedIndex
    from dsindex.index.epochs import EpochCounts, Part, SampleRule


# Find out how much memory is available, and refuse or delay tasks that do not fit.

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


def available_memory() -> int | None:
    """Return the bytes available without swapping on the machine, or in the control group if that is less.

    Files that a control group has read or written count as its usage, and are dropped once others need their memory.

    Returns:
        None if the system does not report it.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        limits += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit_path, usage_path, statistics_path in _CGROUP_FILES:
        # Absent, or without a limit "max"; v1 then reports a number near 2**63, which the minimum ignores.
        with contextlib.suppress(OSError, ValueError):
            free = _read_number(limit_path) - _read_number(usage_path)
            limits.append(max(0, free + _read_droppable(statistics_path)))
    return min(limits, default=None)


def _read_droppable(path: str) -> int:
    """Return the bytes of files that a control group, with those below it, has not used lately."""
    with open(path, encoding="ascii") as file:
        counts = dict(line.split() for line in file)
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _read_number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def check_memory(needed_bytes: int, *, place: str, what: str) -> None:
    """Refuse work that does not fit into memory, before it allocates anything.

    Raises:
        LimitError: With the needed and the available memory.
    """
    available = available_memory()
    if available is not None and needed_bytes > available:
        raise LimitError(
            f"{place}: {what} takes {show_bytes(needed_bytes)} of memory and {show_bytes(available)} are available; "
            "use a machine with more, request fewer samples, or split the dataset and blend the parts"
        )


class MemoryGate:
    """Lets tasks of one process run concurrently as long as they fit into memory together; others wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reserved = 0

    @contextlib.contextmanager
    def reserve(self, needed_bytes: int, *, place: str, what: str) -> Iterator[None]:
        """Wait until `needed_bytes` fit beside the running tasks, then reserve them.

        Raises:
            LimitError: If they do not fit even alone.
        """
        with self._changed:
            while self._reserved:
                available = available_memory()
                # Running tasks may not have touched their memory yet, so their whole reservation counts.
                if available is None or self._reserved + needed_bytes <= available:
                    break
                self._changed.wait()
            else:
                check_memory(needed_bytes, place=place, what=what)
            self._reserved += needed_bytes
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= needed_bytes
                self._changed.notify_all()


def show_bytes(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> show_bytes(1536), show_bytes(5 << 30)
    ('1.5 KiB', '5.0 GiB')
    """
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


_GATE = MemoryGate()

LOOP_BYTES = 128 << 20
"""Memory that numba and its kernels take in addition to the arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """Task of counting the tokens of a dataset's parts in train, valid and test."""

    prefix: str
    parts: tuple[Part | None, ...]
    """The parts as shares; None for a part that is not needed."""


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
    files: CacheFiles
    description: str
    settings: Mapping[str, Any]
    """Options for the record that the hash does not cover."""
    threads: int = 1
    order: DocumentOrder = STOCK_ORDER
    continued: ContinuedIndex | None = None
    """What goes before the epochs that are built, if they are planned over time."""

    @property
    def slot(self) -> CacheSlot:
        """The files in the order in which they are written."""
        return self.files.slot

    @property
    def num_positions(self) -> int:
        """Entries of the document index."""
        if self.continued is not None:
            return self.continued.num_positions
        return self.epochs.num_epochs * (self.order.entries or self.end - self.begin)

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
        # Which samples are left, and their epochs; the numbers of a file, and how often each was seen.
        marks = 0 if self.continued is None else 10 * self.epochs.num_samples
        marks += 0 if self.order.digest is None else 32 * (self.order.entries or self.end - self.begin)
        return self.file_bytes + 2 * 4 * (self.end - self.begin) + marks + LOOP_BYTES


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
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the record tells of a plan over time."""
    continued: ContinuedBlend | None = None
    requested: int | None = None
    """Samples that the job reads, if the blend has more."""

    @property
    def slot(self) -> CacheSlot:
        """The files in the order in which they are written."""
        return self.files.slot

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
class BuiltCache:
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
        is_weight = as_number(os.path.basename(task.prefix)) is not None
        remedy = "prefix after each weight" if is_weight else "prefix of a .bin and .idx, without the suffix"
        raise InputError(f"{task.prefix}.idx: no such file; give the {remedy}")
    index = read_index(f"{task.prefix}.idx")
    has_tokens = is_stored(f"{task.prefix}.bin")
    bin_size_bytes = stored_size(f"{task.prefix}.bin") if has_tokens else None
    check_index(f"{task.prefix}.idx", index, bin_size_bytes=bin_size_bytes)
    lengths = index.sequence_lengths
    bounds = [None if part is None else split_bounds(part, len(lengths)) for part in task.parts]
    return [
        None if pair is None else PartCounts(begin=pair[0], end=pair[1], tokens=count_tokens(lengths[slice(*pair)]))
        for pair in bounds
    ]


def build_index_cache(task: IndexTask) -> BuiltCache:
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


def _build_dataset(task: GPTIndexTask, started: float) -> BuiltCache:
    slot = task.slot
    lengths = read_lengths(task.prefix, task.begin, task.end)
    source = fingerprint(task.prefix, task.begin, task.end, lengths)
    reused = _is_current(task, source) and not os.path.lexists(slot.lock)
    if not reused:
        _require_same_order(task)
        make_folder(os.path.dirname(slot.record) or ".")
        with lock_slot(slot):
            reused = _is_current(task, source) or _write_dataset(task, lengths, source)
    return BuiltCache(
        name=task.name,
        paths=(slot.paths[-1], slot.record, *slot.paths[:-1]),
        num_samples=task.epochs.num_samples,
        num_epochs=task.epochs.num_epochs,
        file_bytes=task.file_bytes,
        seconds=time.monotonic() - started,
        reused=reused,
    )


def build_arrays(
    lengths: NDArray[np.int32],
    epochs: EpochCounts,
    *,
    begin: int,
    rule: SampleRule,
    seed: int,
    threads: int = 1,
    order: DocumentOrder = STOCK_ORDER,
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """Build document, sample and shuffle index of the sequences [begin, begin + len(lengths)).

    Args:
        lengths: Tokens of each sequence.
        epochs: The result of `count_epochs` for the sum of the lengths.
        begin: Id of the first sequence.
        rule: How tokens are cut into samples.
        seed: Seed of the job; one generator serves all three indices, in this order.
        threads: Threads for the sample index.
        order: The order of documents and samples.

    Raises:
        InputError: If the order is a file that does not have each document as often as it should.
    """
    from dsindex.index.arrays import build_document_index, build_sample_index, build_shuffle_index

    rng = np.random.RandomState(seed)
    if order.is_stock:
        documents = build_document_index(
            begin, begin + len(lengths), epochs.num_epochs, rng=rng, separate_final_epoch=epochs.separate_final_epoch
        )
    else:
        from dsindex.index.document_order import build_ordered_document_index

        documents = build_ordered_document_index(
            lengths, epochs.num_epochs, begin=begin, sequence_length=rule.sequence_length, order=order, rng=rng
        )
    samples = build_sample_index(lengths, documents, epochs.num_samples, rule=rule, begin=begin, threads=threads)
    if order.samples == "never":
        return documents, samples, np.arange(epochs.num_samples, dtype=shuffle_dtype(epochs.num_samples))
    borders = [epochs.shuffled_together] if epochs.separate_final_epoch else []
    if order.samples == "separately":
        # The first samples that begin in each epoch.
        first = (-(-epoch * epochs.tokens_per_epoch // rule.sequence_length) for epoch in range(1, epochs.num_epochs))
        borders = [min(sample, epochs.num_samples) for sample in first]
    return documents, samples, build_shuffle_index(epochs.num_samples, borders=borders, rng=rng)


def _write_dataset(task: GPTIndexTask, lengths: NDArray[np.int32], source: SourceFingerprint) -> bool:
    shared: dict[str, Any] = {"begin": task.begin, "rule": task.rule, "seed": task.seed, "threads": task.threads}
    if task.continued is not None:
        arrays = build_continued_arrays(task.continued, lengths, order=task.order, place=task.name, **shared)
    else:
        if task.order.digest is not None and digest_file(task.order.documents) != task.order.digest:
            raise InputError(f"{task.order.documents}: changed while its cache was built; start again")
        arrays = build_arrays(lengths, task.epochs, order=task.order, **shared)
    record = {**_made_by(), "settings": dict(task.settings), "source": source.as_record()}
    return write_slot(task.slot, (*arrays, task.description.encode()), record)


def _made_by() -> dict[str, Any]:
    return {"dsindex": __version__, "numpy": np.__version__}


def _require_same_order(task: IndexTask) -> None:
    """Refuse to replace a cache of another document order: a job would train on something else under the same name.

    Raises:
        OutputError: If there is one.
    """
    there, wanted = recorded_order(read_record(task.slot.record)), recorded_order({"settings": task.settings}) or {}
    if there is not None and there != wanted and task.slot.exists():
        raise OutputError(
            f"{task.slot.paths[0]}: the cache of this name has {show_order(there)}, not {show_order(wanted)}; "
            "Megatron's names do not tell document orders apart: choose another --data-cache-path, or move it away"
        )


def recorded_order(record: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the document order in a cache's record, as `DocumentOrder.as_settings`; None without a record."""
    if record is None or "building" in record:
        return None
    settings = record.get("settings", {})
    if not isinstance(settings, dict):
        return None
    return {key: str(value) for key, value in settings.items() if key in {*ORDER_SETTINGS, PLAN}}


def show_order(settings: Mapping[str, str]) -> str:
    """Return a recorded document order in words.

    >>> show_order({}), show_order({"document_order": "packed", "shuffle_epochs": "separately"})
    ("Megatron's document order", "the document order 'packed', epochs shuffled separately")
    """
    if not settings:
        return "Megatron's document order"
    shuffled = settings.get("shuffle_epochs", "together")
    how = {"together": "", "separately": ", epochs shuffled separately", "never": ", samples not shuffled"}
    plan = settings.get(PLAN)
    if "document_order" not in settings:
        return str(plan)
    digest = f" ({settings['document_order_digest'][:8]})" if "document_order_digest" in settings else ""
    order = f"the document order {settings['document_order']!r}{digest}{how.get(shuffled, '')}"
    return order if plan is None else f"{order}, {plan}"


def _is_current(task: GPTIndexTask, source: SourceFingerprint) -> bool:
    """Tell whether this cache exists with the recorded sizes, built from the same lengths and options."""
    record = read_record(task.slot.record)
    if record is None or record.get("settings") != dict(task.settings) or not has_recorded_files(task.slot, record):
        return False
    recorded = record.get("source")
    if not isinstance(recorded, dict) or recorded.get("lengths_digest") != source.lengths_digest:
        return False
    same_bounds = (recorded.get("begin"), recorded.get("end")) == (source.begin, source.end)
    return same_bounds and sum(map(os.path.getsize, task.slot.paths[:-1])) == task.file_bytes


def _build_blend(task: BlendIndexTask, started: float) -> BuiltCache:
    from dsindex.index.arrays import blend_by_weights, blend_exhaustively

    _require_same_order(task)
    if task.continued is not None:
        datasets, samples = build_continued_blend(task.continued)
    elif task.size is None:
        datasets, samples = blend_exhaustively([int(length) for length in task.weights])
    else:
        datasets, samples = blend_by_weights(task.weights, task.size)
    drawn = Counter(dict(enumerate(np.bincount(datasets, minlength=len(task.prefixes)).tolist())))
    check_draws(drawn, task.lengths, task.prefixes, place=task.name, surplus=task.surplus)
    slot = task.slot
    make_folder(os.path.dirname(slot.record) or ".")
    record = {**_made_by(), **({"settings": dict(task.settings)} if task.settings else {})}
    with lock_slot(slot):
        reused = write_slot(slot, (datasets, samples, task.description.encode()), record)
    return BuiltCache(
        name=task.name,
        paths=(slot.paths[-1], slot.record, *slot.paths[:-1]),
        num_samples=len(datasets),
        num_epochs=None,
        file_bytes=task.file_bytes,
        seconds=time.monotonic() - started,
        reused=reused,
    )
