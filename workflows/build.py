"""The driver of `dsindex build`: plan, tokenize, merge, publish, index. It can be stopped and started at any point."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.dtypes import dtype_for_vocabulary
from dsindex.shards import ShardSettings
from dsindex.storage import make_folder
from workflows.assemble import assemble
from workflows.dispatch import DispatchStatistics, RetryPolicy
from workflows.executors import make_executor
from workflows.manifest import describe_files, encode_manifest
from workflows.outputs import MEGATRON_SUFFIXES, Output, find_finished, recorded_files, remove_outputs
from workflows.preflight import examine_sample
from workflows.publishing import (
    Dataset,
    FileDigest,
    Target,
    partial_files,
    publish,
    shard_part,
    shard_provenance,
    shard_quarantine,
)
from workflows.ranges import TokenSource
from workflows.run_record import describe_run
from workflows.session import open_session
from workflows.source import ACCOUNT_FIELDS, check_room, count_lines, open_source
from workflows.tokenize import TokenizeStage
from workflows.workfolder import Plan, remove_work_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.merge import Part
    from dsindex.shards import ShardResult, ShardTask
    from workflows.config import BuildConfig
    from workflows.executors import Executor
    from workflows.index import IndexReport
    from workflows.index_config import IndexConfig
    from workflows.ledger import Ledger
    from workflows.progress import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDataset:
    """One published dataset."""

    prefix: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    files: dict[str, FileDigest]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """How a build ended."""

    datasets: tuple[BuiltDataset, ...]
    already_complete: bool
    account: dict[str, int]
    input_bytes: int
    seconds: float
    run: dict[str, Any]
    indices: tuple[IndexReport, ...]
    """One per dataset, where index options were given."""


def run_build(config: BuildConfig, *, reporter: Reporter, index: Mapping[str, Any] | None = None) -> BuildReport:
    """Build one dataset per key, continuing what an earlier run of the same command left.

    Args:
        config: The options of the build.
        reporter: Is told how it goes.
        index: Options of IndexConfig other than paths; given, the indices of every dataset are built last.

    Raises:
        DsindexError: For everything that a user can mend; nothing is then under a final name.
    """
    return _Build(config, reporter, index).run()


def output_prefix(config: BuildConfig, key: str) -> str:
    """Give a key's dataset path without suffix, as preprocess_data.py names it."""
    return f"{config.output_prefix}_{key}_document"


class _Build:
    """One run of the driver."""

    def __init__(self, config: BuildConfig, reporter: Reporter, index: Mapping[str, Any] | None) -> None:
        self._began = time.time()
        self._config = config
        self._index_configs = _index_configs(config, index)
        self._reporter = reporter
        self._outputs = [
            Output(prefix=output_prefix(config, key), suffixes=MEGATRON_SUFFIXES) for key in config.json_keys
        ]
        self._work_dir = os.path.abspath(config.work_dir or f"{config.output_prefix}.build")
        self._statistics = DispatchStatistics()
        self._policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        self._source = open_source(config, append_eod=config.append_eod)
        self._dtype = dtype_for_vocabulary(self._source.tokenizer.vocabulary_size)
        settings = {
            **self._source.settings(),
            "json-keys": list(config.json_keys),
            "output-prefix": os.path.abspath(config.output_prefix),
        }
        self._plan = Plan(settings=settings, inputs=self._source.inputs)

    def run(self) -> BuildReport:
        if self._config.fresh:
            remove_outputs(self._outputs, self._work_dir)
        manifests = find_finished(self._outputs, self._plan, self._work_dir, may_grow=True)
        if manifests is not None:
            if not self._config.keep_shards:
                remove_work_folder(self._work_dir)  # of a run that was killed after it had published
            return self._report_finished(manifests)
        with open_session(
            self._config,
            self._source,
            self._plan,
            work_dir=self._work_dir,
            keys=self._config.json_keys,
            reporter=self._reporter,
            examine=self._examine,
        ) as (executor, ledger):
            return self._work(executor, ledger)

    def _examine(self) -> None:
        """Find out what would fail before anything is done."""
        folder = os.path.dirname(os.path.abspath(self._config.output_prefix))
        make_folder(folder)
        source = self._source
        estimate = examine_sample(source.inputs, self._config.json_keys, source.tokenizer, source.engine)
        check_room(
            estimate,
            itemsize=self._dtype.itemsize,
            num_keys=len(self._outputs),
            output_folder=folder,
            work_dir=self._work_dir,
            unfinished=[path for output in self._outputs for path in partial_files(output.prefix)],
        )

    def _work(self, executor: Executor, ledger: Ledger) -> BuildReport:
        results = self._tokenize(executor, ledger)
        datasets = [self._dataset(source, results) for source in self._token_sources()]
        files = assemble(
            datasets,
            executor=executor,
            ledger=ledger,
            reporter=self._reporter,
            policy=self._policy,
            statistics=self._statistics,
        )
        run = describe_run(
            self._plan,
            began=self._began,
            executor=executor,
            statistics=self._statistics,
            shards=len(results),
            engine=self._source.engine,
        )
        for key, dataset, digests in zip(self._config.json_keys, datasets, files, strict=True):
            publish(dataset, encode_manifest(self._content(key, dataset, digests, results), run))
        return BuildReport(
            datasets=tuple(
                _built(output.prefix, self._content(key, dataset, digests, results), digests)
                for key, output, dataset, digests in zip(
                    self._config.json_keys, self._outputs, datasets, files, strict=True
                )
            ),
            already_complete=False,
            account=count_lines([result for _, result in results]),
            input_bytes=self._source.total_bytes,
            run=run,
            indices=self._build_indices(executor),
            seconds=time.time() - self._began,
        )

    def _tokenize(self, executor: Executor, ledger: Ledger) -> list[tuple[ShardTask, ShardResult]]:
        """Make every shard; give all with their tasks, in plan order."""
        config, source = self._config, self._source
        stage = TokenizeStage(
            executor=executor,
            ledger=ledger,
            reporter=self._reporter,
            policy=self._policy,
            statistics=self._statistics,
            max_bad_records=config.max_bad_records,
        )
        settings = ShardSettings(
            tokenizer=source.tokenizer,
            engine=source.engine,
            keys=config.json_keys,
            dtype=self._dtype.str,
            eod_id=source.eod_id,
            layout="megatron",
            quarantine=config.on_bad_record == "quarantine",
            max_record_bytes=config.max_record_size,
            provenance=not config.no_provenance,
            work_dir=self._work_dir,
        )
        tasks = source.tasks()
        return list(zip(tasks, stage.run(tasks, settings, self._token_sources()), strict=True))

    def _token_sources(self) -> list[TokenSource]:
        """Give every key's dataset, and where its parts come from."""
        return [
            TokenSource(
                target=Target(
                    prefix=os.path.abspath(output.prefix),
                    plan_id=self._plan.plan_id,
                    bound_bytes=self._source.total_bytes * self._dtype.itemsize,
                ),
                part_of=partial(self._part, key),
            )
            for key, output in zip(self._config.json_keys, self._outputs, strict=True)
        ]

    def _part(self, key: str, result: ShardResult) -> Part:
        return shard_part(next(part for part in result.keys if part.key == key), self._work_dir, self._dtype)

    def _dataset(self, source: TokenSource, results: Sequence[tuple[ShardTask, ShardResult]]) -> Dataset:
        return Dataset(
            target=source.target,
            parts=tuple(source.part_of(result) for _, result in results),
            provenance=None if self._config.no_provenance else shard_provenance(results, self._work_dir),
            quarantine=shard_quarantine(results, self._work_dir, [file.path for file in self._source.inputs]),
        )

    def _content(
        self,
        key: str,
        dataset: Dataset,
        digests: dict[str, FileDigest],
        results: Sequence[tuple[ShardTask, ShardResult]],
    ) -> dict[str, Any]:
        """Give the manifest's part that is under the one law."""
        parts = [part for _, result in results for part in result.keys if part.key == key]
        empty = sum(part.num_empty_documents for part in parts)
        header = dataset.header
        return {
            "inputs": self._source.describe_inputs(results),
            "account": {
                **count_lines([result for _, result in results]),
                "documents_with_tokens": header.num_documents - empty,
                "empty_documents": empty,
            },
            "documents": header.num_documents,
            "sequences": header.num_sequences,
            "tokens": sum(part.num_tokens for part in parts),
            "eod_in_text": sum(part.eod_in_text for part in parts),
            "token_dtype": str(header.dtype),
            "tokenizer": self._source.describe_tokenizer(),
            "options": {"json_key": key, **self._source.describe_options()},
            "digests": describe_files(digests),
        }

    def _report_finished(self, manifests: Sequence[dict[str, Any]]) -> BuildReport:
        """Say what an earlier run built, and build indices that are still wanted."""
        account = manifests[0]["content"]["account"]
        indices: tuple[IndexReport, ...] = ()
        if self._index_configs:
            executor = make_executor(self._config)
            try:
                indices = self._build_indices(executor)
            finally:
                executor.close()
        return BuildReport(
            datasets=tuple(
                _built(output.prefix, manifest["content"], recorded_files(manifest["content"]))
                for output, manifest in zip(self._outputs, manifests, strict=True)
            ),
            already_complete=True,
            account={name: account[name] for name in ACCOUNT_FIELDS},
            input_bytes=self._source.total_bytes,
            seconds=time.time() - self._began,
            run=manifests[0]["run"],
            indices=indices,
        )

    def _build_indices(self, executor: Executor) -> tuple[IndexReport, ...]:
        if not self._index_configs:
            return ()
        from workflows.index import run_index  # numba loads when it is used

        self._reporter.stage("index", total=len(self._index_configs), unit="datasets")
        reports = []
        for config in self._index_configs:
            reports.append(run_index(config, executor=executor))
            self._reporter.advance(1)
        return tuple(reports)


def _built(prefix: str, content: dict[str, Any], files: dict[str, FileDigest]) -> BuiltDataset:
    return BuiltDataset(
        prefix=prefix,
        num_documents=content["documents"],
        num_sequences=content["sequences"],
        num_tokens=content["tokens"],
        files=files,
    )


def _index_configs(config: BuildConfig, index: Mapping[str, Any] | None) -> list[IndexConfig]:
    """Give the index options of every dataset, checked before anything is built."""
    if index is None:
        return []
    from workflows.index_config import IndexConfig

    return [IndexConfig(**{**index, "data_path": (output_prefix(config, key),)}) for key in config.json_keys]
