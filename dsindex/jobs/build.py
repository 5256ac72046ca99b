"""The driver of `dsindex build`: plan, tokenize, merge, publish, index. It can be resumed at any point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.assemble import TokenSource
from dsindex.engine.frame import JobOutcome, Made
from dsindex.engine.identity import Plan
from dsindex.engine.inputs import kept_share
from dsindex.engine.outputs import MEGATRON_SUFFIXES, Output
from dsindex.engine.publishing import Dataset, Target, shard_part
from dsindex.engine.report import show_datasets
from dsindex.engine.sample import examine_sample
from dsindex.engine.shards.tokenize import ShardSettings
from dsindex.engine.source import (
    count_reference_texts,
    holds_gil,
    open_source,
    plan_settings,
    recorded_options,
    select,
    wanted_columns,
)
from dsindex.engine.standard_input import piped_input_named
from dsindex.engine.start import check_room, shard_copies
from dsindex.errors import InputError, PlanError
from dsindex.jobs.text_job import TextJob, TextResult
from dsindex.options.config import work_folder_path
from dsindex.store.urls import absolute, folder_of, refuse_address, with_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.engine.executors import Executor
    from dsindex.engine.manifest import Content, RecordCounts
    from dsindex.engine.progress import Reporter
    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.engine.source import TextSource
    from dsindex.engine.start import Work
    from dsindex.jobs.index import IndexResult
    from dsindex.options.build import BuildConfig
    from dsindex.options.index import IndexConfig
    from dsindex.store.storage import StoredFile
    from dsindex.text.sampling import Sample


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
    with piped_input_named(work_folder_path(config), config.input):
        return BuildJob(config, reporter, index).run()


def output_prefix(config: BuildConfig, name: str) -> str:
    """Return the prefix of an output, as preprocess_data.py names that of a key."""
    return with_suffix(config.output_prefix, f"_{name}_document")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuildOutput:
    """A dataset of a build: which records it has, and which of their texts."""

    config: BuildConfig
    sample: Sample
    key: int
    """Number of the name in `config.output_names`."""

    @property
    def part_key(self) -> str:
        """The name of its part in shards."""
        return f"{self.sample.prefix}{self.config.output_names[self.key]}"

    @property
    def output(self) -> Output:
        return Output(prefix=output_prefix(self.config, self.part_key), suffixes=MEGATRON_SUFFIXES)


def _list_outputs(config: BuildConfig) -> list[_BuildOutput]:
    return [
        _BuildOutput(config=config, sample=sample, key=key)
        for sample in config.samples
        for key in range(len(config.output_names))
    ]


class BuildJob(TextJob):
    """One build; `source` is given if its inputs are found already."""

    def __init__(
        self,
        config: BuildConfig,
        reporter: Reporter,
        index: Mapping[str, Any] | None,
        source: TextSource | None = None,
    ) -> None:
        super().__init__(config, reporter)
        self._index_configs = _index_configs(config, index)
        self._indices: tuple[IndexResult, ...] = ()
        self._datasets = _list_outputs(config)
        self.outputs = [each.output for each in self._datasets]
        self.source = source or open_source(
            config,
            append_eod=config.append_eod,
            reporter=reporter,
            columns=wanted_columns(config),
        )
        self._selection = select(config, self.source.tokenizer)
        self._config = config
        self._dtype = dtype_for_vocabulary(self.source.tokenizer.vocabulary_size)
        settings = {
            **self.source.settings(),
            **plan_settings(config),
            "output-prefix": str(absolute(config.output_prefix)),
            **_sample_settings(config),
        }
        if config.token_ids is not None:
            del settings["engine"]  # nothing is encoded
        self.plan = Plan(settings=settings, inputs=self.source.inputs, places=self.source.places)

    def run(self) -> BuildResult:
        """Run the job and return its result."""
        outcome = self.carry_out(
            encodes=self._config.token_ids is None,
            holds_gil=holds_gil(self._selection),
            conclude=self._build_indices if self._index_configs else None,
        )
        return self._report(outcome)

    def examine(self) -> None:
        """Check a sample of the input, and the disk space."""
        source = self.source
        names = self._config.output_names
        estimate = examine_sample(source.inputs, names, source.tokenizer, source.engine, self._selection)
        check_room(
            estimate.scaled(kept_share(self._config.samples)),
            itemsize=self._dtype.itemsize,
            num_keys=len(names),
            output_folder=folder_of(self._config.output_prefix),
            work_dir=self.work_dir,
            unfinished=[path for each in self._datasets for path in self._target(each).partials],
            copies=shard_copies(self._config),
        )

    def make(self, work: Work) -> Made:
        """Make the shards, and of them the parts of all datasets."""
        results = self._tokenize(work)
        self._require_held_out()
        return Made(
            groups=tuple((self._dataset(each),) for each in self._datasets),
            num_shards=len(results),
            num_reference_texts=count_reference_texts(results),
        )

    def shard_settings(self) -> ShardSettings:
        """Return the settings of all shards."""
        config, source = self._config, self.source
        return ShardSettings(
            tokenizer=source.tokenizer,
            engine=source.engine,
            keys=config.output_names,
            selection=self._selection,
            dtype=self._dtype.str,
            eod_id=source.eod_id,
            layout="megatron",
            empty_documents=config.empty_documents,
            samples=config.samples,
            **self.shard_options(),
        )

    def _tokenize(self, work: Work) -> list[tuple[ShardTask, ShardResult]]:
        tasks = self.source.tasks()
        return self.tokenize(
            work,
            self.shard_settings(),
            [self._token_source(each) for each in self._datasets],
            tasks=tasks,
            filters=self._filters(),
        )

    def _require_held_out(self) -> None:
        """Refuse a share that leaves a dataset without documents."""
        held = {part.key for _, result in self.results for part in result.keys if part.num_documents}
        empty = [each.output.prefix for each in self._datasets if each.part_key not in held]
        if empty and self._config.hold_out is not None:
            share, place = self._config.hold_out, empty[0]
            raise InputError(f"{place}: expected records for it with --hold-out {share}, got none; take another share")

    def _filters(self) -> tuple[str, ...]:
        """Return the flags that leave out records."""
        config = self._config
        is_used = {
            "--where": config.where is not None,
            "--sample": config.sample is not None,
            "--hold-out": config.hold_out is not None,
        }
        return tuple(flag for flag, used in is_used.items() if used)

    def _target(self, each: _BuildOutput) -> Target:
        return Target(
            prefix=absolute(each.output.prefix),
            plan_id=self.plan.plan_id,
            bound_bytes=self.source.text_bytes * self._dtype.itemsize,
        )

    def _token_source(self, each: _BuildOutput) -> TokenSource:
        """Return a dataset that has a part of every shard."""
        return TokenSource(target=self._target(each), key=each.part_key, dtype=self._dtype, work_dir=self.work_dir)

    def _dataset(self, each: _BuildOutput) -> Dataset:
        found = self.find_parts(self.part_numbers(each.part_key))
        parts = tuple(shard_part(part, self.work_dir, self._dtype) for part in found if part is not None)
        provenance = self.provenance(found)
        return Dataset(target=self._target(each), parts=parts, provenance=provenance, quarantine=self.quarantine())

    def describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:
        """Return the content of each manifest, in the order of the outputs."""
        described = zip(self._datasets, made.groups, files, strict=True)
        return [self._describe_dataset(each, dataset, digests) for each, (dataset,), digests in described]

    def _describe_dataset(self, each: _BuildOutput, dataset: Dataset, digests: dict[str, StoredFile]) -> Content:
        numbers = self.part_numbers(each.part_key)
        empty = sum(part.num_empty_documents for part in self.find_parts(numbers) if part is not None)
        header, options = dataset.header, recorded_options(self._config, each.key)
        options |= _sample_options(self._config, each.sample)
        return self.content(
            numbers,
            of_group=len(self._config.samples) > 1,
            of_texts=self._config.token_ids is None,
            with_tokens=header.num_documents - empty,
            empty=empty,
            filters=bool(self._filters()),
            documents=header.num_documents,
            sequences=header.num_sequences,
            token_dtype=header.dtype.name,
            options=self.source.describe_options(**options),
            digests=digests,
        )

    def _report(self, outcome: JobOutcome) -> BuildResult:
        return BuildResult(
            datasets=tuple(
                _built(output.prefix, content) for output, content in zip(self.outputs, outcome.contents, strict=True)
            ),
            engine=self.source.engine.name if self._config.token_ids is None else "token ids as given",
            indices=self._indices,
            **{**self.outcome_fields(outcome), "counts": self._count_all(outcome.contents)},
        )

    def _count_all(self, contents: Sequence[Content]) -> RecordCounts:
        """Return the record counts of all groups of records together."""
        first, *others = [content.record_counts for content in contents[:: len(self._config.output_names)]]
        more = sum(counts.kept for counts in others)
        return first.model_copy(update={"kept": first.kept + more, "filtered": first.filtered - more} if more else {})

    def _build_indices(self, executor: Executor) -> None:
        from dsindex.jobs.index import run_index  # imported late, since it loads numba

        self.reporter.stage("index", total=len(self._index_configs), unit="datasets")
        for config in self._index_configs:
            self._indices += (run_index(config, executor=executor),)
            self.reporter.advance(1)


def _sample_options(config: BuildConfig, sample: Sample) -> dict[str, Any]:
    """Return the options about the records of a sample, as fields of the manifest of its datasets."""
    shares = {"sample": sample.high if sample.high < 1 else config.sample, "leave_out": sample.low or None}
    return {name: value for name, value in shares.items() if value is not None}


def _sample_settings(config: BuildConfig) -> dict[str, Any]:
    """Return the options about samples that are in use, as settings of the plan."""
    shares = {"sample": config.sample, "hold-out": config.hold_out}
    return {name: value for name, value in shares.items() if value is not None}


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
    if config.hold_out is not None:
        msg = "expected --hold-out without options of indices: the datasets are read by jobs of their own splits; "
        raise PlanError(f"{msg}leave them out, and run `dsindex index` afterwards")
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
