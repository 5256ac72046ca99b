"""`dsindex build --dry-run`: sizes, tokens, memory and disk, from a sample of the text; nothing is written.

Every job compares the disk space that it needs with what is free.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dsindex.errors import OutputError
from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.formats.quarantine import BadRecords, group_bad_records
from dsindex.messages import format_size
from dsindex.options.common import work_folder_path
from dsindex.runtime.preflight import encode_piece, extrapolate, spread_pieces
from dsindex.runtime.source import open_source
from dsindex.runtime.work_folder import SHARDS_FOLDER
from dsindex.store.local import free_bytes, holds_writes, nearest_folder
from dsindex.store.machine import available_cpus
from dsindex.store.urls import folder_of, joined
from dsindex.text.streams import LARGEST_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.options.build import BuildConfig
    from dsindex.options.common import WorkConfig
    from dsindex.runtime.preflight import Estimate

PIECE_BYTES = 256 << 10
NUM_PIECES = 256
"""Pieces of the sample, spread over the input: 64 MiB in all, or all of a small input."""
IDX_BYTES = 4 + 8 + 8
"""Of a document in an `.idx`: length, pointer and boundary."""
PROVENANCE_BYTES = 16
"""Of a document in a shard."""
LATE_SHARE = 0.3
"""Share of the shards that are there at a time on a disk, where their tokens go as they are merged."""
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult:
    """The estimate of a build."""

    num_inputs: int
    input_bytes: int
    num_shards: int
    largest_shard_bytes: int
    """The most input of a shard."""
    estimate: Estimate
    """Documents, each counted once for all keys together, and tokens of all keys, EOD included."""
    bad_records: tuple[BadRecords, ...]
    """Those of the sample, by input and reason."""
    token_dtype: str
    engine: str
    """The library that encodes."""
    workers: int
    bin_bytes: float
    idx_bytes: float
    work_bytes: float
    """Size of the shards, until they are merged."""
    notes: tuple[str, ...]
    limits: tuple[str, ...]
    """Sentences about what the build would not find room for."""


def estimate_build(config: BuildConfig) -> EstimateResult:
    """Estimate what a build would take.

    Raises:
        DsindexError: If the inputs or the tokenizer cannot be used.
    """
    source = open_source(config, append_eod=config.append_eod, selection=config.selection())
    encode = partial(
        encode_piece,
        selection=config.selection(source.tokenizer.vocabulary_size),
        tokenizer=source.tokenizer,
        engine=source.engine,
        max_record_bytes=config.max_record_size or LARGEST_RECORD_BYTES,
    )
    with ThreadPoolExecutor(available_cpus()) as pool:
        counts = list(pool.map(encode, spread_pieces(source.inputs, num_pieces=NUM_PIECES, piece_bytes=PIECE_BYTES)))
    keys, tasks = len(config.output_names), source.tasks()
    eod = keys if source.eod_id is not None else 0
    estimate = extrapolate(counts, source.inputs, eod_per_document=eod)
    estimate = estimate.scaled(sum(sample.high - sample.low for sample in config.samples))
    if not any(each.documents for each in counts):
        estimate = estimate.scaled(0)
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    bin_bytes, idx_bytes = estimate.tokens * dtype.itemsize, estimate.documents * keys * IDX_BYTES
    provenance_bytes = 0.0 if config.no_provenance else estimate.documents * PROVENANCE_BYTES
    limits = []
    try:
        check_room(config, estimate, itemsize=dtype.itemsize, num_keys=keys)
    except OutputError as error:
        limits.append(error.sentence)
    if estimate.documents > INT32_MAX:
        limits.append(
            f"{estimate.documents:,.0f} documents: Megatron counts at most {INT32_MAX:,}; build several datasets"
        )
    return EstimateResult(
        num_inputs=len(source.inputs),
        input_bytes=source.total_bytes,
        num_shards=len(tasks),
        largest_shard_bytes=max(task.stored_bytes for task in tasks),
        estimate=estimate,
        bad_records=group_bad_records(record for each in counts for record in each.bad),
        token_dtype=str(dtype),
        engine=source.engine.name,
        workers=config.workers or available_cpus(),
        bin_bytes=bin_bytes,
        idx_bytes=idx_bytes,
        work_bytes=bin_bytes + idx_bytes + provenance_bytes,
        notes=tuple(source.first_notes()),
        limits=tuple(limits),
    )


def check_room(config: WorkConfig, estimate: Estimate, *, itemsize: int, num_keys: int) -> None:
    """Refuse a job whose shards and output would not fit on disk, unless an earlier run has begun it.

    Args:
        config: The options of the job.
        estimate: Its estimated size.
        itemsize: Bytes per token on disk.
        num_keys: Number of keys, each of which makes a dataset.

    Raises:
        OutputError: If space is short, naming the folder and the needed and free space.
    """
    output_folder, work_dir = folder_of(config.output_prefix), work_folder_path(config)
    if not holds_writes(work_dir) and os.path.exists(joined(work_dir, SHARDS_FOLDER)):
        return
    output = int(estimate.tokens * itemsize + estimate.documents * num_keys * IDX_BYTES)
    shards = output + int(estimate.documents * PROVENANCE_BYTES)
    if not (config.keep_shards or holds_writes(output_folder)):
        shards = int(LATE_SHARE * shards)
    require_room({output_folder: output, work_dir: shards}, what="shards and output")


def require_room(needs: Mapping[str, int], *, what: str) -> None:
    """Refuse to write more than fits on disk.

    Args:
        needs: Folder → estimated bytes, which are added up on each disk.
        what: Names what they are for.

    Raises:
        OutputError: If fewer bytes are free.
    """
    disks = {folder: os.stat(nearest_folder(folder)).st_dev for folder in needs if not holds_writes(folder)}
    for folder, disk in disks.items():
        needed = sum(needs[each] for each in disks if disks[each] == disk)
        if needed > (free := free_bytes(folder)):
            sizes = f"about {format_size(needed)} are needed for {what}, {format_size(free)} are free"
            raise OutputError(f"{folder}: {sizes}; make room, or choose another --output-prefix or --work-dir")
