"""The driver of `dsindex instruct`: plan, encode, merge, publish, pack, export. A killed job can always be resumed.

For each split (or once, without a split) it writes `<prefix>_text_document` (tokens) and `<prefix>_loss_mask` (uint8),
each an MMIDIDX pair with a manifest. The tokens are published last: if their `.idx` exists, the masks are complete.
Packs (dsindex.commands.instruct_packs) and exports are made from the published datasets, so they can be added to a
finished job later.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from dsindex.chat.config import check_config
from dsindex.chat.encode import make_instruction_encoder, make_recipe
from dsindex.chat.statistics import InstructionStatistics, explain_note
from dsindex.commands.findings import Excerpt, InspectResult
from dsindex.commands.instruct_exports import MadeExport, examine_exports, make_exports
from dsindex.commands.instruct_packs import check_packs, pack_splits
from dsindex.commands.instruct_shards import (
    BAD,
    BLOCK_BYTES,
    MASK_DTYPE,
    InstructionSettings,
    encode_block,
    encode_shard,
    keys_of,
    split_names,
)
from dsindex.commands.results import MadeDataset, TextResult, outcome_fields
from dsindex.commands.token_data import cut_pieces
from dsindex.errors import RecordProblem, UsageError
from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.messages import count
from dsindex.options.instruct import as_text_config, read_instruction
from dsindex.runtime.job import Output, open_job
from dsindex.runtime.plan import make_plan
from dsindex.runtime.preflight import Estimate, check_room
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.store.config_files import normalize_option_names
from dsindex.store.urls import absolute
from dsindex.text.reader import TaskReader
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.chat.config import InstructionConfig
    from dsindex.chat.encode import EncoderRecipe
    from dsindex.commands.instruct_packs import MadePacking
    from dsindex.commands.token_data import Piece
    from dsindex.formats.manifest import RecordedPacking
    from dsindex.options.instruct import InstructConfig, InstructFlags
    from dsindex.runtime.job import Job
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.source import TextSource


OWN_TEMPLATE = "the tokenizer's own chat template is used"
THREADS_UP_TO_BYTES = 4 << 20
"""Up to this much text is encoded by threads of this process: one CPU encodes it in about the time that worker
processes take to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSplit:
    """The published datasets of one split."""

    prefix: str
    """Prefix of the split's datasets; pass it to PackedInstructionDataset."""
    statistics: InstructionStatistics
    packing: RecordedPacking | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructResult(TextResult):
    """The result of `dsindex instruct`; its datasets include masks and packs."""

    splits: tuple[BuiltSplit, ...]
    bad_kinds: dict[str, int]
    """Kind of problem → number of quarantined records."""
    packed: bool = False
    """Whether this run made packs, which it may do for datasets that were already complete."""
    exports: tuple[MadeExport, ...] = ()
    """The exports in formats of other trainers."""


def run_instruct(config: InstructConfig, instruction: InstructionConfig, *, reporter: Reporter) -> InstructResult:
    """Build instruction data, resuming an interrupted run of the same plan.

    Args:
        config: The options of the job.
        instruction: The options for reading and masking records.
        reporter: Shows progress.

    Raises:
        DsindexError: If the job fails. No incomplete file ever has a final name.
    """
    source = open_source(as_text_config(config), append_eod=False, reporter=reporter)
    if config.config is None:
        reporter.say(f"note: no CONFIG: {OWN_TEMPLATE}")
    # This also reports wrong special tokens, patterns and templates before any work is done.
    recipe = make_recipe(instruction, source.tokenizer, config.tokenizer_model, engine=source.engine)
    source = replace(source, engine=recipe.engine)
    dtype = dtype_for_vocabulary(source.tokenizer.vocabulary_size)
    plan = make_plan(_settings(config, source, recipe), source.files)
    outputs = [
        Output(prefix=absolute(f"{config.output_prefix}_{key}"), plan_id=plan.plan_id, dtype=key_dtype, is_mask=mask)
        for split in split_names(config.split)
        for key, key_dtype, mask in zip(keys_of(split), (dtype, MASK_DTYPE), (False, True), strict=True)
    ]
    prefixes = {split: absolute(_prefix_of(config, split)) for split in split_names(config.split)}
    eos_id = _find_eos(recipe, instruction)
    exports: list[MadeExport] = []
    is_large = source.text_bytes > THREADS_UP_TO_BYTES
    with open_job(config, plan, outputs, reporter=reporter, text_bytes=source.text_bytes, holds_gil=is_large) as job:
        if not job.already_complete:
            for note in source.first_notes(encodes=True):
                reporter.say(f"note: {note}")
            check_packs(config, list(prefixes.values()))
            examine_exports(config, eos_id)
            # Assume 3 bytes per token and 500 bytes per conversation, so that no sample has to be rendered.
            estimate = Estimate(tokens=source.text_bytes / 3, documents=source.text_bytes / 500)
            check_room(config, estimate, itemsize=dtype.itemsize + MASK_DTYPE.itemsize, num_keys=2)
            settings = InstructionSettings(
                recipe=recipe, fractions=config.split, split_seed=config.split_seed, **source.shard_options()
            )
            shards = Shards(job, source, settings, function=encode_shard)
            shards.tokenize_and_merge()
            shards.publish(_describe(config, recipe, shards))
        packings = pack_splits(config, list(prefixes.values()))
        if config.export:
            exports = make_exports(config, prefixes, eos_id=eos_id, executor=job.executor, reporter=reporter)
    return _make_result(config, source, job, packings, exports)


def show_records(config: InstructFlags, instruction: InstructionConfig) -> InspectResult:
    """Return the first `config.show` records as the model will see them; nothing is written.

    Raises:
        DsindexError: If an input, the tokenizer or the configuration cannot be used.
    """
    source = open_source(as_text_config(config), append_eod=False)
    recipe = make_recipe(instruction, source.tokenizer, config.tokenizer_model, engine=source.engine)
    options = {**source.shard_options(), "quarantine": True}
    settings = InstructionSettings(recipe=recipe, fractions=None, split_seed=0, **options)
    result = InspectResult(path="first records", kind="trained text is in [[brackets]]; nothing is written")
    result.facts |= {} if config.config is not None else {"no CONFIG": OWN_TEMPLATE}
    encoder = make_instruction_encoder(recipe)
    for task in source.tasks():
        reader = TaskReader(task.parts)
        for part, block in reader.lines(block_bytes=BLOCK_BYTES, max_line_bytes=settings.max_record_bytes):
            for _, line, outcome, _ in encode_block(block, encoder, settings):
                where = f"{task.parts[part].path}, line {line + 1:,}"
                if isinstance(outcome, RecordProblem):
                    title, num_tokens, text = f"{where}: bad record", 0, f"{outcome.reason} ({outcome.kind})"
                else:
                    num_tokens, num_trained = len(outcome.tokens), int(outcome.mask.sum())
                    mask_counts = f"{num_trained:,} trained on, {num_tokens - num_trained:,} masked"
                    title = f"{where}: {count(num_tokens, 'token')}, {mask_counts}"
                    text = _mark_trained(cut_pieces(source.tokenizer, outcome.tokens.tolist()), outcome.mask)
                    result.notes += [f"{where}: {note}: {explain_note(note)}" for note in outcome.notes]
                result.excerpts.append(Excerpt(title=title, num_tokens=num_tokens, text=text))
                if len(result.excerpts) == config.show:
                    return result
    return result


def _mark_trained(pieces: Iterable[Piece], mask: NDArray[np.uint8]) -> str:
    """Return the text of tokens with each line of trained text in [[brackets]] and each trained newline shown as ⏎.

    A character that consists of several tokens is shown as trained on if one of the tokens is trainable.
    """
    runs: list[tuple[bool, str]] = []
    begin = 0
    for piece in pieces:
        is_trained = bool(mask[begin : begin + len(piece.ids)].any())
        begin += len(piece.ids)
        runs.append((is_trained, piece.text or ""))
    texts = ((is_trained, "".join(text for _, text in run)) for is_trained, run in groupby(runs, key=itemgetter(0)))
    return "".join(
        re.sub("(.+)", r"[[\1]]", text.replace("\n", "⏎\n")) if is_trained else text for is_trained, text in texts
    )


def _prefix_of(config: InstructConfig, split: str | None) -> str:
    return config.output_prefix if split is None else f"{config.output_prefix}_{split}"


def _settings(config: InstructConfig, source: TextSource, recipe: EncoderRecipe) -> dict[str, Any]:
    """Return all settings that the output depends on, for the plan; the inputs are added separately."""
    files = msgspec.json.encode([recipe.special_tokens, recipe.chat_templates])
    return {
        **source.settings(),
        **json.loads(recipe.config),
        "special tokens and chat templates of the tokenizer's folder": xxhash.xxh3_64_hexdigest(files),
        "split": config.split,
        "split-seed": config.split_seed,
    }


def _find_eos(recipe: EncoderRecipe, instruction: InstructionConfig) -> int | None:
    """Return the id of the EOS that the tokenizer's folder names, or else the configuration; None if neither does.

    The folder comes first because trainers read the EOS from it.
    """
    text = dict(recipe.special_tokens).get("eos_token") or instruction.special_tokens.get("eos_token")
    return None if text is None else shared_tokenizer(recipe.tokenizer).token_to_id(text)


def _describe(config: InstructConfig, recipe: EncoderRecipe, shards: Shards) -> list[dict[str, Any]]:
    """Return, for the manifest of each dataset, the fields that only `dsindex instruct` writes."""
    counts = shards.counts

    def counts_of(beginning: str) -> dict[str, int]:
        return {name.removeprefix(beginning): counts[name] for name in sorted(counts) if name.startswith(beginning)}

    fields: list[dict[str, Any]] = []
    for split in split_names(config.split):
        options = shards.source.describe_options(
            split=None if config.split is None else list(config.split),
            split_seed=config.split_seed,
            split_name=split,
            instruction=json.loads(recipe.config),
        )
        statistics = counts_of(f"{keys_of(split)[0]}.")
        fields += [{"options": options, "statistics": statistics, "bad_records": counts_of(BAD)}, {"options": options}]
    return fields


def _make_result(
    config: InstructConfig, source: TextSource, job: Job, packings: Sequence[MadePacking], exports: Sequence[MadeExport]
) -> InstructResult:
    splits, datasets = list[BuiltSplit](), list[MadeDataset]()
    contents = [manifest.content for manifest in job.manifests]
    for number, split in enumerate(split_names(config.split)):
        prefix, pair = _prefix_of(config, split), contents[2 * number : 2 * number + 2]
        datasets += map(MadeDataset.from_content, (f"{prefix}_{key}" for key in keys_of(None)), pair)
        packing = packings[number] if packings else None
        if packing is not None:
            name = packing.prefix.removeprefix(absolute(prefix))
            datasets.append(MadeDataset.from_content(f"{prefix}{name}", packing.content))
        splits.append(
            BuiltSplit(
                prefix=prefix,
                statistics=InstructionStatistics.of_counts(pair[0].statistics or {}),
                packing=None if packing is None else packing.content.packing,
            )
        )
    return InstructResult(
        datasets=tuple(datasets),
        splits=tuple(splits),
        packed=any(not packing.already_complete for packing in packings),
        bad_kinds=contents[0].bad_records or {},
        exports=tuple(exports),
        **outcome_fields(source, job, num_keys=2),
    )


TOO_LONG: dict[str | None, str] = {"refuse": "refuse", "truncate": "truncate", "split-turns": "split"}
"""Value of --longer-than-pack → value of `too_long`. `drop` is missing because it leaves conversations out of the
packs, not out of the dataset."""


def instruction_of(config: InstructConfig) -> InstructionConfig:
    """Read the configuration of a job, and apply the command-line options that override it.

    Raises:
        InputError: If the configuration is invalid.
        UsageError: If the command-line options contradict the configuration.
    """
    content, source, folder = read_instruction(config.config)
    settings = normalize_option_names(content, source=source)
    settings.pop("job", None)
    length, policy = config.seq_length, config.longer_than_pack
    if policy is not None and settings.get("too_long") not in (None, TOO_LONG.get(policy)):
        choices = f"--longer-than-pack {policy} and too_long: {settings['too_long']} in {source}"
        raise UsageError(f"{choices} contradict each other", hint="leave out one")
    options = {"reasoning": config.reasoning, "unwritten": config.unwritten, "too_long": TOO_LONG.get(policy)}
    settings |= {name: value for name, value in options.items() if value is not None}
    if policy != "drop" and settings.get("max_length") is None and length is not None:
        settings["max_length"] = length
    instruction = check_config(settings, source=source, folder=folder)
    if length is not None and (instruction.max_length or 0) > length and policy != "drop":
        raise UsageError(
            f"max_length {instruction.max_length} exceeds --seq-length {length}: a conversation must fit into a pack",
            hint="lower max_length, or leave longer conversations out with --longer-than-pack drop",
        )
    return instruction
