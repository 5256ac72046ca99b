"""The main job, to copy and change: text → tokenizer → dataset → index caches → verification → a sample and its lines.

    python workflows/pretraining.py                 # the demo: generates text, and writes to demo-output
    python workflows/pretraining.py FOLDER          # your FOLDER/text/*.jsonl, with FOLDER/tokenizer if it exists
    ray job submit --working-dir workflows -- python pretraining.py /shared/FOLDER

A submitted job runs on its cluster; any other run uses threads on this machine. To continue an interrupted run, repeat
the command: completed steps are not repeated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dsindex

if TYPE_CHECKING:
    from collections.abc import Iterator

END_OF_TEXT = "<|endoftext|>"
SEQUENCE_LENGTH = 256
EPOCHS = 2.5
TRAINING_BYTES = 3 << 20


def main(name: str = "demo-output") -> int:
    """Run the steps in a folder; return 1 if a check fails."""
    folder = Path(name)
    if not (folder / "text").exists():
        from demo_text import write_demo_jsonl

        write_demo_jsonl(folder / "text")
    if not (folder / "tokenizer").exists():
        train_tokenizer(sorted((folder / "text").glob("*.jsonl")), folder / "tokenizer")
    built = dsindex.build(
        f"{folder}/text/*.jsonl",
        tokenizer=folder / "tokenizer",
        append_eod=True,
        output_prefix=f"{folder}/demo",
        progress=True,
    )
    dsindex.show(built)
    caches = dsindex.build_index(
        built, seq_length=SEQUENCE_LENGTH, epochs=EPOCHS, data_cache_path=folder / "cache", progress=True
    )
    dsindex.show(caches)
    checked = dsindex.verify(built, cache=caches)
    dsindex.show(checked)
    sample = dsindex.open(caches)[0]
    print(f"the first sample: {len(sample['tokens'])} tokens, {sample['tokens'][:8].tolist()} …")
    dsindex.show(dsindex.trace(caches, sample=0, tokenizer=folder / "tokenizer"))
    return 0 if checked else 1


def train_tokenizer(paths: list[Path], folder: Path, *, vocabulary_size: int = 8000) -> Path:
    """Train a byte-level BPE on about TRAINING_BYTES of the files, and save it in the format of transformers."""
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
    tokenizer.train_from_iterator(sample_texts(paths), trainer=trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "model_max_length": 1_000_000}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def sample_texts(paths: list[Path]) -> Iterator[str]:
    """Yield the text of every nth record, with n such that about TRAINING_BYTES of the files are used."""
    step = -(-sum(path.stat().st_size for path in paths) // TRAINING_BYTES)
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number % step == 0:
                    yield json.loads(line)["text"]


if __name__ == "__main__":
    if len(sys.argv) > 2 or sys.argv[-1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
