"""Chats to tokens and masks as transformers and datasets do it, for their environment.

python instruct_peer.py CHATS.jsonl FOLDER TOKENIZER.json TEMPLATE.jinja PROCESSES
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerFast


def main(source: str, folder: str, tokenizer_file: str, template: str, processes: str) -> None:
    """Write input_ids and assistant_masks of each chat with `map` and `save_to_disk`."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)
    tokenizer.chat_template = Path(template).read_text(encoding="utf-8")

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer.apply_chat_template(batch["messages"], return_dict=True, return_assistant_tokens_mask=True)
        return {name: encoded[name] for name in ("input_ids", "assistant_masks")}

    chats = datasets.load_dataset("json", data_files=source, split="train", cache_dir=f"{folder}/cache")
    encoded = chats.map(encode, batched=True, num_proc=int(processes), remove_columns=chats.column_names)
    encoded.save_to_disk(f"{folder}/made")


if __name__ == "__main__":
    main(*sys.argv[1:])
