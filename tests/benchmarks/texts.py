"""Text to measure with: words drawn with the frequencies of Python's own documentation."""

from __future__ import annotations

import collections
import json
import random
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS_PER_DOCUMENT = 140
GPT2_VOCABULARY = 50_257


def draw_texts(seed: int = 1) -> Iterator[str]:
    """Yield documents without end: log-normal lengths, and one word in twenty put together from two."""
    from pydoc_data.topics import topics

    counts = collections.Counter(re.findall(r"\S+", "\n".join(topics[name] for name in sorted(topics))))
    words, weights = list(counts), list(counts.values())
    rng = random.Random(seed)
    while True:
        drawn = iter(rng.choices(words, weights, k=200_000))
        for word in drawn:
            length = max(2, int(rng.lognormvariate(0, 1) * WORDS_PER_DOCUMENT * 0.6))
            text = [word]
            for other in drawn:
                text.append(other + text[-1][:9] if rng.random() < 0.05 else other)
                if len(text) > length:
                    break
            yield " ".join(text)


def write_text(path: Path, size_bytes: int, *, seed: int = 1) -> Path:
    """Write JSONL records with a `text` until a file has so many bytes."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for text in draw_texts(seed):
            written += file.write(json.dumps({"text": text}) + "\n")
            if written >= size_bytes:
                return path
    raise AssertionError  # the texts never end


def write_chats(path: Path, size_bytes: int) -> Path:
    """Write JSONL conversations of two to eight turns."""
    rng, texts, written = random.Random(2), draw_texts(2), 0
    with path.open("w", encoding="utf-8") as file:
        while written < size_bytes:
            roles = ("user", "assistant") * rng.randint(1, 4)
            turns = [{"role": role, "content": next(texts)} for role in roles]
            written += file.write(json.dumps({"messages": turns}) + "\n")
    return path


def train_tokenizer(folder: Path) -> Path:
    """Train a byte-level BPE of GPT-2's size and write it as a folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = draw_texts(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"special_tokens": ["<|endoftext|>"], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=GPT2_VOCABULARY, show_progress=False, **options)
    tokenizer.train_from_iterator((next(texts) for _ in range(3000)), trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
