"""Exports of `dsindex instruct`: folders of Parquet files for other trainers. dsindex.chat.exports makes their rows.

An export is made from the published tokens and masks, so its bytes do not depend on shards, workers or crashes. One
rename publishes its folder together with its manifest.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dsindex.chat.exports import (
    COLUMNS,
    ExportFile,
    describe_packs,
    export_schema,
    lay_out_bridge_packs,
    make_rows,
    plan_files,
)
from dsindex.commands.instruct_packs import read_published
from dsindex.commands.instruct_shards import keys_of
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import lay_out_one_per_block, open_masked, packing_prefix, read_layout
from dsindex.errors import InputError, OutputError
from dsindex.formats.manifest import EXPORT_MANIFEST, ExportManifest, read_export_manifest
from dsindex.runtime.dispatch import run_in_order
from dsindex.runtime.executors import Call
from dsindex.runtime.plan import make_plan
from dsindex.runtime.publish import Artifact, hold_artifacts, publish
from dsindex.store.local import StoredFile, atomic_writer, make_folder, path_exists
from dsindex.store.protocol import replace_file
from dsindex.store.read import digest_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.options.instruct import ExportKind, InstructConfig
    from dsindex.runtime.executors import Executor
    from dsindex.runtime.progress import Reporter

FORMAT = 3
"""Version of the exports. It is increased when a change of the code gives different bytes for the same datasets."""
SPLIT_NAMES = {None: "train", "train": "train", "valid": "validation", "test": "test"}
"""Split → its name in exports, which is the name that the `datasets` library and the trainers use."""
METADATA_FILE = "packed_metadata.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeExport:
    """A published export."""

    kind: ExportKind
    path: str
    """Path of the folder; it begins with the output prefix, which may be relative."""
    splits: dict[str, dict[str, int]]
    """Split → its numbers of rows, sequences, tokens, trainable tokens and targets."""
    already_complete: bool


def examine_exports(config: InstructConfig, eos_id: int | None) -> None:
    """Check that exports can be made: each folder is absent, or contains only the files that its manifest lists.

    Raises:
        InputError: If padding needs an EOS and the tokenizer has none.
        OutputError: If a folder contains any other file.
        FormatError: If a manifest cannot be read.
    """
    if config.export and config.pad_to_multiple > 1 and eos_id is None:
        raise InputError(
            "--export with --pad-to-multiple: the tokenizer has no EOS to pad with",
            hint="name it as eos_token in its tokenizer_config.json, or among the special_tokens of CONFIG",
        )
    for path in filter(path_exists, (_folder_of(config, kind) for kind in config.export)):
        manifest = read_export_manifest(path)
        names = os.listdir(path) if os.path.isdir(path) else []
        foreign_names = sorted({*names} - {EXPORT_MANIFEST, *(manifest.digests if manifest else ())})
        if manifest is None or foreign_names:
            file = os.path.join(path, *foreign_names[:1])
            problem = "not part of an export of dsindex, whose folder this has to be"
            raise OutputError(f"{file}: {problem}", hint="move it away, or choose another name for the output")


def _folder_of(config: InstructConfig, kind: ExportKind) -> str:
    """Return the folder of an export; its name includes the length and padding of its packs."""
    shape = "" if config.seq_length is None else packing_prefix("", config.seq_length, config.pad_to_multiple)
    return f"{config.output_prefix}_{kind}{shape.removeprefix('_packing')}"


def make_exports(
    config: InstructConfig,
    prefixes: Mapping[str | None, str],
    *,
    eos_id: int | None,
    executor: Executor,
    reporter: Reporter,
) -> list[MadeExport]:
    """Make the exports that are missing, and replace those that were made from different datasets or options.

    Args:
        config: The options of the job.
        prefixes: Split → prefix of its published datasets, which have packs if --seq-length is set.
        eos_id: The padding token; may be None if nothing is padded.
        executor: Runs the calls that write the files.
        reporter: Shows progress.

    Raises:
        DsindexError: If an export cannot be made; its folder is then unchanged.
    """
    import pyarrow as pa

    keys = [key for split in prefixes for key in keys_of(split)]
    contents = {key: read_published(f"{config.output_prefix}_{key}").content for key in keys}
    plan = {
        "format": FORMAT,
        "sources": {key: {end: pair.digests[end].digest for end in ("bin", "idx")} for key, pair in contents.items()},
        "seq-length": config.seq_length,
        "pad-to-multiple": config.pad_to_multiple,
        "eos": eos_id if config.pad_to_multiple > 1 else None,
        "drops": config.longer_than_pack == "drop",
    }
    exports = []
    for kind in dict.fromkeys(config.export):
        path, export_plan = _folder_of(config, kind), {"export": kind, **plan}
        artifact = Artifact(finals=(os.path.abspath(path),), plan_id=make_plan(export_plan).plan_id)
        with hold_artifacts([path], [artifact]) as has_published:
            manifest = read_export_manifest(path)
            is_made = (
                manifest is not None and manifest.plan == export_plan and _is_whole(path, manifest, reads=has_published)
            )
            if manifest is not None and is_made:
                exports.append(MadeExport(kind=kind, path=path, splits=manifest.splits, already_complete=True))
                continue
            folder = artifact.partial(artifact.finals[0])
            make_folder(folder)
            splits = _write_files(kind, config, prefixes, folder, eos_id or 0, executor, reporter)
            files = {name: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
            manifest = ExportManifest(
                kind=kind,
                plan=export_plan,
                tokenizer=msgspec.to_builtins(contents[keys[0]].tokenizer),
                writer=f"pyarrow {pa.__version__}",
                splits=splits,
                digests={
                    name: StoredFile(name=name, size_bytes=os.path.getsize(file), digest=digest_file(file))
                    for name, file in files.items()
                },
            )
            encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            replace_file(os.path.join(folder, EXPORT_MANIFEST), encoded)
            publish([artifact], {artifact.finals[0]: None})
            exports.append(MadeExport(kind=kind, path=path, splits=manifest.splits, already_complete=False))
    return exports


def _is_whole(path: str, manifest: ExportManifest, *, reads: bool) -> bool:
    files = {os.path.join(path, name): file for name, file in manifest.digests.items()}
    return all(
        os.path.isfile(name)
        and os.path.getsize(name) == file.size_bytes
        and not (reads and digest_file(name) != file.digest)
        for name, file in files.items()
    )


def _write_files(
    kind: ExportKind,
    config: InstructConfig,
    prefixes: Mapping[str | None, str],
    folder: str,
    pad_id: int,
    executor: Executor,
    reporter: Reporter,
) -> dict[str, dict[str, int]]:
    """Write all files of an export; return exported split name → its counts."""
    tasks: list[ExportFile] = []
    metadata, counts = [], {SPLIT_NAMES[split]: Counter[str]() for split in prefixes}
    length, multiple = config.seq_length, config.pad_to_multiple
    form = kind if kind in COLUMNS else "rows" if length is None else "packs"
    for split, prefix in prefixes.items():
        lengths = open_masked(prefix)[0].sequence_lengths
        if length is None:
            layout = lay_out_one_per_block(lengths, 0)
        elif kind == "bridge":
            drops = config.longer_than_pack == "drop"
            layout = lay_out_bridge_packs(lengths, sequence_length=length, multiple=multiple, drop_longer=drops)
            metadata.append(describe_packs(lengths, layout, multiple))
        else:
            packs = f"{prefix}{packing_prefix('', length, multiple)}"
            layout = read_layout(packs, lengths, sequence_length=length, pad_to_multiple=multiple)
        path = os.path.join(folder, SPLIT_NAMES[split])
        tasks += plan_files(form, prefix, lengths, layout, multiple=multiple, pad_id=pad_id, path=path)
    if kind == "bridge":
        replace_file(os.path.join(folder, METADATA_FILE), msgspec.json.encode(list(filter(None, metadata))))
    calls = [
        Call(name=os.path.basename(task.path), place=task.path, function=write_file, arguments=(task,))
        for task in tasks
    ]
    reporter.stage("export", total=len(calls), unit="files")
    all_counts = run_in_order(executor, calls)
    for task, file_counts in zip(tasks, all_counts, strict=True):
        counts[os.path.basename(task.path).partition("-")[0]].update(file_counts)
        reporter.advance(1)
    return {split: dict(split_counts) for split, split_counts in counts.items()}


def write_file(task: ExportFile) -> Counter[str]:
    """Write a file, keeping one row group in memory; return its counts, with the names in `ExportManifest.splits`.

    Raises:
        FormatError: If tokens or masks are missing or damaged.
        OutputError: If the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, masks = (IndexedDataset(f"{task.prefix}_{key}", check=False) for key in keys_of(None))
    counts = Counter(rows=0, sequences=0, tokens=0, trainable=0, targets=0)
    options = {"compression": "zstd", "store_schema": False}
    with atomic_writer(task.path) as file:
        sink = pa.PythonFile(file, mode="w")
        with pq.ParquetWriter(sink, export_schema(task.form), **options) as writer:
            for begin in range(0, len(task.starts) - 1, task.rows_per_group):
                starts = task.starts[begin : begin + task.rows_per_group + 1]
                sequences = task.sequences[starts[0] : starts[-1]]
                tokens, offsets = texts.take(sequences)
                mask, _ = masks.take(sequences)
                batch = make_rows(task, tokens, mask, offsets, sequences=sequences, starts=starts - starts[0])
                writer.write_batch(batch, row_group_size=batch.num_rows)
                firsts = offsets[:-1][np.diff(offsets) > 0]
                trainable = int(np.count_nonzero(mask))
                counts.update(
                    rows=batch.num_rows,
                    sequences=len(sequences),
                    tokens=len(tokens),
                    trainable=trainable,
                    targets=trainable - int(np.count_nonzero(mask[firsts])),
                )
    return counts
