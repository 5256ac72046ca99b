"""The tokenizer of the demo: a byte-level BPE trained on part of the demo's text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_TRAINING_BYTES = 3 << 20


def train_demo_tokenizer(jsonl_paths: Iterable[Path], folder: Path, *, vocabulary_size: int = 8000) -> Path:
    """Train a byte-level BPE and write it in the format of `tokenizers` and transformers.

    Args:
        jsonl_paths: Files of records with a `text`; every nth record is used, about 3 MiB of text in all scripts.
        folder: The folder for tokenizer.json and tokenizer_config.json, created if missing.
        vocabulary_size: Largest number of tokens, including `<|endoftext|>` and the 256 bytes.

    Returns:
        The folder, as a value of `--tokenizer-model`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_texts(list(jsonl_paths)), trainer=trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_file, config_file = (folder / name for name in TOKENIZER_FILES)
    tokenizer.save(str(tokenizer_file))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "model_max_length": 1_000_000}
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _sample_texts(paths: list[Path]) -> Iterator[str]:
    step = -(-sum(path.stat().st_size for path in paths) // _TRAINING_BYTES)
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number % step == 0:
                    yield json.loads(line)["text"]
