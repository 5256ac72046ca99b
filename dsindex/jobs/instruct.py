"""The driver of `dsindex instruct`: plan, encode, pack, merge, publish. It can be interrupted and resumed at any point.

Per split (or once, without a split) it makes `<prefix>_text_document` (tokens) and `<prefix>_loss_mask` (uint8); each
is an MMIDIDX pair with a manifest. The tokens are published last: if their `.idx` exists, the masks are complete.
Packs (dsindex.jobs.packs) and exports are made of what is published, so a finished job takes more of them at any time.
"""

from __future__ import annotations

import glob
import os
import re
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import xxhash

from dsindex.amounts import count
from dsindex.datasets.exports import FACTS_PREFIX, Counts, ExportedSequences, SequenceSource, WrittenFile
from dsindex.datasets.instruction import packing_prefix
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.dispatch import DispatchStatistics, RetryPolicy, run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.export_folder import (
    ExportContent,
    ExportedFile,
    ExportedSplit,
    ExportFolder,
    ExportManifest,
    read_export_manifest,
    remove_export,
    require_own,
)
from dsindex.engine.frame import JobOutcome, Made
from dsindex.engine.identity import Plan
from dsindex.engine.manifest import describe_run, read_manifest
from dsindex.engine.outputs import MEGATRON_SUFFIXES, Output
from dsindex.engine.source import open_source
from dsindex.engine.standard_input import piped_input_named
from dsindex.engine.start import Estimate, check_room
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.instruction.config import check_config
from dsindex.instruction.encode import make_recipe
from dsindex.instruction.statistics import InstructionStatistics
from dsindex.jobs.exports import bridge, parquet
from dsindex.jobs.instruct_shards import (
    MASK_DTYPE,
    InstructionSettings,
    SplitOutputs,
    encode_shard,
    split_names,
    split_prefix,
)
from dsindex.jobs.packs import FORMAT as PACKING_FORMAT
from dsindex.jobs.packs import Packings
from dsindex.jobs.text_job import TextJob, TextResult
from dsindex.option_problems import name_kind
from dsindex.options.config import UsageError, name_lists, validated, work_folder_path
from dsindex.options.instruct import InstructConfig, as_text_config
from dsindex.store.config_files import option_names
from dsindex.store.lock import hold_lock
from dsindex.store.storage import (
    BlockDigester,
    StoredFile,
    make_folder,
    write_whole,
)
from dsindex.store.urls import absolute, folder_of
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from dsindex.engine.executors import Executor
    from dsindex.engine.manifest import Content, RecordedPacking
    from dsindex.engine.progress import Reporter
    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.engine.source import TextSource
    from dsindex.engine.start import Work
    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.encode import EncoderRecipe
    from dsindex.jobs.packs import MadePacking
    from dsindex.options.instruct import ExportKind

    Results = Sequence[tuple[ShardTask, ShardResult]]


# The exports of instruction data: folders in the formats of other trainers, made once the datasets are published.
#
# An export is a function of the published tokens and masks, so its bytes do not depend on shards, workers or crashes. A
# finished job to which `--export` is added makes the export alone. An export that is not asked for is removed if it was
# made of other tokens than those that are published now.

FORMAT = 1
"""Raised whenever the same datasets give other bytes, so that exports of earlier releases are made again."""
SPLIT_NAMES = {None: "train", "train": "train", "valid": "validation", "test": "test"}
"""A split's names in the exports, as `datasets` and the trainers call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeExport:
    """A published export."""

    kind: ExportKind
    path: str
    """Its folder, below the prefix as it was given."""
    content: ExportContent
    already_complete: bool


class InstructExports:
    """Makes the exports of one job.

    Args:
        config: The options of the job.
        instruction: The form of the records.
        splits: The published datasets.
        source: The job's inputs and tokenizer.
        eos_id: The tokenizer's EOS; None if it has none.
        reporter: Shows progress.
    """

    def __init__(
        self,
        config: InstructConfig,
        instruction: InstructionConfig,
        *,
        splits: Sequence[SplitOutputs],
        source: TextSource,
        eos_id: int | None,
        reporter: Reporter,
    ) -> None:
        self._config = config
        self._instruction = instruction
        self._eos_id = eos_id
        self._splits = splits
        self._source = source
        self._reporter = reporter
        self._prefix = absolute(config.output_prefix)
        self._paths = {kind: self._path(kind) for kind in config.export}
        self.made: list[MadeExport] = []
        """The exports, in the order of the options."""

    @property
    def are_due(self) -> bool:
        """Whether exports are asked for, or there are some that may be out of date."""
        return bool(self._paths) or bool(self._others())

    def examine(self) -> None:
        """Check that no folder of an export holds somebody else's files.

        Raises:
            OutputError: If one does.
        """
        if "bridge" in self._paths and self._config.pad_to_multiple > 1 and self._eos_id is None:
            raise InputError(
                "--export bridge with --pad-to-multiple: expected a tokenizer with an EOS, with which Megatron-Bridge "
                "pads, got none; name it as eos_token in the tokenizer_config.json beside the tokenizer, or among the "
                "special_tokens of the configuration"
            )
        for path in self._paths.values():
            require_own(path)

    def make(self, executor: Executor) -> None:
        """Make the exports that are missing, and remove those of other tokens.

        Raises:
            DsindexError: If an export cannot be made; its folder is then unchanged.
        """
        contents = {prefix: _published(prefix) for split in self._splits for prefix in split.prefixes[:2]}
        for path in self._others():
            self._remove_if_old(path, contents)
        for kind, path in self._paths.items():
            self.made.append(self._make(kind, path, contents, executor))

    def _path(self, kind: ExportKind) -> str:
        length = packing_prefix("", self._config.seq_length or 0, self._config.pad_to_multiple)
        of_packs = length.removeprefix("_packing") if kind == "bridge" else ""
        return f"{self._config.output_prefix}_{kind}{of_packs}"

    def _others(self) -> list[str]:
        """Return the folders of exports that this job does not make."""
        names = re.compile(r"(parquet|bridge)(_[0-9]+(_pad[0-9]+)?)?")
        found = glob.glob(f"{glob.escape(self._prefix)}_*/")
        paths = [path.rstrip("/") for path in sorted(found)]
        known = set(map(os.path.abspath, self._paths.values()))
        return [path for path in paths if path not in known and names.fullmatch(path.removeprefix(f"{self._prefix}_"))]

    def _remove_if_old(self, path: str, contents: Mapping[str, Content]) -> None:
        try:
            manifest = read_export_manifest(path)
            if manifest is None or manifest.content.sources == self._sources(contents):
                return
            remove_export(path)
            self._reporter.say(f"{path}: removed, since it was made of earlier tokens")
        except DsindexError as error:
            self._reporter.say(f"{path}: was made of earlier tokens, and is left where it is ({error})")

    def _sources(self, contents: Mapping[str, Content]) -> dict[str, dict[str, ExportedFile]]:
        """Return the files of the datasets that an export is made of."""
        prefixes = [prefix for split in self._splits for prefix in split.prefixes]
        return {
            prefix.removeprefix(f"{self._prefix}_"): {
                suffix: ExportedFile(size_bytes=file.size_bytes, xxh3_128=file.digest)
                for suffix, file in sorted(contents[prefix].digests.items())
                if suffix in {"bin", "idx"}
            }
            for prefix in prefixes
        }

    def _make(self, kind: ExportKind, path: str, contents: Mapping[str, Content], executor: Executor) -> MadeExport:
        began = time.time()
        folder = ExportFolder(path=os.path.abspath(path), plan=self._plan(kind, contents))
        with hold_lock(f"{folder.path}.dsindex-lock", what=f"the export {path}"):
            finished = None if self._config.fresh else folder.find_finished()
            if finished is not None:
                return MadeExport(kind=kind, path=path, content=finished.content, already_complete=True)
            require_own(path)
            folder.begin()
            files = _Files(folder, executor, RetryPolicy(deadline_seconds=self._config.shard_deadline), self._reporter)
            written, small = self._write(kind, files, contents)
            content = self._content(kind, contents, written, [*(file.file for file in written), *small])
            run = describe_run(
                folder.plan, began=began, executor=executor, statistics=files.statistics, shards=len(written)
            )
            folder.publish(ExportManifest(content=content, run=run))
        return MadeExport(kind=kind, path=path, content=content, already_complete=False)

    def _plan(self, kind: ExportKind, contents: Mapping[str, Content]) -> Plan:
        """Return what an export depends on."""
        sources = self._sources(contents)
        settings: dict[str, Any] = {
            "export": kind,
            "format": FORMAT,
            "sources": {
                name: {suffix: file.model_dump() for suffix, file in files.items()} for name, files in sources.items()
            },
        }
        if kind == "bridge":
            settings |= {"packing": PACKING_FORMAT, "seq-length": self._config.seq_length}
            if self._config.pad_to_multiple > 1:
                settings |= {"pad-to-multiple": self._config.pad_to_multiple, "eos": self._eos_id}
            if self._config.longer_than_pack == "drop":
                settings["longer-than-pack"] = "drop"
        return Plan(settings=settings, inputs=())

    def _write(
        self, kind: ExportKind, files: _Files, contents: Mapping[str, Content]
    ) -> tuple[list[WrittenFile], list[StoredFile]]:
        """Write all files of an export into its partial folder; return those with rows, and the small ones beside."""
        folder, facts = files.folder.partial, ((f"{FACTS_PREFIX}export", kind),)
        splits = [
            ExportedSequences(
                name=SPLIT_NAMES[split.split],
                source=SequenceSource(tokens=split.prefixes[0], mask=split.prefixes[1]),
                num_sequences=contents[split.prefixes[0]].sequences,
            )
            for split in self._splits
        ]
        if kind == "bridge":
            length = self._config.seq_length or 0
            padding = bridge.Padding(multiple=self._config.pad_to_multiple, token=self._eos_id or 0)
            drops = self._config.longer_than_pack == "drop"
            pack = partial(bridge.pack_sequences, drop_longer=drops)
            packs = list(files.run("pack", pack, [(split.source, length, padding) for split in splits]))
            tasks = bridge.plan_bridge_files(
                splits, packs, sequence_length=length, padding=padding, folder=folder, facts=facts
            )
            written = files.write(bridge.write_bridge_file, tasks)
            return written, files.write_small({bridge.METADATA_FILE: bridge.encode_metadata(packs)})
        return files.write(parquet.write_rows, parquet.plan_files(splits, folder=folder, facts=facts)), []

    def _content(
        self,
        kind: ExportKind,
        contents: Mapping[str, Content],
        written: Sequence[WrittenFile],
        files: Sequence[StoredFile],
    ) -> ExportContent:
        import pyarrow as pa

        return ExportContent(
            kind=kind,
            sequence_length=self._config.seq_length if kind == "bridge" else None,
            sources=self._sources(contents),
            tokenizer=self._source.describe_tokenizer().model_dump(exclude_none=True),
            writer=f"pyarrow {pa.__version__}",
            splits=_count_splits([SPLIT_NAMES[split.split] for split in self._splits], written),
            digests={
                file.name: ExportedFile(size_bytes=file.size_bytes, xxh3_128=file.digest)
                for file in sorted(files, key=lambda file: file.name)
            },
        )


class _Files:
    """Writes the files of one export on any executor; those that an interrupted job finished are kept."""

    def __init__(self, folder: ExportFolder, executor: Executor, policy: RetryPolicy, reporter: Reporter) -> None:
        self.folder = folder
        self.statistics = DispatchStatistics()
        self._executor = executor
        self._policy = policy
        self._reporter = reporter

    def write(self, function: Callable[[Any], WrittenFile], tasks: Sequence[Any]) -> list[WrittenFile]:
        """Write the files that are not there yet; return all, in the order of the tasks."""
        found = dict(self.folder.recorded())
        missing = [task for task in tasks if task.name not in found]
        for folder in {os.path.dirname(task.name) for task in missing}:
            make_folder(os.path.join(self.folder.partial, folder))
        self._reporter.stage("export", total=len(tasks), unit="files")
        num_kept = len(tasks) - len(missing)
        if num_kept:
            self._reporter.advance(num_kept, tasks=num_kept, fresh=False)
        for file in self.run("export", function, [(task,) for task in missing]):
            self.folder.record([file])
            found[file.file.name] = file
            self._reporter.advance(1)
        return [found[task.name] for task in tasks]

    def write_small(self, files: Mapping[str, bytes]) -> list[StoredFile]:
        """Write files without rows."""
        stored = []
        for name, data in sorted(files.items()):
            path = os.path.join(self.folder.partial, name)
            make_folder(os.path.dirname(path))
            write_whole(path, data)
            digester = BlockDigester()
            digester.update(data)
            stored.append(StoredFile(name=name, size_bytes=len(data), digest=digester.hexdigest()))
        return stored

    def run(self, name: str, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function with each of the arguments; yield the results in order."""
        base = os.path.basename(self.folder.path)
        calls = (
            Call(name=f"{name}[{base}/{number}]", place=self.folder.path, function=function, arguments=own)
            for number, own in enumerate(arguments)
        )
        return run_in_order(
            self._executor, calls, policy=self._policy, statistics=self.statistics, on_idle=self._reporter.tick
        )


def _published(prefix: str) -> Content:
    manifest = read_manifest(prefix)
    if manifest is None:
        msg = f"{prefix}: expected the manifest of the dataset to export, found none; run the same command again"
        raise FormatError(msg)
    return manifest.content


def _count_splits(names: Sequence[str], written: Sequence[WrittenFile]) -> dict[str, ExportedSplit]:
    """Return the counts of each split, whose name the names of its files begin with, unless there is only one."""
    splits = {}
    for name in names:
        total = Counts()
        own = [file for file in written if len(names) == 1 or file.file.name.startswith(name)]
        for file in own:
            total += file.counts
        splits[name] = ExportedSplit(**asdict(total))
    return splits


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
class InstructResult(TextResult):
    """The result of a job."""

    splits: tuple[BuiltSplit, ...]
    bad_records: dict[str, int]
    """Numbers of quarantined records by kind of problem."""
    packed: bool = False
    """Whether packs were made, by a job that was already complete or by this one."""
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
        exported = not all(export.already_complete for export in self.exports)
        made = [*(["packs"] if self.packed else []), *(["exports"] if exported else [])]
        done = f"only {' and '.join(made)} were made" if made else "nothing was done"
        bad = "quarantined: " + ", ".join(f"{kind} {count:,}" for kind, count in self.bad_records.items())
        lines = self.first_lines(
            complete=f"already complete: the same plan was carried out before, {done}",
            quarantined=[bad] if self.bad_records else [],
        )
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


class _Instruct(TextJob):
    def __init__(self, config: InstructConfig, instruction: InstructionConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        self._config = config
        source = replace(open_source(as_text_config(config), append_eod=False, reporter=reporter), joins_files=False)
        tokenizer = source.tokenizer
        self._dtype = dtype_for_vocabulary(tokenizer.vocabulary_size)
        self._splits = [
            SplitOutputs(split=split, config=config, work_dir=self.work_dir, dtype=self._dtype)
            for split in split_names(config.split)
        ]
        self.outputs = [
            Output(prefix=prefix, suffixes=MEGATRON_SUFFIXES) for split in self._splits for prefix in split.prefixes
        ]
        # Reports wrong tokens, patterns and templates before work begins.
        self._recipe = make_recipe(instruction, tokenizer, config.tokenizer_model, engine=source.engine)
        self.source = replace(source, engine=self._recipe.engine)
        self._instruction = orjson.loads(self._recipe.config)
        self._chat_files = xxhash.xxh3_64_hexdigest(
            orjson.dumps([self._recipe.special_tokens, self._recipe.chat_templates])
        )
        settings = {
            **self.source.settings(),
            **self._instruction,
            "special tokens and chat templates of the tokenizer's folder": self._chat_files,
            "split": config.split,
            "split-seed": config.split_seed,
            "output-prefix": str(absolute(config.output_prefix)),
        }
        self.plan = Plan(settings=settings, inputs=self.source.inputs, places=self.source.places)
        self._token_sources = [split.token_sources(self.plan.plan_id, self.source.text_bytes) for split in self._splits]

        self._packings = Packings(config, [split.prefix for split in self._splits], reporter)
        self._exports = InstructExports(
            config,
            instruction,
            splits=self._splits,
            source=self.source,
            eos_id=_find_eos(self._recipe, instruction),
            reporter=reporter,
        )

    def run(self) -> InstructResult:
        engine = self.source.engine
        outcome = self.carry_out(
            holds_gil=self.source.text_bytes > THREADS_UP_TO_BYTES[engine.name == "gigatoken"],
            conclude=self._conclude if self._exports.are_due else None,
        )
        self._packings.make()
        return self._report(outcome)

    def _conclude(self, executor: Executor) -> None:
        self._packings.make()
        self._exports.make(executor)

    def examine(self) -> None:
        """Check the places of packs and exports, and the disk space."""
        self._packings.examine()
        self._exports.examine()
        total = self.source.text_bytes
        # No sample is rendered: 3 bytes per token and 500 bytes per conversation are assumed.
        estimate = Estimate(tokens=total / 3, documents=total / 500)
        check_room(
            estimate,
            itemsize=self._dtype.itemsize + MASK_DTYPE.itemsize,
            num_keys=2,
            output_folder=folder_of(self._config.output_prefix),
            work_dir=self.work_dir,
            unfinished=[path for group in self._token_sources for tokens in group for path in tokens.target.partials],
        )

    def make(self, work: Work) -> Made:
        results = self._encode(work)
        inputs = [file.path for file in self.source.inputs]
        return Made(
            groups=tuple(
                tuple(split.datasets(sources, results, inputs))
                for split, sources in zip(self._splits, self._token_sources, strict=True)
            ),
            num_shards=len(results),
        )

    def describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:
        remaining = iter(files)
        contents: list[Content] = []
        for split, group in zip(self._splits, made.groups, strict=True):
            described = [(dataset, next(remaining)) for dataset in group]
            contents += split.contents(self.source, self._instruction, self.results, described)
        return contents

    def _encode(self, work: Work) -> Results:
        """Make every shard; return all with their tasks, in plan order."""
        config = self._config
        settings = InstructionSettings(
            recipe=self._recipe,
            vocabulary_size=self.source.tokenizer.vocabulary_size,
            dtype=self._dtype.str,
            fractions=config.split,
            split_seed=config.split_seed,
            **self.shard_options(),
        )
        sources = [source for group in self._token_sources for source in group]
        return self.tokenize(work, settings, sources, function=encode_shard)

    def _report(self, outcome: JobOutcome) -> InstructResult:
        contents = outcome.contents
        remaining = iter(contents)
        groups = [[next(remaining) for _ in split.prefixes] for split in self._splits]
        packings: Sequence[MadePacking | None] = self._packings.make() or [None] * len(groups)
        first = contents[0].record_counts
        counts = first.model_copy(update={"kept": first.kept + first.elsewhere, "elsewhere": 0})
        return InstructResult(
            splits=tuple(
                BuiltSplit(
                    prefix=split_prefix(self._config.output_prefix, split.split),
                    statistics=InstructionStatistics.of_counts(group[0].statistics or {}),
                    packing=None if packing is None else packing.facts,
                    files={
                        prefix.removeprefix(f"{split.prefix}_"): content.digests
                        for prefix, content in zip(split.prefixes, group, strict=True)
                    }
                    | ({} if packing is None else {packing.prefix.removeprefix(f"{split.prefix}_"): packing.files}),
                )
                for split, group, packing in zip(self._splits, groups, packings, strict=True)
            ),
            packed=any(packing is not None and not packing.already_complete for packing in packings),
            bad_records=contents[0].bad_records or {},
            exports=tuple(self._exports.made),
            **{**self.outcome_fields(outcome), "counts": counts},
        )


def _find_eos(recipe: EncoderRecipe, instruction: InstructionConfig) -> int | None:
    """Return the id of the EOS that the tokenizer's folder names, as trainers read it, or else the configuration."""
    text = dict(recipe.special_tokens).get("eos_token") or instruction.special_tokens.get("eos_token")
    return None if text is None else shared_tokenizer(recipe.tokenizer).token_to_id(text)


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
    length, longer = config.seq_length, config.longer_than_pack
    if longer is not None and loaded.get("too_long") not in (None, TOO_LONG.get(longer)):
        both = f"--longer-than-pack {longer} or too_long: {loaded['too_long']} in {source}"
        raise UsageError(f"expected {both}, got both; leave out one")
    for option in ("reasoning", "unwritten"):
        if (given := getattr(config, option)) is not None:
            loaded[option] = given
    if longer in TOO_LONG:
        loaded["too_long"] = TOO_LONG[longer]
    if length is not None and loaded.get("max_length") is None and longer != "drop":
        loaded["max_length"] = length
    instruction = check_config(loaded, source=source, folder=folder)
    if length is not None and (instruction.max_length or 0) > length and longer != "drop":
        raise UsageError(
            f"expected max_length to be at most --seq-length {length}, got {instruction.max_length}: "
            f"a conversation must fit into a block; or leave longer ones out with --longer-than-pack drop"
        )
    return config, instruction


TOO_LONG: dict[str, str] = {"refuse": "refuse", "truncate": "truncate", "split-turns": "split"}
"""`too_long` of CONFIG for a value of --longer-than-pack; `drop` leaves the tokens as they are."""


def _describe_export(export: MadeExport) -> list[str]:
    was_there = ", already complete" if export.already_complete else ""
    lines = [f"{export.path}/: export {export.kind}{was_there}"]
    for name, split in export.content.splits.items():
        lines.append(f"  {name}: {count(split.rows, 'row')}, {split.tokens:,} tokens, {split.targets:,} targets")
    return lines


def _describe_split(split: BuiltSplit) -> list[str]:
    whole, *notes = split.statistics.lines()
    lines = [f"{split.prefix}: {whole}", *notes]
    packing = split.packing
    if packing is not None:
        between = f" ({packing.between:,} to multiples of {packing.pad_to_multiple})" if packing.between else ""
        lines.append(
            f"  {count(packing.blocks, 'block')} of {packing.sequence_length:,}: {packing.padding:,} padding{between}, "
            f"fill {100 * packing.fill:.2f} %"
        )
        if packing.dropped is not None:
            tokens = count(packing.dropped_tokens or 0, "token")
            lines.append(f"  {count(packing.dropped, 'longer sequence')} with {tokens} left out of the blocks")
    for name, files in split.files.items():
        lines += [f"  {name}.{suffix:4} {files[suffix].digest}" for suffix in ("bin", "idx")]
    return lines
