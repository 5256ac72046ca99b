"""`dsindex instruct`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_size, format_speed
from dsindex.cli.object_requests import describe_requests
from dsindex.cli.options import add_input_arguments, add_options, add_record_arguments, name_lists
from dsindex.errors import InputError
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_summary
from dsindex.instruction.config import InstructionConfig, check_config
from dsindex.jobs.instruct import run_instruct
from dsindex.option_problems import name_kind
from dsindex.options.config import UsageError, validated
from dsindex.options.instruct import InstructConfig
from dsindex.store.config_files import option_names, read_yaml

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from dsindex.jobs.instruct import BuiltSplit, InstructReport
    from dsindex.jobs.instruct_exports import MadeExport

DESCRIPTION = """\
Turn conversations into instruction-tuning data: P_text_document (tokens) and P_loss_mask (uint8, 1 = trainable),
with the same sequences and documents, and P_packing_L, which assigns whole conversations to blocks of L tokens.
With --split each is made per split: P_train_text_document, and so on.

CONFIG says how records become prompts and which of their text is trained on (special_tokens, message_construction,
loss_masking_jq_patterns, or a chat template). The options below can also be set in its section `job`, with
underscores for dashes; flags override it. Much text is encoded in processes, unless --executor says otherwise.

Run the same command again to continue an interrupted job."""
EXAMPLES = (
    r"""dsindex instruct chat.yaml --input chats.jsonl --tokenizer-model FOLDER \
  --output-prefix out/chat --seq-length 4096""",
)
REQUIRED = {"input": "--input-list", "tokenizer_model": "", "output_prefix": ""}

OWN = frozenset({"instruction", "debug"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `dsindex instruct`."""
    parser.add_argument("instruction", metavar="CONFIG", help="a YAML file")
    data = parser.add_argument_group("input and output")
    add_input_arguments(data)
    add_options(data, InstructConfig, "output_prefix", "tokenizer_model", "engine", "seq_length", "split", "split_seed")
    add_options(data, InstructConfig, "export", action="extend")
    add_record_arguments(parser, InstructConfig)


def run(options: argparse.Namespace) -> int:
    """Build, show progress, and print a summary."""
    config, instruction = read_job(options)
    options.log_json = config.log_json  # decides how the command line reports an error
    with make_reporter(log_json=config.log_json) as reporter:
        report = run_instruct(config, instruction, reporter=reporter)
    write_summary(
        describe_instruct(report),
        seconds=round(report.seconds, 3),
        already_complete=report.already_complete,
        outputs=[
            {"prefix": split.prefix, "documents": split.statistics.conversations, "tokens": split.statistics.tokens}
            for split in report.splits
        ],
        exports=[
            {
                "path": export.path,
                "kind": export.kind,
                "rows": sum(split.rows for split in export.content.splits.values()),
            }
            for export in report.exports
        ],
    )
    return 0


def read_job(options: argparse.Namespace) -> tuple[InstructConfig, InstructionConfig]:
    """Read CONFIG and its section `job`, which flags override.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
        UsageError: If the job's options are invalid.
    """
    path = options.instruction
    flags = {name: value for name, value in vars(options).items() if name not in OWN and value is not None}
    return join_job(read_yaml(path), flags, source=path, folder=Path(path).parent)


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
        msg = (
            f"expected max_length to be at most --seq-length {config.seq_length}, got {instruction.max_length}: "
            f"a conversation must fit into a block"
        )
        raise UsageError(msg)
    return config, instruction


def describe_instruct(report: InstructReport) -> list[str]:
    """Return the summary: what was built, what was quarantined and why, and the digests that identify the output."""
    counts = report.counts
    lines = []
    if report.already_complete:
        is_idle = all(export.already_complete for export in report.exports)
        done = "nothing was done" if is_idle else "only exports were made"
        lines.append(f"already complete: the same plan was carried out before, {done}")
    else:
        lines.append(
            f"done in {report.seconds:.1f} s: {format_size(report.input_bytes)} of input, "
            f"{format_speed(report.input_bytes / max(report.seconds, 1e-6))}, "
            f"{count(report.run.shards, 'shard')}, {report.run.executor} executor, "
            f"{count(report.run.workers, 'worker')}"
        )
    lines.append(
        f"{count(counts.lines, 'line')} = {counts.kept:,} kept + {counts.quarantined:,} quarantined + "
        f"{counts.blank:,} blank"
    )
    if report.bad_records:
        lines.append("quarantined: " + ", ".join(f"{kind} {count:,}" for kind, count in report.bad_records.items()))
    lines += [*describe_requests(report.requests), *report.input_notes]
    for split in report.splits:
        lines += _describe_split(split)
    for export in report.exports:
        lines += _describe_export(export)
    return lines


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
