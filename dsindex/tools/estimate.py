"""Estimate a build's output, time, memory and disk space from a sample that is encoded and timed; nothing is written.

The sample is read, parsed and encoded as in the build, on the same number of threads. The time for writing is computed
from the bytes to write and WRITE_BYTES_PER_SECOND.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import count, format_room
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.merge import range_bytes
from dsindex.engine.sample import Piece, PieceCounts, encode_piece, extrapolate, join_pieces, spread_pieces
from dsindex.engine.source import open_source, select, wanted_columns
from dsindex.engine.start import WORKER_MEMORY_BYTES
from dsindex.execution.local import RECENT_BYTES, available_cpus
from dsindex.execution.progress.displays import format_duration
from dsindex.execution.report import Report
from dsindex.options.config import work_folder_path
from dsindex.store.storage import free_bytes, holds_writes, nearest_folder
from dsindex.store.urls import folder_of, local_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.room import Estimate
    from dsindex.engine.source import TextSource
    from dsindex.options.build import BuildConfig
    from dsindex.text.selection import Selection

PIECE_BYTES = 256 << 10
NUM_PIECES = 256
"""Number of pieces in the sample, spread over the input: 64 MiB in all, or all of a small input."""
WRITE_BYTES_PER_SECOND = 500e6
"""Speed of a local SSD; network storage may be slower or faster."""
SEQUENCE_BYTES = 4 + 8
"""Size of a sequence's length and pointer in an `.idx`."""
BOUNDARY_BYTES = 8
"""Size of a document's boundary in an `.idx`."""
PROVENANCE_BYTES = 16
"""Size of a document's provenance in a shard."""
MERGED_PROVENANCE_BYTES = 2
"""Size of a document's provenance in the merged, compressed file."""
LOCAL_BASE_BYTES = 240 << 20
LOCAL_WORKER_BYTES = 150 << 20
"""Peak memory per thread, beyond LOCAL_BASE_BYTES for libraries and driver (measured: 561 MB with 2 threads)."""
BUCKET_WORKER_BYTES = 115 << 20
"""As much more per thread, beside RECENT_BYTES, if the work folder is in a bucket: shards that are being sent, and text
that was asked for (measured: 816 MiB with 2 threads)."""
DRIVER_SHARD_BYTES = 3 << 10
"""Memory of the driver per shard, measured on plans of a million shards."""

INT32_MAX = 2**31 - 1
S3_MAX_PART_BYTES = 5 << 30
EXT4_MAX_FILE_BYTES = 16 << 40
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """The measurements from encoding a sample."""

    sampled_bytes: float
    """Size of the sample in the stored inputs."""
    bytes_per_second: float
    """Speed of all threads together in the second half of the sample, when caches are warm as in most of a build."""
    threads: int
    estimate: Estimate
    """All inputs by the sample; each record is a document once for all keys together."""
    longest_document: int
    """Length of the longest document, in tokens."""
    bad_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult(Report):
    """The estimate of a whole build."""

    source: TextSource
    sample: SampledRun
    encodes: bool
    """Whether texts are encoded; otherwise token ids are read."""
    workers: int
    num_shards: int
    estimate: Estimate
    """Documents, and tokens of all keys, that the build keeps."""
    token_dtype: str
    bin_bytes: float
    idx_bytes: float
    provenance_bytes: float
    work_bytes: float
    """Size of the shards, until they are merged."""
    encode_seconds: float
    write_seconds: float
    memory_bytes: int
    """Memory on the driver's machine, without Ray's worker processes on their nodes."""
    limits: tuple[str, ...]
    """Sentences about limits that the build would reach."""

    @property
    def documents(self) -> float:
        """Number of documents, each counted once for all keys together."""
        return self.estimate.documents

    @property
    def tokens(self) -> float:
        """Number of tokens of all keys, including EOD."""
        return self.estimate.tokens

    @property
    def output_bytes(self) -> float:
        """Size of all published files."""
        return self.bin_bytes + self.idx_bytes + self.provenance_bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(about {self.documents:,.0f} documents, {self.tokens:,.0f} tokens)"

    def lines(self) -> list[str]:
        """Return the estimate as text."""
        source, sample = self.source, self.sample
        read = f"read and encoded by {source.engine.name}" if self.encodes else "of token ids read"
        rows = {
            "inputs": f"{len(source.inputs):,}, {_size(source.total_bytes)}",
            "sample": f"{_size(sample.sampled_bytes)} {read}, "
            f"{_size(sample.bytes_per_second)}/s with {count(sample.threads, 'thread')}",
            "shards": f"{self.num_shards:,} of at most {max(source.shard_sizes) / 2**20:,.3g} MiB of input",
            "documents": f"about {self.estimate.shown_documents}",
            "tokens": f"about {self.estimate.shown_tokens}, {self.token_dtype}",
            "output": f"about {_size(self.output_bytes)}: .bin {_size(self.bin_bytes)}, "
            f".idx {_size(self.idx_bytes)}, provenance {_size(self.provenance_bytes)}",
            "work folder": f"about {_size(self.work_bytes)} until the end",
            "time": f"about {format_duration(self.encode_seconds + self.write_seconds)} with "
            f"{count(self.workers, 'worker')}: encoding {format_duration(self.encode_seconds)}, "
            f"writing shards and output {format_duration(self.write_seconds)} at {_size(WRITE_BYTES_PER_SECOND)}/s",
            "memory": f"about {_size(self.memory_bytes)} locally; on Ray {_size(WORKER_MEMORY_BYTES)} per worker",
        }
        lines = [f"{name:12} {text}" for name, text in rows.items()]
        if sample.bad_records:
            lines.append(f"{'bad records':12} {sample.bad_records:,} in the sample: see --on-bad-record")
        lines += [f"{'note':12} {text}" for text in source.first_notes(encodes=self.encodes)]
        lines += [f"{'limit':12} {limit}" for limit in self.limits or ("none is near",)]
        return lines


_MANY_SHARDS = 100_000


def run_plan(config: BuildConfig) -> EstimateResult:
    """Estimate a build.

    Raises:
        DsindexError: If the inputs or the tokenizer cannot be used.
    """
    source = open_source(config, append_eod=config.append_eod, columns=wanted_columns(config))
    workers = config.workers or available_cpus()
    sample = run_sample(source, config.output_names, select(config, source.tokenizer), workers=workers)
    estimate = sample.estimate.scaled(sum(sample.high - sample.low for sample in config.samples))
    documents, tokens = estimate.documents, estimate.tokens
    num_keys = len(config.output_names)
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    bin_bytes = tokens * dtype.itemsize
    idx_bytes = documents * num_keys * (SEQUENCE_BYTES + BOUNDARY_BYTES)
    provenance = 0.0 if config.no_provenance else documents * PROVENANCE_BYTES
    work_bytes = shard_bytes = idx_bytes + provenance + bin_bytes
    merged_provenance = 0.0 if config.no_provenance else documents * num_keys * MERGED_PROVENANCE_BYTES
    output_bytes = bin_bytes + idx_bytes + merged_provenance
    num_shards = len(source.tasks())
    threads = min(workers, num_shards)
    work_dir, output_folder = work_folder_path(config), folder_of(config.output_prefix)
    return EstimateResult(
        source=source,
        sample=sample,
        encodes=config.token_ids is None,
        workers=workers,
        num_shards=num_shards,
        estimate=estimate,
        token_dtype=str(dtype),
        bin_bytes=bin_bytes,
        idx_bytes=idx_bytes,
        provenance_bytes=merged_provenance,
        work_bytes=work_bytes,
        encode_seconds=source.total_bytes / sample.bytes_per_second * sample.threads / workers,
        write_seconds=(shard_bytes + output_bytes) / WRITE_BYTES_PER_SECOND,
        memory_bytes=_local_memory(threads, in_bucket=holds_writes(work_dir)) + num_shards * DRIVER_SHARD_BYTES,
        limits=(
            *find_limits(
                documents=documents,
                bin_bytes=bin_bytes / num_keys,
                longest_document=sample.longest_document,
                vocabulary_size=source.tokenizer.vocabulary_size,
                num_shards=num_shards,
                wanted_shard_size=config.shard_size or config.largest_shard,
                shard_size=max(source.shard_sizes),
            ),
            *find_place_limits({output_folder: output_bytes, work_dir: work_bytes}),
        ),
    )


def _local_memory(threads: int, *, in_bucket: bool) -> int:
    """Return the peak memory of the driver's process without what it knows of shards."""
    base = LOCAL_BASE_BYTES + (RECENT_BYTES if in_bucket else 0)
    return base + threads * (LOCAL_WORKER_BYTES + (BUCKET_WORKER_BYTES if in_bucket else 0))


def run_sample(source: TextSource, keys: Sequence[str], selection: Selection, *, workers: int) -> SampledRun:
    """Encode pieces spread over the input, and time the second half of them."""
    from dsindex.text.encoders import make_encoder

    sizes = [file.size_bytes for file in source.inputs]
    pieces = spread_pieces(sizes, num_pieces=NUM_PIECES, piece_bytes=PIECE_BYTES)
    pieces = join_pieces(pieces, source.inputs)
    threads = max(1, min(workers, available_cpus(), len(pieces)))

    def encode(piece: Piece) -> PieceCounts:
        encoder = make_encoder(source.tokenizer, source.engine) if selection.vocabulary_size is None else None
        limit = source.config.max_record_size
        return encode_piece(piece, source.inputs, keys, encoder, selection=selection, max_record_bytes=limit)

    first, second = pieces[::2], pieces[1::2] or pieces
    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(encode, first))
        began = time.perf_counter()
        timed = list(pool.map(encode, second))
        seconds = time.perf_counter() - began
    if second is pieces:
        counts = timed
    else:
        counts += timed
    eod_per_document = len(keys) if source.eod_id is not None else 0
    return SampledRun(
        sampled_bytes=sum(count.stored_bytes for count in counts),
        bytes_per_second=sum(count.stored_bytes for count in timed) / max(seconds, 1e-9),
        threads=threads,
        estimate=extrapolate(counts, source.total_bytes, eod_per_document=eod_per_document),
        longest_document=max(count.longest_text for count in counts),
        bad_records=sum(count.bad_records for count in counts),
    )


def find_limits(
    *,
    documents: float,
    bin_bytes: float,
    longest_document: int,
    vocabulary_size: int,
    num_shards: int,
    wanted_shard_size: int,
    shard_size: int,
) -> list[str]:
    """Return sentences about the limits of formats and readers that a dataset would reach.

    Args:
        documents: Number of documents of one key.
        bin_bytes: Size of one key's `.bin`.
        longest_document: Length of the longest document in the sample, in tokens.
        vocabulary_size: Size of the tokenizer's vocabulary.
        num_shards: Number of shards of the plan.
        wanted_shard_size: The shard size in the options.
        shard_size: The shard size of the plan.
    """
    limits = []
    if documents > INT32_MAX:
        limits.append(
            f"{documents:,.0f} documents: Megatron's document index is int32 and ends at {INT32_MAX:,}, "
            f"and each epoch counts again; make several datasets and blend them"
        )
    if longest_document > INT32_MAX:
        limits.append(
            f"a document of {longest_document:,} tokens: an .idx holds lengths as int32; "
            f"exclude such records with --max-record-size"
        )
    if dtype_for_vocabulary(vocabulary_size).itemsize > 2:
        limits.append(
            f"a vocabulary of {vocabulary_size:,}: tokens take 4 bytes, which readers of uint16 datasets cannot read; "
            f"below 65,500 they take 2"
        )
    part = range_bytes(int(bin_bytes))
    if part > S3_MAX_PART_BYTES:
        limits.append(
            f"a .bin of {bin_bytes / 1e12:,.1f} TB: an S3 upload has at most 10,000 parts of at most 5 GiB, "
            f"but parts of {part / 2**30:,.1f} GiB would be needed; make several datasets and blend them"
        )
    if bin_bytes > EXT4_MAX_FILE_BYTES:
        limits.append(
            f"a .bin of {bin_bytes / 1e12:,.1f} TB: a file on ext4 has at most 16 TiB; use XFS or several datasets"
        )
    if shard_size > wanted_shard_size:
        limits.append(
            f"shards of {shard_size / 2**20:,.0f} MiB instead of {wanted_shard_size / 2**20:,.0f} MiB, "
            f"so that there are at most about {_MANY_SHARDS:,}"
        )
    if num_shards > 2 * _MANY_SHARDS:
        limits.append(
            f"{num_shards:,} shards, since no shard spans two inputs: the driver needs about "
            f"{num_shards * DRIVER_SHARD_BYTES / 1e9:,.1f} GB of memory; join small inputs first"
        )
    return limits


def find_place_limits(needs: dict[str, float], *, mounts: str = "/proc/mounts") -> list[str]:
    """Return sentences about folders with too little space or an unsuitable file system.

    Args:
        needs: Folder → bytes to be written there; a folder need not exist yet, and addresses have no limits.
        mounts: Path of a table of mounts in Linux's format.
    """
    limits = []
    by_device: dict[int, tuple[list[str], float]] = {}
    for folder in local_paths(needs):
        place = nearest_folder(folder)
        kind = file_system(place, mounts=mounts)
        if kind in NETWORK_FILE_SYSTEMS:
            limits.append(
                f"{folder} is on {kind}: nodes see each other's writes only once a file is closed, and writing one "
                f"file from several nodes is slow; a parallel file system, or one machine's own disk, is better"
            )
        folders, bytes_there = by_device.get(os.stat(place).st_dev, ([], 0.0))
        by_device[os.stat(place).st_dev] = ([*folders, folder], bytes_there + needs[folder])
    for folders, needed in by_device.values():
        free = free_bytes(nearest_folder(folders[0]))
        if needed > free:
            wanted, there = format_room(needed, free)
            limits.append(f"{' and '.join(folders)}: about {wanted} are needed, {there} are free")
    return limits


def file_system(folder: str, *, mounts: str = "/proc/mounts") -> str:
    """Return the type of a folder's file system, such as `ext4`; empty if it is unknown."""
    best, kind = "", ""
    path = os.path.realpath(folder)
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            for line in file:
                _, point, name, *_ = line.split(" ")
                point = point.replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, name
    except (OSError, ValueError):
        return ""
    return kind


def _size(size_bytes: float) -> str:
    """Return a size in the unit that suits it.

    >>> _size(999), _size(1.5e6), _size(2.5e13)
    ('999 B', '1.50 MB', '25.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:{_digits(size_bytes)}} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:{_digits(size_bytes)}} TB"


def _digits(value: float) -> str:
    return ".2f" if value < 9.995 else ".1f" if value < 99.95 else ",.0f"
