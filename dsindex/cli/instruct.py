"""`dsindex instruct`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsindex.engine.standard_streams import write_lines
from dsindex.options.instruct import InstructCommand, InstructConfig
from dsindex.store.config_files import read_yaml

if TYPE_CHECKING:
    import argparse

    from dsindex.instruction.config import InstructionConfig


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
OPTIONS = (InstructCommand, InstructConfig)
REQUIRED = {"input": "--input-list", "tokenizer_model": ""}


def run(options: argparse.Namespace) -> int:
    """Build, show progress, and print a summary."""
    from dsindex.engine.progress import make_reporter
    from dsindex.jobs.instruct import run_instruct  # loads what a help text does not need

    config, instruction = read_job(options)
    with make_reporter() as reporter:
        report = run_instruct(config, instruction, reporter=reporter)
    write_lines(report.lines())
    return 0


def read_job(options: argparse.Namespace) -> tuple[InstructConfig, InstructionConfig]:
    """Read CONFIG and its section `job`, which flags override.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
        UsageError: If the job's options are invalid.
    """
    from dsindex.jobs.instruct import join_job  # loads what a help text does not need

    path = options.instruction
    flags = {
        name: value
        for name, value in vars(options).items()
        if name in InstructConfig.model_fields and value is not None
    }
    return join_job(read_yaml(path), flags, source=path, folder=Path(path).parent)
