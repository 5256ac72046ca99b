"""`dsindex build --dry-run`: sizes, tokens, memory and disk, from a sample of the text; nothing is written."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import count, format_room, format_size
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.report import Report
from dsindex.engine.sample import encode_piece, extrapolate, spread_pieces
from dsindex.engine.source import open_source
from dsindex.engine.start import WORKER_MEMORY_BYTES
from dsindex.machine import available_cpus
from dsindex.options.config import work_folder_path
from dsindex.store.storage import free_bytes, nearest_folder
from dsindex.store.urls import folder_of, local_paths

if TYPE_CHECKING:
    from dsindex.engine.room import Estimate
    from dsindex.engine.sample import Piece, PieceCounts
    from dsindex.engine.source import TextSource
    from dsindex.options.build import BuildConfig

PIECE_BYTES = 256 << 10
NUM_PIECES = 256
"""Pieces of the sample, spread over the input: 64 MiB in all, or all of a small input."""
IDX_BYTES = 4 + 8 + 8
"""Of a document in an `.idx`: length, pointer and boundary."""
PROVENANCE_BYTES = 16
"""Of a document in a shard."""
LOCAL_BASE_BYTES = 240 << 20
LOCAL_WORKER_BYTES = 150 << 20
"""Peak memory of a thread, beyond LOCAL_BASE_BYTES for libraries and driver (measured: 561 MB with 2 threads)."""
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult(Report):
    """The estimate of a build."""

    source: TextSource
    estimate: Estimate
    """Documents, each counted once for all keys together, and tokens of all keys, EOD included."""
    bad_records: int
    """In the sample."""
    token_dtype: str
    workers: int
    num_shards: int
    bin_bytes: float
    idx_bytes: float
    work_bytes: float
    """Size of the shards, until they are merged."""
    memory_bytes: int
    limits: tuple[str, ...]
    """Sentences about what the build would not find room for."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(about {self.estimate.documents:,.0f} documents, {self.estimate.tokens:,.0f} tokens)"
        )

    def lines(self) -> list[str]:
        """Return the estimate as text."""
        source = self.source
        largest = max(file.shard_bytes for file in source.inputs)
        rows = {
            "inputs": f"{len(source.inputs):,}, {format_size(source.total_bytes)}",
            "shards": f"{self.num_shards:,} of at most {largest / 2**20:,.3g} MiB of input",
            "documents": f"about {self.estimate.shown_documents}",
            "tokens": f"about {self.estimate.shown_tokens}, {self.token_dtype}, encoded by {source.engine.name}",
            "output": f"about {format_size(self.bin_bytes + self.idx_bytes)}: "
            f".bin {format_size(self.bin_bytes)}, .idx {format_size(self.idx_bytes)}",
            "work folder": f"at most about {format_size(self.work_bytes)}, until the end",
            "memory": f"about {format_size(self.memory_bytes)} with {count(self.workers, 'worker')} here; on Ray "
            f"{format_size(WORKER_MEMORY_BYTES)} per worker",
        }
        lines = [f"{name:12} {text}" for name, text in rows.items()]
        if self.bad_records:
            lines.append(f"{'bad records':12} {self.bad_records:,} in the sample: see --on-bad-record")
        return [*lines, *(f"{'note':12} {text}" for text in source.first_notes()), *self.limits]


def estimate_build(config: BuildConfig) -> EstimateResult:
    """Estimate what a build would take.

    Raises:
        DsindexError: If the inputs or the tokenizer cannot be used.
    """
    source = open_source(config, append_eod=config.append_eod, columns=config.selection().paths)
    counts = _encode_sample(source, config)
    keys, workers = len(config.output_names), config.workers or available_cpus()
    eod = keys if source.eod_id is not None else 0
    estimate = extrapolate(counts, source.total_bytes, eod_per_document=eod)
    estimate = estimate.scaled(sum(sample.high - sample.low for sample in config.samples))
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    bin_bytes, idx_bytes = estimate.tokens * dtype.itemsize, estimate.documents * keys * IDX_BYTES
    work_bytes = bin_bytes + idx_bytes + (0.0 if config.no_provenance else estimate.documents * PROVENANCE_BYTES)
    num_shards = len(source.tasks())
    limits = _missing_room(
        {folder_of(config.output_prefix): bin_bytes + idx_bytes, work_folder_path(config): work_bytes}
    )
    if estimate.documents > INT32_MAX:
        limits.append(
            f"{estimate.documents:,.0f} documents: Megatron counts at most {INT32_MAX:,}; build several datasets"
        )
    return EstimateResult(
        source=source,
        estimate=estimate,
        bad_records=sum(each.bad_records for each in counts),
        token_dtype=str(dtype),
        workers=workers,
        num_shards=num_shards,
        bin_bytes=bin_bytes,
        idx_bytes=idx_bytes,
        work_bytes=work_bytes,
        memory_bytes=LOCAL_BASE_BYTES + min(workers, num_shards) * LOCAL_WORKER_BYTES,
        limits=tuple(limits),
    )


def _encode_sample(source: TextSource, config: BuildConfig) -> list[PieceCounts]:
    selection = config.selection(source.tokenizer.vocabulary_size)
    pieces = spread_pieces(source.inputs, num_pieces=NUM_PIECES, piece_bytes=PIECE_BYTES)

    def encode(piece: Piece) -> PieceCounts:
        return encode_piece(piece, selection, source.tokenizer, source.engine, max_record_bytes=config.max_record_size)

    with ThreadPoolExecutor(available_cpus()) as pool:
        return list(pool.map(encode, pieces))


def _missing_room(needs: dict[str, float]) -> list[str]:
    """Return sentences about folders of this machine with too little space; a folder need not exist yet."""
    by_device: dict[int, list[str]] = {}
    for folder in local_paths(needs):
        by_device.setdefault(os.stat(nearest_folder(folder)).st_dev, []).append(folder)
    missing = []
    for folders in by_device.values():
        needed, free = sum(needs[folder] for folder in folders), free_bytes(nearest_folder(folders[0]))
        if needed > free:
            wanted, there = format_room(needed, free)
            missing.append(f"{' and '.join(folders)}: about {wanted} are needed, {there} are free; make room")
    return missing
