"""The exports of instruction data: folders of Parquet files that other trainers read as they are.

`parquet`, for TRL, axolotl and transformers: a row is a conversation, or a pack with `--seq-length`.

    input_ids        list<int32>   the tokens
    labels           list<int64>   the token where it is trainable, else -100; not shifted, as transformers shifts them
    attention_mask   list<int8>    1 for each
    position_ids     list<int32>   of packs: from 0 in each conversation
    seq_lengths      list<int32>   of packs: the places of each conversation, as TRL's collator reads them
    sequences        list<int32>   of packs: numbers of the conversations in the dataset; the readers ignore it

`bridge`, for Megatron-Bridge and NeMo: packs in files named `*.idx.parquet`.

    input_ids        list<int32>   the sequences of a pack, one after the other
    loss_mask        list<int8>    1 where the *next* token of the same sequence is trainable
    seq_start_id     list<int32>   where each sequence begins
    sequences        list<int32>   as above

Bridge's readers drop the last token of each sequence from the input and the first from the labels, so a sequence of n
tokens takes n - 1 of the L places of a pack. Their packs are laid out for that; those of `parquet` are `P_packing_L`.
With --pad-to-multiple, sequences are padded with the tokenizer's EOS, by which Bridge's readers (`pad_seq_to_mult`)
find their ends.

An export is a function of the published tokens and masks, so its bytes do not depend on shards, workers or crashes. It
is written to `<folder>.<plan>.partial` and gets its name, with its manifest, in one rename.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from dsindex.datasets.exports import (
    EXPORT_MANIFEST,
    ExportContent,
    ExportedFile,
    ExportedSplit,
    ExportManifest,
    read_export_manifest,
)
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import one_per_block, packing_prefix, read_layout
from dsindex.dtypes import starts_of
from dsindex.engine.dispatch import RetryPolicy, run_in_order
from dsindex.engine.executors import Call
from dsindex.errors import FormatError, InputError, OutputError
from dsindex.instruction.blocks import BlockLayout, lay_out_blocks
from dsindex.jobs.instruct_shards import keys_of
from dsindex.jobs.packs import read_published
from dsindex.store.reading import digest_file
from dsindex.store.storage import atomic_writer, make_folder, output_error, sync_folder, write_whole
from dsindex.store.urls import with_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.engine.executors import Executor
    from dsindex.engine.progress import Reporter
    from dsindex.options.instruct import ExportKind, InstructConfig

FORMAT = 3
"""Raised whenever the same datasets give other bytes."""
SPLIT_NAMES = {None: "train", "train": "train", "valid": "validation", "test": "test"}
"""A split's names in the exports, as `datasets` and the trainers call them."""
METADATA_FILE = "packed_metadata.json"
IGNORED_LABEL = -100
"""The label on which cross entropy computes no loss."""
ROWS_PER_GROUP = 500
TOKENS_PER_FILE = 1 << 26
"""Tokens of a file, and limit on those of a row group, which is what readers load to get at a row."""
_OF_PACKS = {"position_ids": "int32", "seq_lengths": "int32", "sequences": "int32"}
COLUMNS = {
    "rows": {"input_ids": "int32", "attention_mask": "int8", "labels": "int64"},
    "packs": {"input_ids": "int32", "attention_mask": "int8", "labels": "int64", **_OF_PACKS},
    "bridge": {"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32", "sequences": "int32"},
}
"""Form of the files → columns, each of lists of a type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeExport:
    """A published export."""

    kind: ExportKind
    path: str
    """Its folder, below the prefix as it was given."""
    content: ExportContent
    already_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """Task of writing one file."""

    form: str
    """One of COLUMNS."""
    prefix: str
    """The split's datasets, without `_text_document` and `_loss_mask`."""
    sequences: NDArray[np.int32]
    """Numbers of the sequences, row after row."""
    starts: NDArray[np.int64]
    """Start of each row in `sequences`, then the end of the last."""
    rows_per_group: int
    multiple: int
    """A sequence takes a multiple of so many places."""
    pad_id: int
    path: str


def export_path(config: InstructConfig, kind: ExportKind) -> str:
    """Return the folder of an export; its name tells the length of its packs."""
    if config.seq_length is None:
        return f"{config.output_prefix}_{kind}"
    return packing_prefix(config.output_prefix, config.seq_length, config.pad_to_multiple).replace(
        "_packing_", f"_{kind}_"
    )


def examine_exports(config: InstructConfig, eos_id: int | None) -> None:
    """Check that exports can be made: their folders are absent, or hold the files of their manifests alone.

    Raises:
        InputError: If the tokenizer has no EOS to pad with.
        OutputError: If a folder holds another file, naming it.
        FormatError: If a manifest cannot be read.
    """
    if config.export and config.pad_to_multiple > 1 and eos_id is None:
        raise InputError(
            "--export with --pad-to-multiple: expected a tokenizer with an EOS to pad with, got none; name it as "
            "eos_token in the tokenizer_config.json beside it, or among the special_tokens of the configuration"
        )
    for path in (export_path(config, kind) for kind in config.export):
        if os.path.lexists(path):
            manifest = read_export_manifest(path)
            names = os.listdir(path) if os.path.isdir(path) else []
            other = sorted({*names} - {EXPORT_MANIFEST, *(manifest.content.digests if manifest else ())})
            if manifest is None or other:
                found = os.path.join(path, *other[:1])
                remedy = "move it away, or choose another --output-prefix"
                raise OutputError(f"{found}: expected an export of dsindex and nothing else in its folder; {remedy}")


def make_exports(
    config: InstructConfig,
    prefixes: Mapping[str | None, str],
    *,
    eos_id: int | None,
    executor: Executor,
    reporter: Reporter,
) -> list[MadeExport]:
    """Make the exports that are not there yet; those of other tokens are replaced.

    Args:
        config: The options of the job.
        prefixes: Split → prefix of its published datasets, with their packs.
        eos_id: What sequences are padded with; None if nothing is padded.
        executor: Writes the files.
        reporter: Shows progress.

    Raises:
        DsindexError: If one cannot be made; its folder is then unchanged.
    """
    import pyarrow as pa

    manifests = {
        key: read_published(with_suffix(prefix, f"_{name}"))
        for split, prefix in prefixes.items()
        for key, name in zip(keys_of(split), keys_of(None), strict=True)
    }
    _open.cache_clear()  # an earlier job of this process may have written other tokens there
    files = {name: manifest.content.digests for name, manifest in manifests.items()}
    made = []
    for kind in config.export:
        path = export_path(config, kind)
        plan = {
            "export": kind,
            "format": FORMAT,
            "sources": {name: {suffix: own[suffix].digest for suffix in ("bin", "idx")} for name, own in files.items()},
            "seq-length": config.seq_length,
            "pad-to-multiple": config.pad_to_multiple,
            "eos": eos_id if config.pad_to_multiple > 1 else None,
            "drops": config.longer_than_pack == "drop",
        }
        manifest = read_export_manifest(path)
        is_made = manifest is not None and manifest.plan == plan and _is_whole(path, manifest)
        if manifest is None or not is_made:
            folder = f"{os.path.abspath(path)}.{xxhash.xxh3_64_hexdigest(msgspec.json.encode(plan))}.partial"
            shutil.rmtree(folder, ignore_errors=True)
            make_folder(folder)
            splits = _write_files(kind, config, prefixes, folder, eos_id or 0, executor, reporter)
            names = {name: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
            content = ExportContent(
                kind=kind,
                sequence_length=config.seq_length,
                tokenizer=msgspec.to_builtins(next(iter(manifests.values())).content.tokenizer),
                writer=f"pyarrow {pa.__version__}",
                splits=splits,
                digests={
                    name: ExportedFile(size_bytes=os.path.getsize(file), xxh3_128=digest_file(file))
                    for name, file in names.items()
                },
            )
            manifest = ExportManifest(plan=plan, content=content)
            _publish(folder, manifest, path)
        made.append(MadeExport(kind=kind, path=path, content=manifest.content, already_complete=is_made))
    return made


def _is_whole(path: str, manifest: ExportManifest) -> bool:
    sizes = {os.path.join(path, name): file.size_bytes for name, file in manifest.content.digests.items()}
    return all(os.path.isfile(name) and os.path.getsize(name) == size for name, size in sizes.items())


def _write_files(
    kind: ExportKind,
    config: InstructConfig,
    prefixes: Mapping[str | None, str],
    folder: str,
    pad_id: int,
    executor: Executor,
    reporter: Reporter,
) -> dict[str, ExportedSplit]:
    """Write all files of an export; return the counts of each split, by its name there."""
    layouts = {split: _lay_out(kind, config, prefix) for split, prefix in prefixes.items()}
    if kind == "bridge":
        described = [_describe(prefixes[split], layout, config) for split, layout in layouts.items()]
        write_whole(os.path.join(folder, METADATA_FILE), msgspec.json.encode(list(filter(None, described))))
    tasks = [
        (SPLIT_NAMES[split], task)
        for split, prefix in prefixes.items()
        for task in _plan_files(kind, prefix, layouts[split], config, os.path.join(folder, SPLIT_NAMES[split]), pad_id)
    ]
    calls = [
        Call(name=f"export[{os.path.basename(task.path)}]", place=task.path, function=write_file, arguments=(task,))
        for _, task in tasks
    ]
    reporter.stage("export", total=len(calls), unit="files")
    policy = RetryPolicy(deadline_seconds=config.shard_deadline)
    counts: dict[str, Counter[str]] = {SPLIT_NAMES[split]: Counter() for split in prefixes}
    written = run_in_order(executor, calls, policy=policy, on_idle=reporter.tick)
    for (name, _), found in zip(tasks, written, strict=True):
        counts[name].update(found)
        reporter.advance(1)
    names = ExportedSplit.__struct_fields__
    return {split: ExportedSplit(**{name: own[name] for name in names}) for split, own in counts.items()}


def _publish(folder: str, manifest: ExportManifest, path: str) -> None:
    """Give a folder its manifest and its name, in place of an earlier export."""
    replaced = folder.removesuffix(".partial") + ".replaced"
    write_whole(os.path.join(folder, EXPORT_MANIFEST), msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    try:
        if os.path.isdir(path):
            os.rename(path, replaced)
        os.rename(folder, path)
        sync_folder(os.path.dirname(os.path.abspath(path)))
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise output_error(path, error) from error


# The rows of an export, and the files that they are in.


def _lay_out(kind: ExportKind, config: InstructConfig, prefix: str) -> BlockLayout:
    """Return the sequences of each row."""
    lengths, length, multiple = source_lengths(prefix), config.seq_length, config.pad_to_multiple
    if length is None:
        return one_per_block(lengths, 0)
    if kind == "parquet":
        path = with_suffix(prefix, packing_prefix("", length, multiple))
        return read_layout(path, lengths, sequence_length=length, pad_to_multiple=multiple)
    places = np.where(lengths > length, length + 1, _places(lengths, kind, multiple))
    return lay_out_blocks(places, sequence_length=length, drop_longer=config.longer_than_pack == "drop")


def _places(lengths: NDArray[np.integer[Any]], form: str, multiple: int) -> NDArray[np.int32]:
    """Return the places that sequences take in a pack; of Bridge's, one without a target takes some, too."""
    own = np.maximum(lengths - 1, 1) if form == "bridge" else lengths
    return (-(-own // multiple) * multiple).astype(np.int32)


def _describe(prefix: str, layout: BlockLayout, config: InstructConfig) -> dict[str, float] | None:
    """Return what Megatron-Bridge stores of a packing, to pad the boundaries of all packs to one shape."""
    if not layout.num_blocks:
        return None
    places = _places(source_lengths(prefix), "bridge", config.pad_to_multiple)[layout.conversations]
    filled, length = np.add.reduceat(places, layout.block_starts[:-1]), config.seq_length or 0
    return {
        "dataset_max_seqlen": int(places.max()),
        "max_samples_per_bin": int(np.diff(layout.block_starts).max()),
        "packing_factor": round(len(places) / layout.num_blocks, 2),
        "packing_efficiency": round(int(filled.sum()) / layout.num_blocks / length * 100, 2),
        "pack_size": length,
        "min_packed_seqlen": int(filled.min()),
    }


def _plan_files(
    kind: ExportKind, prefix: str, layout: BlockLayout, config: InstructConfig, path: str, pad_id: int
) -> list[ExportFile]:
    """Return the tasks of a split: whole row groups, with about TOKENS_PER_FILE tokens in a file."""
    rows = layout.num_blocks
    longest = max(config.seq_length or 0, int(source_lengths(prefix).max(initial=1)))
    per_group = max(1, min(ROWS_PER_GROUP, TOKENS_PER_FILE // longest))
    mean = config.seq_length or max(1, -(-layout.num_tokens // max(1, rows)))
    per_file = max(1, TOKENS_PER_FILE // mean // per_group) * per_group
    begins = range(0, rows, per_file) or [0]
    borders = [layout.block_starts[begin : min(begin + per_file, rows) + 1] for begin in begins]
    suffix = "idx.parquet" if kind == "bridge" else "parquet"
    return [
        ExportFile(
            form="bridge" if kind == "bridge" else "rows" if config.seq_length is None else "packs",
            prefix=prefix,
            sequences=layout.conversations[starts[0] : starts[-1]],
            starts=starts - starts[0],
            rows_per_group=per_group,
            multiple=config.pad_to_multiple,
            pad_id=pad_id,
            path=f"{path}-{number:05d}-of-{len(begins):05d}.{suffix}",
        )
        for number, starts in enumerate(borders)
    ]


@lru_cache(maxsize=2)
def _open(prefix: str) -> tuple[IndexedDataset, IndexedDataset]:
    """Return the tokens and masks of a split, which stay mapped while this process writes its files."""
    tokens = IndexedDataset(with_suffix(prefix, "_text_document"), check=False)
    mask = IndexedDataset(with_suffix(prefix, "_loss_mask"), check=False)
    if mask.dtype != np.uint8 or not np.array_equal(tokens.sequence_lengths, mask.sequence_lengths):
        msg = f"{mask.prefix}.idx: expected the lengths of {tokens.prefix}.idx, got another dataset; build both again"
        raise FormatError(msg)
    return tokens, mask


def source_lengths(prefix: str) -> NDArray[np.int32]:
    """Return the tokens of each sequence of a split."""
    return _open(prefix)[0].sequence_lengths


def write_file(task: ExportFile) -> Counter[str]:
    """Write the rows of a file, with one row group in memory; return its counts, by the names of ExportedSplit.

    Raises:
        FormatError: If tokens or masks are missing or damaged.
        OutputError: If the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: Counter[str] = Counter()
    schema = pa.schema([(name, pa.list_(getattr(pa, kind)())) for name, kind in COLUMNS[task.form].items()])
    with atomic_writer(task.path) as file:
        sink = pa.PythonFile(file, mode="w")
        with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
            for begin in range(0, len(task.starts) - 1, task.rows_per_group):
                starts = task.starts[begin : begin + task.rows_per_group + 1]
                arrays = _group(task, task.sequences[starts[0] : starts[-1]], starts - starts[0], counts)
                batch = pa.record_batch([arrays[name] for name in schema.names], schema=schema)
                writer.write_batch(batch, row_group_size=batch.num_rows)
    return counts


def roll_mask(mask: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return for each token whether the next one of the same sequence is trainable; 0 at the end of each sequence.

    >>> roll_mask(np.array([0, 1, 1, 1, 0, 1], np.uint8), np.array([0, 3, 6])).tolist()
    [1, 1, 0, 0, 1, 0]
    """
    rolled = np.zeros(len(mask), np.int8)
    rolled[:-1] = mask[1:] != 0
    rolled[offsets[1:][np.diff(offsets) > 0] - 1] = 0
    return rolled


def _group(
    task: ExportFile, sequences: NDArray[np.int32], starts: NDArray[np.int64], counts: Counter[str]
) -> dict[str, pa.ListArray]:
    """Return the columns of some rows, whose sequences lie one after the other, and count them."""
    tokens, offsets = _open(task.prefix)[0].take(sequences)
    mask, _ = _open(task.prefix)[1].take(sequences)
    lengths = np.diff(offsets)
    own = mask.copy()
    own[offsets[:-1][lengths > 0]] = 0  # the first token of a sequence is predicted from none of it
    counts.update(
        rows=len(starts) - 1,
        sequences=len(sequences),
        tokens=len(tokens),
        trainable=int(np.count_nonzero(mask)),
        targets=int(np.count_nonzero(own)),
    )
    ids = tokens.astype(np.int32)
    learnt: NDArray[Any] = roll_mask(mask, offsets) if task.form == "bridge" else own if task.form == "packs" else mask
    if task.multiple > 1:
        padded = starts_of(_places(lengths, task.form, task.multiple) + (task.form == "bridge"))
        at = np.arange(len(ids)) + np.repeat(padded[:-1] - offsets[:-1], lengths)
        ids, learnt = _spread(ids, at, padded[-1], task.pad_id), _spread(learnt, at, padded[-1], 0)
        offsets = padded
    row_starts = offsets[starts]
    position_ids = (np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets))).astype(np.int32)
    in_rows = (offsets[:-1] - np.repeat(row_starts[:-1], np.diff(starts))).astype(np.int32)
    return {
        "input_ids": _list_array(ids, row_starts),
        "loss_mask": _list_array(learnt.astype(np.int8), row_starts),
        "labels": _list_array(np.where(learnt != 0, ids, IGNORED_LABEL).astype(np.int64), row_starts),
        "attention_mask": _list_array(np.ones(len(ids), np.int8), row_starts),
        "position_ids": _list_array(position_ids, row_starts),
        "seq_lengths": _list_array(np.diff(offsets).astype(np.int32), starts),
        "seq_start_id": _list_array(in_rows, starts),
        "sequences": _list_array(sequences, starts),
    }


def _spread(values: NDArray[Any], at: NDArray[np.int64], size: int, fill: int) -> NDArray[Any]:
    """Return an array of a size with values at places, and the fill elsewhere."""
    spread = np.full(size, fill, values.dtype)
    spread[at] = values
    return spread


def _list_array(values: NDArray[Any], offsets: NDArray[np.int64]) -> pa.ListArray:
    """Return an Arrow array of lists, whose values are fewer than 2**31 together."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
