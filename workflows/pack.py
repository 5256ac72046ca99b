"""The driver of `dsindex pack`: from JSONL to a `.pbin`, through the shards, executors and work folder of a build."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.convert import TYPE_OF_SIZE
from dsindex.formats.pbin import ERAS, PackedHeader
from dsindex.shards import ShardSettings
from dsindex.storage import make_folder
from dsindex.text.patterns import parse_text_pattern
from workflows.assemble import assemble
from workflows.dispatch import DispatchStatistics, RetryPolicy
from workflows.executors import wants_ray
from workflows.manifest import describe_files, encode_manifest
from workflows.ordered import ordered_runner
from workflows.outputs import PACKED_SUFFIXES, Output, find_finished, recorded_files, remove_outputs
from workflows.packed_file import choose_token_bytes, make_ends
from workflows.preflight import examine_sample
from workflows.publishing import (
    Dataset,
    FileDigest,
    Target,
    identify_parts,
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
from workflows.workfolder import SHARDS_FOLDER, Plan, remove_work_folder

if TYPE_CHECKING:
    from dsindex.merge import Part
    from dsindex.shards import ShardResult, ShardTask
    from workflows.executors import Executor
    from workflows.ledger import Ledger
    from workflows.pack_config import PackConfig
    from workflows.progress import Reporter

Results = list[tuple["ShardTask", "ShardResult"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """How a packing ended."""

    path: str
    num_documents: int
    num_tokens: int
    num_empty: int
    """Records whose text gives no tokens; they are no documents."""
    token_dtype: str
    account: dict[str, int]
    files: dict[str, FileDigest]
    already_complete: bool
    input_bytes: int
    seconds: float
    run: dict[str, Any]


def run_pack(config: PackConfig, *, reporter: Reporter) -> PackReport:
    """Pack JSONL into a `.pbin`, continuing what an earlier run of the same command left.

    Raises:
        DsindexError: For everything that a user can mend; nothing is then under a final name.
    """
    return _Pack(config, reporter).run()


class _Pack:
    """One run of the driver."""

    def __init__(self, config: PackConfig, reporter: Reporter) -> None:
        self._began = time.time()
        self._pattern = parse_text_pattern(config.jq_pattern)
        if self._pattern.key is None and config.executor == "auto" and not wants_ray(config):
            # jq holds Python's global lock while it runs.
            config = config.model_copy(update={"executor": "processes"})
        self._config = config
        self._reporter = reporter
        self._prefix = os.path.abspath(config.output_prefix)
        self._output = Output(prefix=config.output_prefix, suffixes=PACKED_SUFFIXES)
        self._work_dir = os.path.abspath(config.work_dir or f"{config.output_prefix}.build")
        self._statistics = DispatchStatistics()
        self._policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        self._source = open_source(config, append_eod=True)
        self._era = ERAS[config.pbin_era]
        self._token_bytes = choose_token_bytes(self._source.tokenizer, self._era)
        settings = self._source.settings()
        own = {
            "eod-token": settings.pop("append-eod"),
            "jq-pattern": config.jq_pattern,
            "output": os.path.abspath(config.output),
            "pbin-era": config.pbin_era,
        }
        self._plan = Plan(settings=settings | own, inputs=self._source.inputs)
        self._target = Target(
            prefix=self._prefix,
            plan_id=self._plan.plan_id,
            bound_bytes=self._source.total_bytes * self._token_bytes,
            head_bytes=self._era.header_bytes,
            swapped_bytes=self._token_bytes if self._era.byte_order == ">" else 1,
        )

    def run(self) -> PackReport:
        config = self._config
        if config.fresh:
            remove_outputs([self._output], self._work_dir)
        manifests = find_finished([self._output], self._plan, self._work_dir, may_grow=True)
        if manifests is not None:
            if not config.keep_shards:
                remove_work_folder(self._work_dir)  # of a run that was killed after it had published
            [manifest] = manifests
            return self._report(manifest["content"], manifest["run"], already_complete=True)
        with open_session(
            config,
            self._source,
            self._plan,
            work_dir=self._work_dir,
            keys=(self._pattern.column,),
            reporter=self._reporter,
            examine=self._examine,
        ) as (executor, ledger):
            return self._work(executor, ledger)

    def _examine(self) -> None:
        """Find out what would fail before anything is done."""
        source = self._source
        folder = os.path.dirname(self._prefix)
        make_folder(folder)
        estimate = examine_sample(
            source.inputs, (self._pattern.column,), source.tokenizer, source.engine, pattern=self._pattern
        )
        check_room(
            estimate,
            itemsize=self._token_bytes,
            num_keys=1,
            output_folder=folder,
            work_dir=self._work_dir,
            unfinished=partial_files(self._prefix),
        )

    def _work(self, executor: Executor, ledger: Ledger) -> PackReport:
        results = self._tokenize(executor, ledger)
        dataset = self._dataset(results, executor)
        [files] = assemble(
            [dataset],
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
        content = self._content(results, files)
        publish(dataset, encode_manifest(content, run))
        return self._report(content, run, already_complete=False)

    def _tokenize(self, executor: Executor, ledger: Ledger) -> Results:
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
            keys=(self._pattern.column,),
            pattern=self._pattern,
            dtype=TYPE_OF_SIZE[self._token_bytes].str,
            eod_id=source.eod_id,
            layout="packed",
            quarantine=config.on_bad_record == "quarantine",
            max_record_bytes=config.max_record_size,
            provenance=not config.no_provenance,
            work_dir=self._work_dir,
        )
        tasks = source.tasks()
        tokens = TokenSource(target=self._target, part_of=self._part)
        return list(zip(tasks, stage.run(tasks, settings, [tokens]), strict=True))

    def _dataset(self, results: Results, executor: Executor) -> Dataset:
        parts = tuple(self._part(result) for _, result in results)
        header = PackedHeader(
            era=self._era, token_bytes=self._token_bytes, data_bytes=sum(part.bin_bytes for part in parts)
        )
        run_tasks = ordered_runner(executor, name="pack-index", policy=self._policy)
        stem = os.path.join(self._work_dir, SHARDS_FOLDER, identify_parts(parts))
        return Dataset(
            target=self._target,
            parts=parts,
            provenance=None if self._config.no_provenance else shard_provenance(results, self._work_dir),
            quarantine=shard_quarantine(results, self._work_dir, [file.path for file in self._source.inputs]),
            packed=make_ends(header, parts, stem=stem, run_tasks=run_tasks),
        )

    def _part(self, result: ShardResult) -> Part:
        return shard_part(result.keys[0], self._work_dir, TYPE_OF_SIZE[self._token_bytes])

    def _content(self, results: Results, files: dict[str, FileDigest]) -> dict[str, Any]:
        """Give the manifest's part that is under the one law."""
        shards = [result.keys[0] for _, result in results]
        num_documents = sum(shard.num_documents for shard in shards)
        return {
            "inputs": self._source.describe_inputs(results),
            "account": {
                **count_lines([result for _, result in results]),
                "documents_with_tokens": num_documents,
                "empty_documents": sum(shard.num_empty_documents for shard in shards),
            },
            "documents": num_documents,
            "sequences": num_documents,
            "tokens": sum(shard.num_tokens for shard in shards),
            "eod_in_text": sum(shard.eod_in_text for shard in shards),
            "token_dtype": np.dtype(f"u{self._token_bytes}").name,
            "tokenizer": self._source.describe_tokenizer(),
            "options": {
                "jq_pattern": self._config.jq_pattern,
                "pbin_era": self._config.pbin_era,
                **self._source.describe_options(),
            },
            "digests": describe_files(files),
        }

    def _report(self, content: dict[str, Any], run: dict[str, Any], *, already_complete: bool) -> PackReport:
        account = content["account"]
        return PackReport(
            path=self._config.output,
            num_documents=content["documents"],
            num_tokens=content["tokens"],
            num_empty=account["empty_documents"],
            token_dtype=content["token_dtype"],
            account={name: account[name] for name in ACCOUNT_FIELDS},
            files=recorded_files(content),
            already_complete=already_complete,
            input_bytes=self._source.total_bytes,
            seconds=time.time() - self._began,
            run=run,
        )
