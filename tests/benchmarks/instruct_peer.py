"""Chats to tokens and masks as transformers and datasets do it, for their environment.

python instruct_peer.py make CHATS.jsonl FOLDER TOKENIZER.json TEMPLATE.jinja PROCESSES
python instruct_peer.py digest FOLDER       prints a digest of all tokens and masks
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Do what the first argument says."""
    if sys.argv[1] == "make":
        make(*sys.argv[2:6], processes=int(sys.argv[6]))
    else:
        sys.stdout.write(digest(sys.argv[2]) + "\n")


def make(source: str, folder: str, tokenizer_file: str, template: str, *, processes: int) -> None:
    """Write input_ids and assistant_masks of each chat with `map` and `save_to_disk`."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)
    tokenizer.chat_template = Path(template).read_text(encoding="utf-8")

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        made = tokenizer.apply_chat_template(batch["messages"], return_dict=True, return_assistant_tokens_mask=True)
        return {name: made[name] for name in ("input_ids", "assistant_masks")}

    chats = datasets.load_dataset("json", data_files=source, split="train", cache_dir=f"{folder}/cache")
    made = chats.map(encode, batched=True, num_proc=processes, remove_columns=chats.column_names)
    made.save_to_disk(f"{folder}/made")


def digest(folder: str) -> str:
    """Return a digest of all tokens, then of all masks."""
    import datasets

    made = datasets.load_from_disk(f"{folder}/made").with_format("arrow")
    tokens, masks = hashlib.sha256(), hashlib.sha256()
    for batch in made.iter(1000):
        tokens.update(batch["input_ids"].combine_chunks().flatten().to_numpy().astype("<u4"))
        masks.update(batch["assistant_masks"].combine_chunks().flatten().to_numpy().astype("u1"))
    return f"{tokens.hexdigest()} {masks.hexdigest()}"


if __name__ == "__main__":
    main()
