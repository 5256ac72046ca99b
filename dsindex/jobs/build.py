"""`dsindex build`: plan, tokenize, merge, publish, index. It can be resumed at any point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dsindex.amounts import count
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.assembly import assemble
from dsindex.engine.job import open_job
from dsindex.engine.output import Output
from dsindex.engine.plan import Plan
from dsindex.engine.report import show_datasets
from dsindex.engine.room import check_room
from dsindex.engine.sample import examine_sample
from dsindex.engine.shards import TextResult, make_shards, outcome_fields
from dsindex.engine.source import open_source
from dsindex.engine.worker import ShardSettings
from dsindex.errors import InputError, PlanError
from dsindex.options.config import work_folder_path
from dsindex.store.urls import absolute, folder_of, refuse_address, with_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.engine.job import Job
    from dsindex.engine.manifest import Content, RecordCounts
    from dsindex.engine.progress import Reporter
    from dsindex.engine.shards import Shards
    from dsindex.engine.source import TextSource
    from dsindex.jobs.index import IndexResult
    from dsindex.options.build import BuildConfig
    from dsindex.options.index import IndexConfig
    from dsindex.store.storage import StoredFile
    from dsindex.text.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDataset:
    """One published dataset."""

    prefix: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    files: dict[str, StoredFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult(TextResult):
    """The result of a build."""

    datasets: tuple[BuiltDataset, ...]
    """One per key, those that are held out last."""
    engine: str
    """Name of the engine."""
    indices: tuple[IndexResult, ...]
    """One per dataset if index options were given; otherwise empty."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets, in the order of the keys."""
        return tuple(dataset.prefix for dataset in self.datasets)

    def __repr__(self) -> str:
        return show_datasets(self, ((each.prefix, each.num_documents, each.num_tokens) for each in self.datasets))

    def lines(self) -> list[str]:
        """Return the summary: what was built, how fast, and the digests by which two builds are compared."""
        complete = "already complete: the same plan was built before, nothing was done"
        lines = self.first_lines(complete=complete, engine=self.engine)
        for dataset in self.datasets:
            lines.append(
                f"{dataset.prefix}: {count(dataset.num_documents, 'document')}, "
                f"{count(dataset.num_sequences, 'sequence')}, {count(dataset.num_tokens, 'token')}"
            )
            lines += [f"  .{suffix:4} {dataset.files[suffix].digest}" for suffix in ("bin", "idx")]
        for indices in self.indices:
            lines += indices.lines()
        return lines


def run_build(config: BuildConfig, *, reporter: Reporter, index: Mapping[str, Any] | None = None) -> BuildResult:
    """Build one dataset per key, continuing an interrupted run of the same plan.

    Args:
        config: The options of the build.
        reporter: Shows progress.
        index: Options of IndexConfig other than paths, to build each dataset's indices last; None: build none.

    Raises:
        DsindexError: If the build cannot be done as asked; final names then never refer to incomplete files.
    """
    index_configs = _index_configs(config, index)
    encodes = config.token_ids is None
    columns = config.selection().paths
    source = open_source(config, append_eod=config.append_eod, reporter=reporter, columns=columns)
    selection = config.selection(source.tokenizer.vocabulary_size)
    plan = Plan(settings=_settings(config, source), inputs=source.inputs)
    outputs = _list_outputs(config, plan, source)
    uses_jq = selection.needs_jq
    made_bytes = 0
    with open_job(config, plan, outputs, reporter=reporter, text_bytes=source.text_bytes, holds_gil=uses_jq) as job:
        if job.outcome is None:
            for note in source.first_notes(encodes=encodes):
                reporter.say(note)
            settings = ShardSettings(
                tokenizer=source.tokenizer,
                engine=source.engine,
                keys=config.output_names,
                selection=selection,
                dtype=outputs[0].dtype.str,
                eod_id=source.eod_id,
                layout="megatron",
                empty_documents=config.empty_documents,
                samples=config.samples,
                **source.shard_options(),
            )
            _check_room(config, source, selection, outputs)
            shards = make_shards(job, source, settings, outputs, filters=_filters(config))
            _require_held_out(config, shards, outputs)
            datasets = [shards.dataset(output) for output in outputs]
            files = assemble(job, datasets)
            job.publish(
                datasets,
                [_describe(config, shards, output, files[at], at) for at, output in enumerate(outputs)],
                num_shards=len(shards.results),
                engine=source.engine if encodes else None,
                tokenizer_path=config.tokenizer_model,
            )
            made_bytes = shards.made_bytes
        indices = _build_indices(index_configs, job, reporter)
    contents = job.published.contents
    return BuildResult(
        datasets=tuple(map(_built, _prefixes(config), contents)),
        engine=source.engine.name if encodes else "token ids as given",
        indices=indices,
        counts=_count_all(config, contents),
        **outcome_fields(source, job.published, made_bytes),
    )


def output_prefix(config: BuildConfig, name: str) -> str:
    """Return the prefix of an output, as preprocess_data.py names that of a key."""
    return with_suffix(config.output_prefix, f"_{name}_document")


def _names(config: BuildConfig) -> list[str]:
    """Return the names of the outputs: each sample has all keys."""
    return [f"{sample.prefix}{name}" for sample in config.samples for name in config.output_names]


def _prefixes(config: BuildConfig) -> list[str]:
    return [output_prefix(config, name) for name in _names(config)]


def _list_outputs(config: BuildConfig, plan: Plan, source: TextSource) -> list[Output]:
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    named = zip(_names(config), _prefixes(config), strict=True)
    return [Output(prefix=absolute(prefix), plan_id=plan.plan_id, key=key, dtype=dtype) for key, prefix in named]


def _settings(config: BuildConfig, source: TextSource) -> dict[str, Any]:
    """Return everything but the inputs that the output depends on."""
    settings = {**source.settings(), "output-prefix": str(absolute(config.output_prefix))}
    if config.token_ids is None:
        settings["json-keys"] = list(config.json_keys)
    else:
        settings["token-ids"] = config.token_ids
        del settings["engine"]  # nothing is encoded
    options = {
        "join": config.join,
        "where": config.where,
        "empty-documents": _empty_documents(config),
        "sample": config.sample,
        "hold-out": config.hold_out,
    }
    return settings | {name: value for name, value in options.items() if value is not None}


def _empty_documents(config: BuildConfig) -> str | None:
    return None if config.empty_documents == "keep" else config.empty_documents


def _check_room(config: BuildConfig, source: TextSource, selection: Selection, outputs: Sequence[Output]) -> None:
    """Check a sample of the input, and the disk space."""
    estimate = examine_sample(source.inputs, selection, source.tokenizer, source.engine)
    check_room(
        estimate.scaled(sum(sample.high - sample.low for sample in config.samples)),
        itemsize=outputs[0].dtype.itemsize,
        num_keys=len(config.output_names),
        output_folder=folder_of(config.output_prefix),
        work_dir=work_folder_path(config),
        unfinished=[output.token_file for output in outputs],
    )


def _require_held_out(config: BuildConfig, shards: Shards, outputs: Sequence[Output]) -> None:
    """Refuse a share that leaves a dataset without documents."""
    for output in outputs if config.hold_out is not None else ():
        if not any(part.num_documents for part in shards.parts(output.key)):
            msg = f"{output.prefix}: expected records for it with --hold-out {config.hold_out}, got none"
            raise InputError(f"{msg}; take another share")


def _filters(config: BuildConfig) -> tuple[str, ...]:
    """Return the flags that leave out records."""
    used = {"--where": config.where, "--sample": config.sample, "--hold-out": config.hold_out}
    return tuple(flag for flag, value in used.items() if value is not None)


def _describe(
    config: BuildConfig, shards: Shards, output: Output, files: dict[str, StoredFile], number: int
) -> Content:
    """Return the content of the manifest of an output, by its number."""
    group, key = divmod(number, len(config.output_names))
    sample, by_key = config.samples[group], config.token_ids is None and config.join is None
    return shards.content(
        output.key,
        group=group,
        token_dtype=output.dtype.name,
        options=shards.source.describe_options(
            json_key=config.json_keys[key] if by_key else None,
            json_keys=list(config.json_keys) if config.join is not None else None,
            token_ids=config.token_ids,
            join=config.join,
            where=config.where,
            empty_documents=_empty_documents(config),
            sample=sample.high if sample.high < 1 else config.sample,
            leave_out=sample.low or None,
        ),
        digests=files,
    )


def _index_configs(config: BuildConfig, index: Mapping[str, Any] | None) -> list[IndexConfig]:
    """Return the index options of each dataset, which are thereby validated before anything is built."""
    if index is None:
        return []
    if config.hold_out is not None:
        msg = "expected --hold-out without options of indices: the datasets are read by jobs of their own splits; "
        raise PlanError(f"{msg}leave them out, and run `dsindex index` afterwards")
    from dsindex.jobs.index import check_index_options
    from dsindex.options.index import IndexConfig

    expected = (
        "expected an output on a disk with the options of indices, got an address; leave them out, and run "
        "`dsindex index --data-path` afterwards"
    )
    refuse_address(config.output_prefix, expected, PlanError)
    configs = [IndexConfig(**{**index, "data_path": (prefix,)}) for prefix in _prefixes(config)]
    check_index_options(configs[0])
    return configs


def _build_indices(configs: Sequence[IndexConfig], job: Job, reporter: Reporter) -> tuple[IndexResult, ...]:
    if not configs:
        return ()
    from dsindex.jobs.index import run_index  # imported late, since it loads numba

    indices = []
    reporter.stage("index", total=len(configs), unit="datasets")
    for config in configs:
        indices.append(run_index(config, executor=job.executor))
        reporter.advance(1)
    reporter.end_stage()
    return tuple(indices)


def _built(prefix: str, content: Content) -> BuiltDataset:
    return BuiltDataset(
        prefix=prefix,
        num_documents=content.documents,
        num_sequences=content.sequences,
        num_tokens=content.tokens,
        files=content.digests,
    )


def _count_all(config: BuildConfig, contents: Sequence[Content]) -> RecordCounts:
    """Return the record counts of all groups of records together."""
    first, *others = [content.record_counts for content in contents[:: len(config.output_names)]]
    more = sum(counts.kept for counts in others)
    return msgspec.structs.replace(first, kept=first.kept + more, filtered=first.filtered - more)
