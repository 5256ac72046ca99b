"""`dsindex build`: plan, tokenize, merge, publish, index. An interrupted build continues from where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dsindex.commands.results import MadeDataset, TextResult, outcome_fields
from dsindex.errors import InputError, OutputError, UsageError
from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.messages import format_size
from dsindex.runtime.job import Output, open_job
from dsindex.runtime.plan import group_inputs, make_plan
from dsindex.runtime.preflight import IDX_BYTES, PROVENANCE_BYTES, check_room, examine_sample
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.runtime.tokenize import ShardSettings
from dsindex.store.machine import available_cpus
from dsindex.store.protocol import store_of
from dsindex.store.urls import absolute
from dsindex.text.streams import LARGEST_RECORD_BYTES

if TYPE_CHECKING:
    from dsindex.commands.index import IndexResult
    from dsindex.formats.manifest import RecordedOptions
    from dsindex.formats.quarantine import BadRecords
    from dsindex.options.build import BuildConfig
    from dsindex.runtime.preflight import Estimate
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.source import TextSource


MOST_DOCUMENTS = 2**31 - 1
"""Most documents in a dataset. Source: Megatron-core's document indices are int32."""
FILLED_SHARE = 0.8
"""Share of these limits that an estimate may reach before the build makes several datasets."""
LEAST_RECORD_BYTES = 8
"""Inputs with less text than this times MOST_DOCUMENTS cannot reach the limits, so their size is not estimated."""
PIECE_BYTES = 256 << 10
NUM_PIECES = 256
"""Number of pieces that `--dry-run` samples, spread over the input: 64 MiB in all, or all of a small input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult(TextResult):
    """The result of a build."""

    engine: str
    """Name of the encoding library."""
    indices: tuple[IndexResult, ...]
    """One result per dataset if index options were given; otherwise empty."""


def run_build(config: BuildConfig, *, reporter: Reporter) -> BuildResult:
    """Build one dataset per key, then the index caches; an interrupted run of the same plan is continued.

    Raises:
        DsindexError: If the build cannot be done as requested; no file under a final name is then incomplete.
    """
    # Megatron's preprocess_data.py names the dataset of a key like this.
    prefixes = [f"{config.output_prefix}_{name}_document" for name in config.dataset_names]
    all_options = list(filter(None, map(config.index_config, prefixes)))
    indices: tuple[IndexResult, ...] = ()
    if all_options:
        from dsindex.commands.index import check_index_options, run_index  # load numba

        check_index_options(all_options[0])
    source = open_source(config, append_eod=config.append_eod, reporter=reporter, selection=config.selection())
    selection = config.selection(source.tokenizer.vocabulary_size)
    config, notes = _fit_datasets(config, source)
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    encodes, num_keys = config.token_ids is None, len(config.output_names)
    plan = make_plan(_settings(config, source), source.files)
    begins, list_paths = [0], list[str | None]()
    if config.max_dataset_size is not None:
        begins = group_inputs((file.size_bytes for file in source.inputs), config.max_dataset_size)
        list_paths = [f"{absolute(prefix)}.txt" for prefix in prefixes]
        prefixes = [f"{prefix}_{number:03d}" for number in range(len(begins)) for prefix in prefixes]
    outputs = [
        Output(prefix=absolute(prefix), plan_id=plan.plan_id, dtype=dtype, list_path=list_path)
        for prefix, list_path in zip_longest(prefixes, list_paths)
    ]
    uses_jq = selection.needs_jq
    with open_job(config, plan, outputs, reporter=reporter, text_bytes=source.text_bytes, holds_gil=uses_jq) as job:
        if not job.already_complete:
            for note in (*notes, *source.first_notes(encodes=encodes)):
                reporter.say(f"note: {note}")
            estimate = examine_sample(source, selection).scale(config.share)
            check_room(config, estimate, itemsize=dtype.itemsize, num_keys=num_keys)
            settings = ShardSettings(
                tokenizer=source.tokenizer,
                engine=source.engine,
                keys=config.output_names,
                selection=selection,
                dtype=dtype.str,
                eod_id=source.eod_id,
                layout=config.empty_documents,
                samples=config.samples,
                **source.shard_options(),
            )
            shards = Shards(job, source, settings, dataset_begins=begins)
            shards.tokenize_and_merge()
            num_groups = len(outputs) // len(begins)
            for group in range(num_groups) if config.hold_out is not None else ():
                if not any(
                    segment.header.num_documents for output in outputs[group::num_groups] for segment in output.segments
                ):
                    problem = f"{outputs[group].prefix}: --hold-out {config.hold_out} leaves no records for it"
                    raise InputError(problem, hint="take another share")
            manifest_fields = [{"options": _describe_options(config, source, number)} for number in range(num_groups)]
            shards.publish(manifest_fields * len(begins), encodes=encodes)
        if all_options:
            indices = tuple(run_index(options, executor=job.executor, reporter=job.reporter) for options in all_options)
    contents = [manifest.content for manifest in job.manifests]
    return BuildResult(
        datasets=tuple(map(MadeDataset.from_content, prefixes, contents)),
        engine=source.engine.name if encodes else "token ids as given",
        indices=indices,
        **outcome_fields(source, job, num_keys=num_keys, num_datasets=len(begins)),
    )


def _fit_datasets(
    config: BuildConfig, source: TextSource, estimate: Estimate | None = None
) -> tuple[BuildConfig, list[str]]:
    """Return the options, with a dataset size and a note if one dataset would exceed Megatron's or a bucket's limits.

    The size is a power of two, well below the limit, so a slightly different estimate gives the same datasets.

    Args:
        config: The options of the build.
        source: Its inputs.
        estimate: Its estimated size; None to estimate it if the inputs may be too large.

    Raises:
        UsageError: If index caches were requested too: they need all datasets at once.
    """
    if config.max_dataset_size is not None or source.text_bytes < MOST_DOCUMENTS * LEAST_RECORD_BYTES:
        return config, []
    if estimate is None:
        estimate = examine_sample(source, config.selection(source.tokenizer.vocabulary_size)).scale(config.share)
    itemsize = dtype_for_vocabulary(source.tokenizer.vocabulary_size).itemsize
    largest_bytes = store_of(config.output_prefix).largest_file_bytes * len(config.output_names)
    share = max(estimate.documents / MOST_DOCUMENTS, estimate.tokens * itemsize / largest_bytes) / FILLED_SHARE
    if share <= 1:
        return config, []
    amount = f"about {estimate.documents:,.0f} documents, {format_size(estimate.tokens * itemsize)} of tokens"
    if config.index_config(config.output_prefix) is not None:
        hint = "leave out the options of index caches, and run `dsindex index` afterwards"
        raise UsageError(f"{amount}: too much for one dataset, and index caches need all datasets at once", hint=hint)
    dataset_bytes = 1 << int(source.total_bytes / share).bit_length() - 1
    note = f"{amount}: too much for one dataset, so several are made, as with --max-dataset-size {dataset_bytes}B"
    return config.copy_with(max_dataset_size=dataset_bytes), [note]


def _settings(config: BuildConfig, source: TextSource) -> dict[str, Any]:
    """Return all options and facts that the output depends on, except the inputs."""
    settings = source.settings()
    if config.token_ids is not None:
        del settings["engine"]  # nothing is encoded
    options = {
        "json-keys": list(config.json_keys) if config.token_ids is None else None,
        "token-ids": config.token_ids,
        "join": config.join,
        "where": config.where,
        "empty-documents": None if config.empty_documents == "keep" else config.empty_documents,
        "sample": config.sample,
        "hold-out": config.hold_out,
        "max-dataset-size": config.max_dataset_size,
    }
    return settings | {name: value for name, value in options.items() if value is not None}


def _describe_options(config: BuildConfig, source: TextSource, number: int) -> RecordedOptions:
    """Return the options for an output's manifest, given the output's number within its dataset."""
    group, key = divmod(number, len(config.output_names))
    sample, is_by_key = config.samples[group], config.token_ids is None and config.join is None
    return source.describe_options(
        json_key=config.json_keys[key] if is_by_key else None,
        json_keys=list(config.json_keys) if config.join is not None else None,
        token_ids=config.token_ids,
        join=config.join,
        where=config.where,
        empty_documents=None if config.empty_documents == "keep" else config.empty_documents,
        sample=sample.high if sample.high < 1 else config.sample,
        leave_out=sample.low or None,
    )


# --dry-run.


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult:
    """The estimate of a build."""

    num_inputs: int
    input_bytes: int
    num_shards: int
    largest_shard_bytes: int
    """Stored size of the largest shard's input."""
    estimate: Estimate
    """Documents, each counted once for all keys, and tokens of all keys, including EOD."""
    bad_records: tuple[BadRecords, ...]
    """Bad records of the sample, by input and reason."""
    token_dtype: str
    engine: str
    """Name of the encoding library."""
    workers: int
    bin_bytes: float
    idx_bytes: float
    work_bytes: float
    """Size of the shards before they are merged."""
    notes: tuple[str, ...]
    limits: tuple[str, ...]
    """Sentences about the disk space that the build would lack."""


def estimate_build(config: BuildConfig) -> EstimateResult:
    """Estimate the size of a build from a sample.

    Raises:
        DsindexError: If the inputs or the tokenizer cannot be used.
    """
    source = open_source(config, append_eod=config.append_eod, selection=config.selection())
    estimate = examine_sample(
        source,
        config.selection(source.tokenizer.vocabulary_size),
        num_pieces=NUM_PIECES,
        piece_bytes=PIECE_BYTES,
        max_record_bytes=config.max_record_size or LARGEST_RECORD_BYTES,
    ).scale(config.share)
    keys, tasks = len(config.output_names), source.tasks()
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    bin_bytes, idx_bytes = estimate.tokens * dtype.itemsize, estimate.documents * keys * IDX_BYTES
    provenance_bytes = 0.0 if config.no_provenance else estimate.documents * PROVENANCE_BYTES
    _, notes = _fit_datasets(config, source, estimate)
    limits = []
    try:
        check_room(config, estimate, itemsize=dtype.itemsize, num_keys=keys)
    except OutputError as error:
        limits.append(error.sentence)
    return EstimateResult(
        num_inputs=len(source.inputs),
        input_bytes=source.total_bytes,
        num_shards=len(tasks),
        largest_shard_bytes=max(task.stored_bytes for task in tasks),
        estimate=estimate,
        bad_records=estimate.bad,
        token_dtype=str(dtype),
        engine=source.engine.name,
        workers=config.workers or available_cpus(),
        bin_bytes=bin_bytes,
        idx_bytes=idx_bytes,
        work_bytes=bin_bytes + idx_bytes + provenance_bytes,
        notes=(*notes, *source.first_notes()),
        limits=tuple(limits),
    )
