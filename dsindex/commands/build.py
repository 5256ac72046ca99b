"""`dsindex build`: plan, tokenize, merge, publish, index. An interrupted build continues from any point."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dsindex.commands.results import MadeDataset, TextResult, outcome_fields
from dsindex.errors import InputError
from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.runtime.estimate import check_room
from dsindex.runtime.inputs import group_inputs
from dsindex.runtime.job import open_job
from dsindex.runtime.output import Output
from dsindex.runtime.plan import make_plan
from dsindex.runtime.preflight import examine_sample
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.runtime.tokenize import ShardSettings
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from dsindex.commands.index import IndexResult
    from dsindex.formats.manifest import RecordedOptions
    from dsindex.options.build import BuildConfig
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.source import TextSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult(TextResult):
    """The result of a build."""

    engine: str
    """Name of the engine."""
    indices: tuple[IndexResult, ...]
    """One per dataset if index options were given; otherwise empty."""


def run_build(config: BuildConfig, *, reporter: Reporter) -> BuildResult:
    """Build one dataset per key, then the index caches; an interrupted run of the same plan is continued.

    Raises:
        DsindexError: If the build cannot be done as asked; final names then never refer to incomplete files.
    """
    # preprocess_data.py names the dataset of a key like this.
    prefixes = [f"{config.output_prefix}_{name}_document" for name in config.dataset_names]
    index_configs = list(filter(None, map(config.index_config, prefixes)))
    indices: tuple[IndexResult, ...] = ()
    if index_configs:
        from dsindex.commands.index import check_index_options, run_index  # load numba

        check_index_options(index_configs[0])
    source = open_source(config, append_eod=config.append_eod, reporter=reporter, selection=config.selection())
    selection = config.selection(source.tokenizer.vocabulary_size)
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    encodes, num_keys = config.token_ids is None, len(config.output_names)
    plan = make_plan(_settings(config, source), source.files)
    begins, lists = [0], list[str | None]()
    if config.max_dataset_size is not None:
        begins = group_inputs((file.size_bytes for file in source.inputs), config.max_dataset_size)
        lists = [f"{absolute(prefix)}.txt" for prefix in prefixes]
        prefixes = [f"{prefix}_{number:03d}" for number in range(len(begins)) for prefix in prefixes]
    outputs = [
        Output(prefix=absolute(prefix), plan_id=plan.plan_id, dtype=dtype, list_path=list_path)
        for prefix, list_path in zip_longest(prefixes, lists)
    ]
    uses_jq = selection.needs_jq
    with open_job(config, plan, outputs, reporter=reporter, text_bytes=source.text_bytes, holds_gil=uses_jq) as job:
        if not job.already_complete:
            for note in source.first_notes(encodes=encodes):
                reporter.say(f"note: {note}")
            estimate = examine_sample(source.inputs, selection, source.tokenizer, source.engine)
            estimate = estimate.scaled(sum(sample.high - sample.low for sample in config.samples))
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
                    each.header.num_documents for output in outputs[group::num_groups] for each in output.segments
                ):
                    msg = f"{outputs[group].prefix}: --hold-out {config.hold_out} leaves no records for it"
                    raise InputError(msg, hint="take another share")
            own = [{"options": _describe_options(config, source, number)} for number in range(num_groups)]
            shards.publish(own * len(begins), encodes=encodes)
        if index_configs:
            indices = tuple(run_index(each, executor=job.executor, reporter=job.reporter) for each in index_configs)
    contents = [manifest.content for manifest in job.manifests]
    return BuildResult(
        datasets=tuple(map(MadeDataset.of, prefixes, contents)),
        engine=source.engine.name if encodes else "token ids as given",
        indices=indices,
        **outcome_fields(source, job, num_keys=num_keys, num_datasets=len(begins)),
    )


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
    """Return the options of an output's manifest, by its number."""
    group, key = divmod(number, len(config.output_names))
    sample, by_key = config.samples[group], config.token_ids is None and config.join is None
    return source.describe_options(
        json_key=config.json_keys[key] if by_key else None,
        json_keys=list(config.json_keys) if config.join is not None else None,
        token_ids=config.token_ids,
        join=config.join,
        where=config.where,
        empty_documents=None if config.empty_documents == "keep" else config.empty_documents,
        sample=sample.high if sample.high < 1 else config.sample,
        leave_out=sample.low or None,
    )
