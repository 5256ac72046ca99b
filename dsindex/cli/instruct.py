"""`dsindex instruct`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show
from dsindex.options.instruct import InstructConfig

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
OPTIONS = (InstructConfig,)


def run(values: dict[str, Any]) -> int:
    """Build, show progress, and print a summary."""
    from dsindex import functions  # loads what a help text does not need

    return show(functions.instruct(**values, progress=True))
