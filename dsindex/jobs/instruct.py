"""The driver of `dsindex instruct`: plan, encode, pack, merge, publish. It can be interrupted and resumed at any point.

Per split (or once, without a split) it makes `<prefix>_text_document` (tokens), `<prefix>_loss_mask` (uint8) and, with
a sequence length, `<prefix>_packing_<L>`; each is an MMIDIDX pair with a manifest. The tokens are published last: if
their `.idx` exists, the others are complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import orjson
import xxhash

from dsindex.amounts import count, format_size, format_speed
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.frame import Job, JobOutcome, Made, run_job
from dsindex.engine.identity import Plan
from dsindex.engine.nodes import require_sound_nodes
from dsindex.engine.outputs import MEGATRON_SUFFIXES, Output
from dsindex.engine.source import count_missing, describe_kept, open_source, require_recorded_inputs
from dsindex.engine.standard_input import piped_input_named
from dsindex.engine.start import Estimate, check_room
from dsindex.engine.tokenize import make_shards
from dsindex.errors import InputError
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import run_in_order
from dsindex.execution.report import Report
from dsindex.instruction.config import check_config
from dsindex.instruction.recipe import make_recipe
from dsindex.instruction.statistics import InstructionStatistics
from dsindex.jobs.instruct_exports import InstructExports, MadeExport
from dsindex.jobs.instruct_shards import (
    MASK_DTYPE,
    InstructionSettings,
    PackingResult,
    PackingTask,
    SplitOutputs,
    encode_shard,
    split_names,
    split_prefix,
    write_packing,
)
from dsindex.option_problems import name_kind
from dsindex.options.config import UsageError, name_lists, validated, work_folder_path
from dsindex.options.instruct import InstructConfig, as_text_config
from dsindex.store.config_files import option_names
from dsindex.store.requests import RequestCounts, all_requests, describe_requests
from dsindex.store.urls import absolute, folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from dsindex.engine.manifest import Content, RecordCounts, RecordedPacking, Run
    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.engine.start import Work
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.instruction.config import InstructionConfig
    from dsindex.store.storage import StoredFile

    Results = Sequence[tuple[ShardTask, ShardResult]]


THREADS_UP_TO_BYTES = {True: 8 << 20, False: 1 << 20}
"""Text that is encoded in this process, with the fast engine or without: as much as one CPU encodes in the time that
worker processes take to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSplit:
    """The published datasets of one split."""

    prefix: str
    """The prefix to open with PackedInstructionDataset."""
    statistics: InstructionStatistics
    packing: RecordedPacking | None
    files: dict[str, dict[str, StoredFile]]
    """Dataset's name after `prefix` → its files by suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructResult(Report):
    """The result of a job."""

    splits: tuple[BuiltSplit, ...]
    already_complete: bool
    counts: RecordCounts
    """Record counts of all splits together."""
    bad_records: dict[str, int]
    """Numbers of quarantined records by kind of problem."""
    input_bytes: int
    seconds: float
    run: Run
    input_notes: tuple[str, ...]
    """Sentences about inputs that are repeated or were left out."""
    requests: RequestCounts
    """The requests to object stores."""
    exports: tuple[MadeExport, ...] = ()
    """The folders in formats of other trainers."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Every dataset that was written, including masks and block layouts."""
        return tuple(f"{split.prefix}_{name}" for split in self.splits for name in split.files)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(split.prefix for split in self.splits)})"

    def lines(self) -> list[str]:
        """Return the summary: what was built, what was quarantined and why, and the digests of the output."""
        counts = self.counts
        lines = []
        if self.already_complete:
            is_idle = all(export.already_complete for export in self.exports)
            done = "nothing was done" if is_idle else "only exports were made"
            lines.append(f"already complete: the same plan was carried out before, {done}")
        else:
            lines.append(
                f"done in {self.seconds:.1f} s: {format_size(self.input_bytes)} of input, "
                f"{format_speed(self.input_bytes / max(self.seconds, 1e-6))}, "
                f"{count(self.run.shards, 'shard')}, {self.run.executor} executor, "
                f"{count(self.run.workers, 'worker')}"
            )
        lines.append(
            f"{count(counts.lines, 'line')} = {counts.kept:,} kept + {counts.quarantined:,} quarantined + "
            f"{counts.blank:,} blank"
        )
        if self.bad_records:
            lines.append("quarantined: " + ", ".join(f"{kind} {count:,}" for kind, count in self.bad_records.items()))
        lines += [*describe_requests(self.requests), *self.input_notes]
        for split in self.splits:
            lines += _describe_split(split)
        for export in self.exports:
            lines += _describe_export(export)
        return lines


def run_instruct(config: InstructConfig, instruction: InstructionConfig, *, reporter: Reporter) -> InstructResult:
    """Build instruction data, continuing an interrupted run of the same plan.

    Args:
        config: The options of the job.
        instruction: The configuration of records and of the text that is trained on.
        reporter: Shows progress.

    Raises:
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    with piped_input_named(work_folder_path(config), config.input):
        return _Instruct(config, instruction, reporter).run()


class _Instruct:
    """The parts of an instruction job that other kinds of job do not have."""

    def __init__(self, config: InstructConfig, instruction: InstructionConfig, reporter: Reporter) -> None:
        self._requests_before = all_requests()
        self._config = config
        self._reporter = reporter
        self._work_dir = work_folder_path(config)
        source = open_source(as_text_config(config), append_eod=False, reporter=reporter)
        tokenizer = source.tokenizer
        self._dtype = dtype_for_vocabulary(tokenizer.vocabulary_size)
        self._splits = [
            SplitOutputs(split=split, config=config, work_dir=self._work_dir, dtype=self._dtype)
            for split in split_names(config.split)
        ]
        self._outputs = [
            Output(prefix=prefix, suffixes=MEGATRON_SUFFIXES) for split in self._splits for prefix in split.prefixes
        ]
        # Reports wrong tokens, patterns and templates before work begins.
        self._recipe = make_recipe(instruction, tokenizer, config.tokenizer_model, engine=source.engine)
        self._source = replace(source, engine=self._recipe.engine)
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
            "output-prefix": str(absolute(config.output_prefix)),
        }
        self._plan = Plan(settings=settings, inputs=self._source.inputs)
        self._token_sources = [
            split.token_sources(self._plan.plan_id, self._source.text_bytes) for split in self._splits
        ]

        self._exports = InstructExports(
            config, instruction, splits=self._splits, source=self._source, reporter=reporter
        )
        self._results: Results = ()
        self._packings: list[PackingResult | None] = []

    def run(self) -> InstructResult:
        source = self._source
        job = Job(
            config=self._config,
            plan=self._plan,
            outputs=tuple(self._outputs),
            obsolete=tuple(
                Output(prefix=prefix, suffixes=MEGATRON_SUFFIXES)
                for split in self._splits
                for prefix in split.former_packings()
            ),
            input_bytes=source.total_bytes,
            holds_gil=source.text_bytes > THREADS_UP_TO_BYTES[source.engine.name == "gigatoken"],
            engine=source.engine,
            notes=source.first_notes(),
            require_same_inputs=partial(require_recorded_inputs, source.inputs),
            examine=self._examine,
            check_nodes=partial(require_sound_nodes, source, keys=()),
            count_missing=partial(count_missing, source),
            make=self._make,
            describe=self._describe,
            describe_kept=partial(describe_kept, source, self._work_dir),
            conclude=self._exports.make if self._exports.are_due else None,
        )
        return self._report(run_job(job, reporter=self._reporter))

    def _examine(self) -> None:
        """Check the exports' folders and the disk space."""
        self._exports.examine()
        total = self._source.text_bytes
        # No sample is rendered: 3 bytes per token and 500 bytes per conversation are assumed.
        estimate = Estimate(tokens=total / 3, documents=total / 500)
        check_room(
            estimate,
            itemsize=self._dtype.itemsize + MASK_DTYPE.itemsize,
            num_keys=2,
            output_folder=folder_of(self._config.output_prefix),
            work_dir=self._work_dir,
            unfinished=[path for group in self._token_sources for tokens in group for path in tokens.target.partials],
            exports=self._exports.room_for(estimate.tokens),
        )

    def _make(self, work: Work) -> Made:
        results = self._results = self._encode(work)
        packings = self._packings = self._pack(work, [result for _, result in results])
        inputs = [file.path for file in self._source.inputs]
        return Made(
            groups=tuple(
                tuple(split.datasets(sources, results, packing, inputs))
                for split, sources, packing in zip(self._splits, self._token_sources, packings, strict=True)
            ),
            num_shards=len(results),
        )

    def _describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:
        remaining = iter(files)
        contents: list[Content] = []
        for split, packing, group in zip(self._splits, self._packings, made.groups, strict=True):
            described = [(dataset, next(remaining)) for dataset in group]
            contents += split.contents(self._source, self._instruction, self._results, packing, described)
        return contents

    def _encode(self, work: Work) -> Results:
        """Make every shard; return all with their tasks, in plan order."""
        config = self._config
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
        results = make_shards(
            work, tasks, settings, sources=sources, max_bad_records=config.max_bad_records, function=encode_shard
        )
        return list(zip(tasks, results, strict=True))

    def _pack(self, work: Work, results: Sequence[ShardResult]) -> list[PackingResult | None]:
        """Pack each split's conversations into blocks; the result depends only on their lengths and order."""
        length = self._config.seq_length
        if length is None:
            return [None for _ in self._splits]
        self._reporter.stage("pack", total=len(self._splits), unit="datasets")

        def calls() -> Iterator[Call]:
            for outputs, (tokens, _) in zip(self._splits, self._token_sources, strict=True):
                name = split_prefix("blocks", outputs.split)
                task = PackingTask(
                    name=name,
                    parts=tuple(tokens.part_of(result) for result in results),
                    sequence_length=length,
                    work_dir=self._work_dir,
                )
                yield Call(name=f"pack[{name}]", place=self._work_dir, function=write_packing, arguments=(task,))

        packings: list[PackingResult | None] = []
        for packing in run_in_order(
            work.executor, calls(), policy=work.policy, statistics=work.statistics, on_idle=self._reporter.tick
        ):
            packings.append(packing)
            self._reporter.advance(1)
        return packings

    def _report(self, outcome: JobOutcome) -> InstructResult:
        contents = outcome.contents
        remaining = iter(contents)
        groups = [[next(remaining) for _ in split.prefixes] for split in self._splits]
        first = contents[0].record_counts
        counts = first.model_copy(update={"kept": first.kept + first.elsewhere, "elsewhere": 0})
        return InstructResult(
            splits=tuple(
                BuiltSplit(
                    prefix=split_prefix(self._config.output_prefix, split.split),
                    statistics=InstructionStatistics(**group[0].statistics or {}),
                    packing=group[0].packing,
                    files={
                        prefix.removeprefix(f"{split.prefix}_"): content.digests
                        for prefix, content in zip(split.prefixes, group, strict=True)
                    },
                )
                for split, group in zip(self._splits, groups, strict=True)
            ),
            already_complete=outcome.already_complete,
            counts=counts,
            bad_records=contents[0].bad_records or {},
            input_bytes=self._source.total_bytes,
            seconds=outcome.seconds,
            run=outcome.run,
            input_notes=self._source.notes,
            requests=all_requests().since(self._requests_before),
            exports=tuple(self._exports.made),
        )


def join_job(
    settings: Mapping[str, Any], flags: Mapping[str, Any], *, source: str, folder: Path
) -> tuple[InstructConfig, InstructionConfig]:
    """Join the section `job` of a configuration with flags, of which flags win.

    Args:
        settings: The configuration, as YAML gives it.
        flags: Options of InstructConfig.
        source: What messages call the configuration.
        folder: Where a relative `chat_template_file` is looked for.

    Raises:
        InputError: If it is not a configuration.
        UsageError: If the job's options make no sense.
    """
    loaded = option_names(dict(settings), source=source)
    job: Any = loaded.pop("job", {})
    if not isinstance(job, dict):
        msg = f"{source}: expected the section job to be a mapping of options to values, got {name_kind(job)}"
        raise InputError(msg)
    merged = option_names(job, source=f"{source}: job") | dict(flags)
    config = validated(name_lists(merged), InstructConfig)
    if config.seq_length is not None and loaded.get("max_length") is None:
        loaded["max_length"] = config.seq_length
    instruction = check_config(loaded, source=source, folder=folder)
    if config.seq_length is not None and (instruction.max_length or 0) > config.seq_length:
        raise UsageError(
            f"expected max_length to be at most --seq-length {config.seq_length}, got {instruction.max_length}: "
            f"a conversation must fit into a block"
        )
    return config, instruction


def _describe_export(export: MadeExport) -> list[str]:
    was_there = ", already complete" if export.already_complete else ""
    lines = [f"{export.path}/: export {export.kind}{was_there}"]
    for name, split in export.content.splits.items():
        learnt = "" if split.targets is None else f", {split.tokens:,} tokens, {split.targets:,} targets"
        left_out = f", {split.left_out:,} left out, which it would misread" if split.left_out else ""
        lines.append(f"  {name}: {count(split.rows, 'row')}{learnt}{left_out}")
    return lines


def _describe_split(split: BuiltSplit) -> list[str]:
    lines = [f"{split.prefix}: {split.statistics.describe()}"]
    packing = split.packing
    if packing is not None:
        lines.append(
            f"  {count(packing.blocks, 'block')} of {packing.sequence_length:,}: {packing.padding:,} padding, "
            f"fill {100 * packing.fill:.2f} %"
        )
    for name, files in split.files.items():
        lines += [f"  {name}.{suffix:4} {files[suffix].digest}" for suffix in ("bin", "idx")]
    return lines
