"""The driver of `dsindex build`: plan, tokenize, merge, publish, index. It can be resumed at any point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_size, format_speed
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.assemble import TokenSource
from dsindex.engine.frame import Job, JobOutcome, Made, run_job
from dsindex.engine.identity import Plan
from dsindex.engine.inputs import describe_repeats, kept_share
from dsindex.engine.manifest import Content, RecordCounts
from dsindex.engine.nodes import require_sound_nodes
from dsindex.engine.outputs import MEGATRON_SUFFIXES, Output
from dsindex.engine.publishing import Dataset, Target, shard_part, shard_provenance, shard_quarantine
from dsindex.engine.sample import examine_sample
from dsindex.engine.shards.tokenize import ShardSettings
from dsindex.engine.shuffle import DocumentShuffle
from dsindex.engine.source import (
    count_missing,
    count_records,
    count_reference_texts,
    describe_kept,
    open_source,
    plan_settings,
    recorded_options,
    require_recorded_inputs,
    run_jq_in_processes,
    select,
    wanted_columns,
)
from dsindex.engine.standard_input import piped_input_named
from dsindex.engine.start import check_room, shard_copies
from dsindex.engine.tokenize import make_shards
from dsindex.errors import PlanError
from dsindex.execution.report import Report, show_datasets
from dsindex.options.config import work_folder_path
from dsindex.store.requests import RequestCounts, all_requests, describe_requests
from dsindex.store.urls import absolute, folder_of, refuse_address, with_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.engine.inputs import InputFile
    from dsindex.engine.manifest import Run
    from dsindex.engine.merge import Part
    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.engine.shuffle import ShuffledDocuments
    from dsindex.engine.start import Work
    from dsindex.execution.calls import Executor
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.jobs.index import IndexResult
    from dsindex.options.build import BuildConfig
    from dsindex.options.index import IndexConfig
    from dsindex.store.storage import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDataset:
    """One published dataset."""

    prefix: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    files: dict[str, StoredFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult(Report):
    """The result of a build."""

    datasets: tuple[BuiltDataset, ...]
    already_complete: bool
    counts: RecordCounts
    input_bytes: int
    seconds: float
    run: Run
    engine: str
    """Name of the engine."""
    input_notes: tuple[str, ...]
    """Sentences about inputs that are repeated or were left out."""
    indices: tuple[IndexResult, ...]
    """One per dataset if index options were given; otherwise empty."""
    requests: RequestCounts
    """The requests to object stores."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets, in the order of the keys."""
        return tuple(dataset.prefix for dataset in self.datasets)

    def __repr__(self) -> str:
        return show_datasets(self, ((each.prefix, each.num_documents, each.num_tokens) for each in self.datasets))

    def lines(self) -> list[str]:
        """Return the summary: what was built, how fast, and the digests by which two builds are compared."""
        counts = self.counts
        lines = []
        if self.already_complete:
            lines.append("already complete: the same plan was built before, nothing was done")
        else:
            lines.append(
                f"done in {self.seconds:.1f} s: {format_size(self.input_bytes)} of input, "
                f"{format_speed(self.input_bytes / max(self.seconds, 1e-6))}, "
                f"{count(self.run.shards, 'shard')}, {self.run.executor} executor, "
                f"{count(self.run.workers, 'worker')}, "
                f"{self.engine}"
            )
        filtered = f"{counts.filtered:,} filtered + " if "filtered" in counts.model_fields_set else ""
        lines.append(
            f"{count(counts.lines, 'line')} = {counts.kept:,} kept + {filtered}{counts.quarantined:,} quarantined + "
            f"{counts.blank:,} blank"
        )
        lines += [*describe_requests(self.requests), *self.input_notes]
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
    with piped_input_named(work_folder_path(config), config.input):
        return _Build(config, reporter, index).run()


def output_prefix(config: BuildConfig, name: str) -> str:
    """Return the prefix of an output, as preprocess_data.py names that of a key."""
    return with_suffix(config.output_prefix, f"_{name}_document")


class _Build:
    """The parts of a build that other kinds of job do not have."""

    def __init__(self, config: BuildConfig, reporter: Reporter, index: Mapping[str, Any] | None) -> None:
        self._requests_before = all_requests()
        self._index_configs = _index_configs(config, index)
        self._indices: tuple[IndexResult, ...] = ()
        self._reporter = reporter
        self._outputs = tuple(
            Output(prefix=output_prefix(config, name), suffixes=MEGATRON_SUFFIXES) for name in config.output_names
        )
        self._work_dir = work_folder_path(config)
        self._source = open_source(
            config,
            append_eod=config.append_eod,
            reporter=reporter,
            columns=wanted_columns(config),
            repeat=config.repeat,
        )
        self._selection = select(config, self._source.tokenizer)
        self._config = config = run_jq_in_processes(config, self._selection)
        self._dtype = dtype_for_vocabulary(self._source.tokenizer.vocabulary_size)
        settings = {
            **self._source.settings(),
            **plan_settings(config),
            "output-prefix": str(absolute(config.output_prefix)),
            **_order_settings(config, self._source.inputs),
        }
        if config.token_ids is not None:
            del settings["engine"]  # nothing is encoded
        self._plan = Plan(settings=settings, inputs=self._source.inputs)
        self._results: list[tuple[ShardTask, ShardResult]] = []
        self._shuffle = self._plan_shuffle()

    def run(self) -> BuildResult:
        source = self._source
        job = Job(
            config=self._config,
            plan=self._plan,
            outputs=self._outputs,
            input_bytes=source.total_bytes,
            engine=source.engine if self._config.token_ids is None else None,
            notes=source.first_notes(encodes=self._config.token_ids is None),
            require_same_inputs=partial(require_recorded_inputs, source.inputs),
            examine=self._examine,
            check_nodes=partial(require_sound_nodes, source, keys=self._config.output_names, selection=self._selection),
            count_missing=partial(count_missing, source),
            make=self._make,
            describe=self._describe,
            describe_kept=partial(describe_kept, source, self._work_dir),
            conclude=self._conclude if self._index_configs or self._shuffle is not None else None,
        )
        return self._report(run_job(job, reporter=self._reporter))

    def _examine(self) -> None:
        """Check a sample of the input, and the disk space."""
        source = self._source
        names = self._config.output_names
        estimate = examine_sample(source.inputs, names, source.tokenizer, source.engine, self._selection)
        check_room(
            estimate.scaled(kept_share(source.inputs, self._config.sample)),
            itemsize=self._dtype.itemsize,
            num_keys=len(self._outputs),
            output_folder=folder_of(self._config.output_prefix),
            work_dir=self._work_dir,
            unfinished=[path for tokens in self._token_sources() for path in tokens.target.partials],
            copies=shard_copies(self._config),
        )

    def _make(self, work: Work) -> Made:
        results = self._results = self._tokenize(work)
        shuffled = None if self._shuffle is None else self._shuffle.run(work, results)
        return Made(
            groups=tuple(
                (self._dataset(number, source, results, shuffled),)
                for number, source in enumerate(self._token_sources())
            ),
            num_shards=len(results),
            num_reference_texts=count_reference_texts(results),
        )

    def _describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:
        return [
            self._content(number, dataset, digests, self._results)
            for number, ((dataset,), digests) in enumerate(zip(made.groups, files, strict=True))
        ]

    def _tokenize(self, work: Work) -> list[tuple[ShardTask, ShardResult]]:
        """Make every shard; return all with their tasks, in plan order."""
        config, source = self._config, self._source
        settings = ShardSettings(
            tokenizer=source.tokenizer,
            engine=source.engine,
            keys=config.output_names,
            selection=self._selection,
            dtype=self._dtype.str,
            eod_id=source.eod_id,
            layout="megatron",
            empty_documents=config.empty_documents,
            quarantine=config.on_bad_record == "quarantine",
            max_record_bytes=config.max_record_size,
            provenance=not config.no_provenance,
            work_dir=self._work_dir,
            sample=config.sample,
        )
        tasks = source.tasks()
        shuffle = self._shuffle
        results = make_shards(
            work,
            tasks,
            settings,
            sources=self._token_sources() if shuffle is None else (),
            max_bad_records=config.max_bad_records,
            filters=self._filters(),
            find_moved=None if shuffle is None else partial(shuffle.find_moved, work, tasks),
        )
        return list(zip(tasks, results, strict=True))

    def _filters(self) -> tuple[str, ...]:
        """Return the flags that leave out records."""
        config = self._config
        is_used = {
            "--where": config.where is not None,
            "--sample": config.sample is not None,
            "--repeat": any(file.share is not None for file in self._source.inputs),
        }
        return tuple(flag for flag, used in is_used.items() if used)

    def _plan_shuffle(self) -> DocumentShuffle | None:
        config = self._config
        if config.shuffle_documents is None:
            return None
        return DocumentShuffle(
            seed=config.shuffle_documents,
            keys=config.output_names,
            dtype=self._dtype,
            provenance=not config.no_provenance,
            work_dir=self._work_dir,
            keep_shards=config.keep_shards,
        )

    def _token_sources(self) -> list[TokenSource]:
        """Return each key's dataset, with how to find its parts."""
        return [
            TokenSource(
                target=Target(
                    prefix=absolute(output.prefix),
                    plan_id=self._plan.plan_id,
                    bound_bytes=self._source.text_bytes * self._dtype.itemsize,
                ),
                part_of=partial(self._part, name),
            )
            for name, output in zip(self._config.output_names, self._outputs, strict=True)
        ]

    def _part(self, name: str, result: ShardResult) -> Part:
        return shard_part(next(part for part in result.keys if part.key == name), self._work_dir, self._dtype)

    def _dataset(
        self,
        number: int,
        source: TokenSource,
        results: Sequence[tuple[ShardTask, ShardResult]],
        shuffled: ShuffledDocuments | None,
    ) -> Dataset:
        """Return the dataset of a key, by its number."""
        if shuffled is not None:
            parts, provenance = shuffled.parts[number], shuffled.provenance
        else:
            parts = tuple(source.part_of(result) for _, result in results)
            provenance = None if self._config.no_provenance else shard_provenance(results, self._work_dir)
        return Dataset(
            target=source.target,
            parts=parts,
            provenance=provenance,
            quarantine=shard_quarantine(results, self._work_dir, [file.path for file in self._source.inputs]),
        )

    def _content(
        self,
        output: int,
        dataset: Dataset,
        files: dict[str, StoredFile],
        results: Sequence[tuple[ShardTask, ShardResult]],
    ) -> Content:
        """Return the content of an output's manifest."""
        name, filters = self._config.output_names[output], bool(self._filters())
        parts = [part for _, result in results for part in result.keys if part.key == name]
        empty = sum(part.num_empty_documents for part in parts)
        header = dataset.header
        return Content(
            inputs=self._source.describe_inputs(results, filters=filters),
            **self._source.describe_damaged(),
            account=RecordCounts(
                **count_records([result for _, result in results], filters=filters),
                documents_with_tokens=header.num_documents - empty,
                empty_documents=empty,
            ),
            documents=header.num_documents,
            sequences=header.num_sequences,
            tokens=sum(part.num_tokens for part in parts),
            eod_in_text=sum(part.eod_in_text for part in parts),
            token_dtype=header.dtype.name,
            tokenizer=self._source.describe_tokenizer(),
            options=self._source.describe_options(
                **recorded_options(self._config, output), **_order_options(self._config)
            ),
            digests=files,
        )

    def _report(self, outcome: JobOutcome) -> BuildResult:
        return BuildResult(
            datasets=tuple(
                _built(output.prefix, content) for output, content in zip(self._outputs, outcome.contents, strict=True)
            ),
            already_complete=outcome.already_complete,
            counts=outcome.contents[0].record_counts,
            input_bytes=self._source.total_bytes,
            seconds=outcome.seconds,
            run=outcome.run,
            engine=self._source.engine.name if self._config.token_ids is None else "token ids as given",
            input_notes=self._source.notes,
            indices=self._indices,
            requests=all_requests().since(self._requests_before),
        )

    def _conclude(self, executor: Executor) -> None:
        if self._shuffle is not None:
            self._shuffle.remove_buckets()
        if self._index_configs:
            self._build_indices(executor)

    def _build_indices(self, executor: Executor) -> None:
        from dsindex.jobs.index import run_index  # imported late, since it loads numba

        self._reporter.stage("index", total=len(self._index_configs), unit="datasets")
        for config in self._index_configs:
            self._indices += (run_index(config, executor=executor),)
            self._reporter.advance(1)


def _order_options(config: BuildConfig) -> dict[str, Any]:
    """Return the options about records and their order that are in use, as fields of the manifest's."""
    options = {"shuffle_documents": config.shuffle_documents, "sample": config.sample}
    return {name: value for name, value in options.items() if value is not None}


def _order_settings(config: BuildConfig, inputs: Sequence[InputFile]) -> dict[str, Any]:
    """Return the options about records and their order that are in use, as settings of the plan."""
    settings = {name.replace("_", "-"): value for name, value in _order_options(config).items()}
    return {**settings, "repeat": describe_repeats(inputs)} if config.repeat else settings


def _built(prefix: str, content: Content) -> BuiltDataset:
    return BuiltDataset(
        prefix=prefix,
        num_documents=content.documents,
        num_sequences=content.sequences,
        num_tokens=content.tokens,
        files=content.digests,
    )


def _index_configs(config: BuildConfig, index: Mapping[str, Any] | None) -> list[IndexConfig]:
    """Return the index options of each dataset, which are thereby validated before anything is built."""
    if index is None:
        return []
    from dsindex.jobs.index_caches import check_index_options
    from dsindex.options.index import IndexConfig

    expected = (
        "expected an output on a disk with the options of indices, got an address; leave them out, and run "
        "`dsindex index --data-path` afterwards"
    )
    refuse_address(config.output_prefix, expected, PlanError)
    configs = [IndexConfig(**{**index, "data_path": (output_prefix(config, name),)}) for name in config.output_names]
    check_index_options(configs[0])
    return configs
