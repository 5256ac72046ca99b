"""The driver of `dsindex instruct`: plan, encode, pack, merge, publish. It can be stopped and started at any point.

Per split (or once, without a split) it makes `<prefix>_text_document` (tokens), `<prefix>_loss_mask` (uint8) and, with
a sequence length, `<prefix>_packing_<L>`; each is an MMIDIDX pair with a manifest. The tokens are published last: where
their `.idx` stands, the others are whole.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import xxhash

from dsindex.dtypes import dtype_for_vocabulary
from dsindex.instruct.account import InstructionStatistics
from dsindex.instruct.packed_blocks import PackingResult, PackingTask, write_packing
from dsindex.instruct.shards import (
    MASK_DTYPE,
    InstructionSettings,
    encode_shard,
    make_encoder,
    make_recipe,
    split_names,
    split_prefix,
    text_key,
)
from dsindex.storage import make_folder, output_error
from workflows.assemble import assemble
from workflows.dispatch import DispatchStatistics, RetryPolicy, run_calls
from workflows.executors import Call
from workflows.instruct_config import as_text_config
from workflows.instruct_outputs import SplitOutputs
from workflows.manifest import encode_manifest
from workflows.outputs import MEGATRON_SUFFIXES, Output, find_finished, recorded_files, remove_outputs
from workflows.preflight import Estimate
from workflows.publishing import Dataset, FileDigest, partial_files, publish, withdraw
from workflows.run_record import describe_run
from workflows.session import open_session
from workflows.source import ACCOUNT_FIELDS, check_room, open_source
from workflows.tokenize import TokenizeStage
from workflows.workfolder import Plan, remove_work_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.instruct.config import InstructionConfig
    from dsindex.shards import ShardResult, ShardTask
    from workflows.executors import Executor
    from workflows.instruct_config import InstructConfig
    from workflows.ledger import Ledger
    from workflows.progress import Reporter

    Results = Sequence[tuple[ShardTask, ShardResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSplit:
    """The published datasets of one split."""

    prefix: str
    """What PackedInstructionDataset takes."""
    statistics: InstructionStatistics
    packing: dict[str, Any] | None
    """Sequence length, blocks, padding and fill."""
    files: dict[str, dict[str, FileDigest]]
    """For each dataset, by what follows the prefix, its files by suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructReport:
    """How a job ended."""

    splits: tuple[BuiltSplit, ...]
    already_complete: bool
    account: dict[str, int]
    bad_records: dict[str, int]
    """Set aside, by kind of problem."""
    input_bytes: int
    seconds: float
    run: dict[str, Any]


def run_instruct(config: InstructConfig, instruction: InstructionConfig, *, reporter: Reporter) -> InstructReport:
    """Build instruction data, continuing what an earlier run of the same command left.

    Args:
        config: The options of the job.
        instruction: What records are and what is learnt of them.
        reporter: Is told how it goes.

    Raises:
        DsindexError: For everything that a user can mend; nothing is then under a final name.
    """
    return _Instruct(config, instruction, reporter).run()


class _Instruct:
    """One run of the driver."""

    def __init__(self, config: InstructConfig, instruction: InstructionConfig, reporter: Reporter) -> None:
        self._began = time.time()
        self._config = config
        self._reporter = reporter
        self._work_dir = os.path.abspath(config.work_dir or f"{config.output_prefix}.build")
        self._statistics = DispatchStatistics()
        self._policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        self._source = open_source(as_text_config(config), append_eod=False)
        tokenizer = self._source.tokenizer
        self._dtype = dtype_for_vocabulary(tokenizer.vocabulary_size)
        self._splits = [
            SplitOutputs(split=split, config=config, work_dir=self._work_dir, dtype=self._dtype)
            for split in split_names(config.split)
        ]
        self._outputs = [
            Output(prefix=prefix, suffixes=MEGATRON_SUFFIXES) for split in self._splits for prefix in split.prefixes
        ]
        self._recipe = make_recipe(instruction, tokenizer, config.tokenizer_model)
        make_encoder(self._recipe)  # what is wrong with tokens, patterns and templates is said before work begins
        self._instruction = orjson.loads(self._recipe.config)
        self._chat_files = xxhash.xxh3_64_hexdigest(
            orjson.dumps([self._recipe.special_tokens, self._recipe.chat_templates])
        )
        settings = {
            **self._source.settings(),
            **self._instruction,
            "special tokens and chat templates of the tokenizer's folder": self._chat_files,
            "seq-length": config.seq_length,
            "split": config.split,
            "split-seed": config.split_seed,
            "output-prefix": os.path.abspath(config.output_prefix),
        }
        self._plan = Plan(settings=settings, inputs=self._source.inputs)
        self._token_sources = [
            split.token_sources(self._plan.plan_id, self._source.total_bytes) for split in self._splits
        ]

    def run(self) -> InstructReport:
        if self._config.fresh:
            former = [prefix for split in self._splits for prefix in split.former_packings()]
            replaced = [Output(prefix=prefix, suffixes=MEGATRON_SUFFIXES) for prefix in former]
            remove_outputs([*self._outputs, *replaced], self._work_dir)
        manifests = find_finished(self._outputs, self._plan, self._work_dir, may_grow=True)
        if manifests is not None:
            if not self._config.keep_shards:
                remove_work_folder(self._work_dir)  # of a run that was killed after it had published
            return self._report([manifest["content"] for manifest in manifests], manifests[0]["run"], is_new=False)
        with open_session(
            self._config,
            self._source,
            self._plan,
            work_dir=self._work_dir,
            keys=(),
            reporter=self._reporter,
            examine=self._examine,
            holds_gil=True,
        ) as (executor, ledger):
            return self._work(executor, ledger)

    def _examine(self) -> None:
        """Find out what would fail before anything is done."""
        folder = os.path.dirname(os.path.abspath(self._config.output_prefix))
        make_folder(folder)
        total = self._source.total_bytes
        check_room(
            # A sample would have to be rendered: a token of 3 bytes and a conversation of 500 are assumed.
            Estimate(tokens=total / 3, documents=total / 500),
            itemsize=self._dtype.itemsize + MASK_DTYPE.itemsize,
            num_keys=2,
            output_folder=folder,
            work_dir=self._work_dir,
            unfinished=[path for output in self._outputs for path in partial_files(output.prefix)],
        )

    def _work(self, executor: Executor, ledger: Ledger) -> InstructReport:
        results = self._encode(executor, ledger)
        packings = self._pack(executor, [result for _, result in results])
        inputs = [file.path for file in self._source.inputs]
        datasets = [
            split.datasets(sources, results, packing, inputs)
            for split, sources, packing in zip(self._splits, self._token_sources, packings, strict=True)
        ]
        files = iter(
            assemble(
                [dataset for group in datasets for dataset in group],
                executor=executor,
                ledger=ledger,
                reporter=self._reporter,
                policy=self._policy,
                statistics=self._statistics,
            )
        )
        made = [[(dataset, next(files)) for dataset in group] for group in datasets]
        contents = [
            split.contents(self._source, self._instruction, results, packing, group)
            for split, packing, group in zip(self._splits, packings, made, strict=True)
        ]
        run = describe_run(
            self._plan,
            began=self._began,
            executor=executor,
            statistics=self._statistics,
            shards=len(results),
            engine=self._source.engine,
        )
        for group, described in zip(datasets, contents, strict=True):
            _publish_split(group, [encode_manifest(content, run) for content in described])
        return self._report([content for described in contents for content in described], run, is_new=True)

    def _encode(self, executor: Executor, ledger: Ledger) -> Results:
        """Make every shard; give all with their tasks, in plan order."""
        config = self._config
        stage = TokenizeStage(
            executor=executor,
            ledger=ledger,
            reporter=self._reporter,
            policy=self._policy,
            statistics=self._statistics,
            max_bad_records=config.max_bad_records,
            function=encode_shard,
        )
        settings = InstructionSettings(
            recipe=self._recipe,
            vocabulary_size=self._source.tokenizer.vocabulary_size,
            dtype=self._dtype.str,
            fractions=config.split,
            split_seed=config.split_seed,
            quarantine=config.on_bad_record == "quarantine",
            max_record_bytes=config.max_record_size,
            provenance=not config.no_provenance,
            work_dir=self._work_dir,
        )
        tasks = self._source.tasks()
        sources = [source for group in self._token_sources for source in group]
        return list(zip(tasks, stage.run(tasks, settings, sources), strict=True))

    def _pack(self, executor: Executor, results: Sequence[ShardResult]) -> list[PackingResult | None]:
        """Plan the blocks of every split from all its lengths in order; done again after a crash, it is the same."""
        length = self._config.seq_length
        if length is None:
            return [None for _ in self._splits]
        packings: list[PackingResult | None] = [None for _ in self._splits]
        self._reporter.stage("pack", total=len(self._splits), unit="datasets")

        def on_result(number: int, result: PackingResult) -> None:
            packings[number] = result
            self._reporter.advance(1)

        def calls() -> Iterator[tuple[int, Call]]:
            for number, outputs in enumerate(self._splits):
                name, key = split_prefix("blocks", outputs.split), text_key(outputs.split)
                parts = [part for result in results for part in result.keys if part.key == key]
                task = PackingTask(
                    name=name,
                    idx_paths=tuple(os.path.join(self._work_dir, part.idx.name) for part in parts),
                    sequence_length=length,
                    work_dir=self._work_dir,
                )
                yield (
                    number,
                    Call(name=f"pack[{name}]", place=self._work_dir, function=write_packing, arguments=(task,)),
                )

        run_calls(
            executor,
            calls(),
            on_result=on_result,
            policy=self._policy,
            statistics=self._statistics,
            on_idle=self._reporter.tick,
        )
        return packings

    def _report(self, contents: Sequence[dict[str, Any]], run: dict[str, Any], *, is_new: bool) -> InstructReport:
        """Say what was built, now or by an earlier run.

        Args:
            contents: Of the manifests of all outputs, in the order of `_outputs`.
            run: What a manifest says of the run.
            is_new: It was built now.
        """
        remaining = iter(contents)
        groups = [[next(remaining) for _ in split.prefixes] for split in self._splits]
        first = contents[0]["account"]
        account = {name: first[name] for name in ACCOUNT_FIELDS} | {"kept": first["kept"] + first["elsewhere"]}
        return InstructReport(
            splits=tuple(
                BuiltSplit(
                    prefix=split_prefix(self._config.output_prefix, split.split),
                    statistics=InstructionStatistics(**group[0]["statistics"]),
                    packing=group[0]["packing"],
                    files={
                        prefix.removeprefix(f"{split.prefix}_"): recorded_files(content)
                        for prefix, content in zip(split.prefixes, group, strict=True)
                    },
                )
                for split, group in zip(self._splits, groups, strict=True)
            ),
            already_complete=not is_new,
            account=account,
            bad_records=contents[0]["bad_records"],
            input_bytes=self._source.total_bytes,
            seconds=time.time() - self._began,
            run=run,
        )


def _publish_split(datasets: Sequence[Dataset], manifests: Sequence[bytes]) -> None:
    """Give the datasets of a split their final names: first what goes with the tokens, then the tokens.

    Where the tokens' `.idx` stands, the others are whole and belong to it, so an older one goes before all else.
    """
    try:
        withdraw(datasets[0].target)
    except OSError as error:
        raise output_error(datasets[0].target.prefix, error) from error
    for dataset, manifest in reversed(list(zip(datasets, manifests, strict=True))):
        publish(dataset, manifest)
