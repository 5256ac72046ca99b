"""The driver of `dsindex instruct`: plan, encode, pack, merge, publish. It can be interrupted and resumed at any point.

Per split (or once, without a split) it makes `<prefix>_text_document` (tokens) and `<prefix>_loss_mask` (uint8); each
is an MMIDIDX pair with a manifest. The tokens are published last: if their `.idx` exists, the masks are complete.
Packs (dsindex.commands.instruct_packs) and exports are made of what is published, so a finished job takes more of them
at any time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from dsindex.chat.config import check_config
from dsindex.chat.encode import make_instruction_encoder, make_recipe
from dsindex.chat.statistics import InstructionStatistics
from dsindex.commands.findings import Excerpt, InspectResult
from dsindex.commands.instruct_exports import MadeExport, examine_exports, make_exports
from dsindex.commands.instruct_packs import check_packs, pack_splits
from dsindex.commands.instruct_shards import (
    BAD,
    BLOCK_BYTES,
    MASK_DTYPE,
    InstructionSettings,
    encode_shard,
    keys_of,
    split_names,
)
from dsindex.commands.results import MadeDataset, TextResult, outcome_fields
from dsindex.commands.token_text import text_of
from dsindex.errors import RecordProblem, UsageError
from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.messages import count
from dsindex.options.instruct import as_text_config, read_instruction
from dsindex.runtime.estimate import check_room
from dsindex.runtime.job import open_job
from dsindex.runtime.output import Output
from dsindex.runtime.plan import make_plan
from dsindex.runtime.preflight import Estimate
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.store.config_files import option_names
from dsindex.store.urls import absolute
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.reader import TaskReader
from dsindex.text.streams import LARGEST_RECORD_BYTES, LineBlock
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.chat.config import InstructionConfig
    from dsindex.chat.encode import EncoderRecipe
    from dsindex.commands.instruct_packs import MadePacking
    from dsindex.formats.manifest import RecordedPacking
    from dsindex.options.instruct import InstructConfig
    from dsindex.runtime.job import Job
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.source import TextSource


THREADS_UP_TO_BYTES = 4 << 20
"""Text that is encoded in this process: about as much as one CPU encodes in the time that worker processes take to
start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSplit:
    """The published datasets of one split."""

    prefix: str
    """The prefix to open with PackedInstructionDataset."""
    statistics: InstructionStatistics
    packing: RecordedPacking | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructResult(TextResult):
    """The result of a job; its datasets include masks and block layouts."""

    splits: tuple[BuiltSplit, ...]
    bad_kinds: dict[str, int]
    """Numbers of quarantined records by kind of problem."""
    packed: bool = False
    """Whether packs were made, by a job that was already complete or by this one."""
    exports: tuple[MadeExport, ...] = ()
    """The folders in formats of other trainers."""


def run_instruct(config: InstructConfig, instruction: InstructionConfig, *, reporter: Reporter) -> InstructResult:
    """Build instruction data, continuing an interrupted run of the same plan.

    Args:
        config: The options of the job.
        instruction: The configuration of records and of the text that is trained on.
        reporter: Shows progress.

    Raises:
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    source = open_source(as_text_config(config), append_eod=False, reporter=reporter)
    # Reports wrong tokens, patterns and templates before work begins.
    recipe = make_recipe(instruction, source.tokenizer, config.tokenizer_model, engine=source.engine)
    source = replace(source, engine=recipe.engine)
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    plan = make_plan(_settings(config, source, recipe), source.files)
    targets = [
        Output(prefix=absolute(f"{config.output_prefix}_{key}"), plan_id=plan.plan_id, dtype=own, is_mask=mask)
        for split in split_names(config.split)
        for key, own, mask in zip(keys_of(split), (dtype, MASK_DTYPE), (False, True), strict=True)
    ]
    prefixes = {split: absolute(_prefix_of(config, split)) for split in split_names(config.split)}
    eos_id = _find_eos(recipe, instruction)
    exports: list[MadeExport] = []
    with open_job(
        config,
        plan,
        targets,
        reporter=reporter,
        text_bytes=source.text_bytes,
        holds_gil=source.text_bytes > THREADS_UP_TO_BYTES,
    ) as job:
        if not job.already_complete:
            for note in _notes(config, source):
                reporter.say(f"note: {note}")
            check_packs(config, list(prefixes.values()))
            examine_exports(config, eos_id)
            # No sample is rendered: 3 bytes per token and 500 bytes per conversation are assumed.
            estimate = Estimate(tokens=source.text_bytes / 3, documents=source.text_bytes / 500)
            check_room(config, estimate, itemsize=dtype.itemsize + MASK_DTYPE.itemsize, num_keys=2)
            settings = InstructionSettings(
                recipe=recipe, fractions=config.split, split_seed=config.split_seed, **source.shard_options()
            )
            shards = Shards(job, source, settings, function=encode_shard)
            shards.tokenize_and_merge()
            shards.publish(_describe(config, recipe, shards))
        packed = pack_splits(config, list(prefixes.values()))
        if config.export:
            exports = make_exports(config, prefixes, eos_id=eos_id, executor=job.executor, reporter=reporter)
    return _report(config, source, job, packed, exports)


def _prefix_of(config: InstructConfig, split: str | None) -> str:
    return config.output_prefix if split is None else f"{config.output_prefix}_{split}"


def _settings(config: InstructConfig, source: TextSource, recipe: EncoderRecipe) -> dict[str, Any]:
    """Return everything but the inputs that the output depends on."""
    files = msgspec.json.encode([recipe.special_tokens, recipe.chat_templates])
    return {
        **source.settings(),
        **json.loads(recipe.config),
        "special tokens and chat templates of the tokenizer's folder": xxhash.xxh3_64_hexdigest(files),
        "split": config.split,
        "split-seed": config.split_seed,
    }


def _find_eos(recipe: EncoderRecipe, instruction: InstructionConfig) -> int | None:
    """Return the id of the EOS that the tokenizer's folder names, as trainers read it, or else the configuration."""
    text = dict(recipe.special_tokens).get("eos_token") or instruction.special_tokens.get("eos_token")
    return None if text is None else shared_tokenizer(recipe.tokenizer).token_to_id(text)


def _describe(config: InstructConfig, recipe: EncoderRecipe, shards: Shards) -> list[dict[str, Any]]:
    """Return the fields of the manifests of tokens and masks that other jobs do not have."""
    counts = shards.counts

    def counts_of(beginning: str) -> dict[str, int]:
        return {name.removeprefix(beginning): counts[name] for name in sorted(counts) if name.startswith(beginning)}

    own: list[dict[str, Any]] = []
    for split in split_names(config.split):
        options = shards.source.describe_options(
            split=None if config.split is None else list(config.split),
            split_seed=config.split_seed,
            split_name=split,
            instruction=json.loads(recipe.config),
        )
        statistics = counts_of(f"{keys_of(split)[0]}.")
        own += [{"options": options, "statistics": statistics, "bad_records": counts_of(BAD)}, {"options": options}]
    return own


def _report(
    config: InstructConfig, source: TextSource, job: Job, packed: Sequence[MadePacking], exports: Sequence[MadeExport]
) -> InstructResult:
    built, made = list[BuiltSplit](), list[MadeDataset]()
    contents = [manifest.content for manifest in job.manifests]
    for number, split in enumerate(split_names(config.split)):
        prefix, own = _prefix_of(config, split), contents[2 * number : 2 * number + 2]
        made += [MadeDataset.of(f"{prefix}_{key}", content) for key, content in zip(keys_of(None), own, strict=True)]
        packing = packed[number] if packed else None
        if packing is not None:
            name = packing.prefix.removeprefix(absolute(prefix))
            made.append(MadeDataset.of(f"{prefix}{name}", packing.content))
        built.append(
            BuiltSplit(
                prefix=prefix,
                statistics=InstructionStatistics.of_counts(own[0].statistics or {}),
                packing=None if packing is None else packing.content.packing,
            )
        )
    return InstructResult(
        datasets=tuple(made),
        splits=tuple(built),
        packed=any(not packing.already_complete for packing in packed),
        bad_kinds=contents[0].bad_records or {},
        exports=tuple(exports),
        **outcome_fields(source, job, num_keys=2),
    )


def show_first_records(config: InstructConfig, instruction: InstructionConfig, number: int) -> InspectResult:
    """Encode the first records, and return them with the text that is trained on in brackets.

    Raises:
        DsindexError: If the inputs, the tokenizer or the configuration cannot be used.
    """
    source = open_source(as_text_config(config), append_eod=False)
    recipe = make_recipe(instruction, source.tokenizer, config.tokenizer_model, engine=source.engine)
    encoder = make_instruction_encoder(recipe)
    lines = (
        (file.parts[0].path, line.strip(JSON_WHITESPACE))
        for file in source.inputs
        for _, block in TaskReader(file.parts).lines(block_bytes=BLOCK_BYTES, max_line_bytes=LARGEST_RECORD_BYTES)
        for line in ([block.text(place) for place in range(block.num_lines)] if isinstance(block, LineBlock) else ())
    )
    shown = InspectResult(path=config.input[0], kind="the first records, with the text that is trained on in [[ ]]")
    shown.notes += _notes(config, source)
    for place, (path, line) in enumerate(islice(filter(itemgetter(1), lines), number), 1):
        [outcome] = encoder.encode_lines([line])
        if isinstance(outcome, RecordProblem):
            shown.findings.append(f"{path}, record {place}: {outcome.reason}")
            continue
        borders = np.flatnonzero(np.diff(outcome.mask)) + 1
        runs = zip(np.split(outcome.tokens, borders), np.split(outcome.mask, borders), strict=True)
        texts = [(text_of(source.tokenizer, ids.tolist()), mask.any()) for ids, mask in runs]
        counts = f"{np.count_nonzero(outcome.mask):,} of {count(len(outcome.tokens), 'token')} trained on"
        text = "".join(f"[[{text}]]" if is_trained else text for text, is_trained in texts)
        shown.excerpts.append(Excerpt(title=f"record {place}: {counts}", num_tokens=len(outcome.tokens), text=text))
    return shown


def _notes(config: InstructConfig, source: TextSource) -> list[str]:
    own = ["no CONFIG was given, so the tokenizer's own chat template is used"] if config.config is None else []
    return [*own, *source.first_notes()]


TOO_LONG: dict[str | None, str] = {"refuse": "refuse", "truncate": "truncate", "split-turns": "split"}
"""`too_long` of CONFIG for a value of --longer-than-pack; `drop` leaves the tokens as they are."""


def instruction_of(config: InstructConfig) -> InstructionConfig:
    """Return the configuration of a job, with the changes that its options make.

    Raises:
        InputError: If it is not a configuration.
        UsageError: If the job's options do not fit it.
    """
    given, source, folder = read_instruction(config.config)
    settings = option_names(given, source=source)
    settings.pop("job", None)
    length, longer = config.seq_length, config.longer_than_pack
    if longer is not None and settings.get("too_long") not in (None, TOO_LONG.get(longer)):
        both = f"--longer-than-pack {longer} and too_long: {settings['too_long']} in {source}"
        raise UsageError(f"{both} contradict each other", hint="leave out one")
    options = {"reasoning": config.reasoning, "unwritten": config.unwritten, "too_long": TOO_LONG.get(longer)}
    settings |= {name: value for name, value in options.items() if value is not None}
    if longer != "drop" and settings.get("max_length") is None and length is not None:
        settings["max_length"] = length
    instruction = check_config(settings, source=source, folder=folder)
    if length is not None and (instruction.max_length or 0) > length and longer != "drop":
        raise UsageError(
            f"max_length {instruction.max_length} exceeds --seq-length {length}: a conversation must fit into a pack",
            hint="lower max_length, or leave longer conversations out with --longer-than-pack drop",
        )
    return instruction
