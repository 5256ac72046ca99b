"""The demo: the main job on generated text, with the commands that a user would type."""

from __future__ import annotations

import glob
import os
import shlex
import sys
from typing import TYPE_CHECKING

from dsindex.datasets import GPTDataset
from dsindex.shards.provenance import read_source
from dsindex.text.tokenizer import decode, load_tokenizer
from workflows.demo.folder import DEMO_MARKER, clear_names, own_folder
from workflows.demo.texts import demo_file_names, write_demo_jsonl
from workflows.demo.tokenizer import END_OF_TEXT, TOKENIZER_FILES, train_demo_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SEQUENCE_LENGTH = 256
EPOCHS = "2.5"
SHOWN_SAMPLE = 3


def run_demo(folder: str, *, num_documents: int, run_command: Callable[[Sequence[str]], int]) -> int:
    """Generate text, train a tokenizer, build with Ray, index 2.5 epochs, verify, and show a sample.

    Args:
        folder: The folder for all files; new, empty, or an earlier demo's, which is replaced.
        num_documents: Number of documents to generate.
        run_command: Runs one dsindex command in this process and returns its exit code.

    Returns:
        The exit code of the first command that failed, or 0.

    Raises:
        OutputError: If the folder holds other files.
    """
    base = own_folder(folder, DEMO_MARKER)
    clear_names(base / "text", demo_file_names())
    clear_names(base / "tokenizer", TOKENIZER_FILES)
    clear_names(base / "cache", ())
    _say(f"1. {num_documents:,} documents in many scripts, written to {base / 'text'}")
    inputs = write_demo_jsonl(base / "text", num_documents=num_documents)
    _say(f"2. a byte-level BPE tokenizer, trained on a part of them: {base / 'tokenizer'}")
    tokenizer = train_demo_tokenizer(inputs, base / "tokenizer")
    prefix = str(base / "demo")
    shard_size = max(1, sum(path.stat().st_size for path in inputs) // 10)
    commands = {
        "3. build through Ray, merge, index": (
            *("build", "--input", *map(str, inputs), "--tokenizer-model", str(tokenizer), "--append-eod"),
            *("--output-prefix", prefix, "--shard-size", str(shard_size), "--executor", "ray", "--fresh"),
            *("--seq-length", str(SEQUENCE_LENGTH), "--epochs", EPOCHS, "--data-cache-path", str(base / "cache")),
        ),
        "4. verify": ("verify", f"{prefix}_text_document"),
    }
    for title, command in commands.items():
        _say(f"{title}\n   $ dsindex {shlex.join(command)}")
        code = run_command(command)
        if code != 0:
            return code
    _say("5. a training sample, and where it came from")
    _show_sample(base, tokenizer, inputs)
    return 0


def _show_sample(base: Path, tokenizer_folder: Path, inputs: list[Path]) -> None:
    """Print one decoded sample of the train split and the input lines of its parts."""
    [description] = glob.glob(os.path.join(base, "cache", "*-GPTDataset-train-description.txt"))
    dataset = GPTDataset.open_cache(description)
    tokenizer = load_tokenizer(str(tokenizer_folder))
    sample = dataset.tokens(SHOWN_SAMPLE)
    text = decode(tokenizer, sample.tolist())
    _write(
        f"   sample {SHOWN_SAMPLE} of {len(dataset):,}: {len(sample)} tokens, of which the model sees {SEQUENCE_LENGTH}"
    )
    for part in dataset.parts(SHOWN_SAMPLE):
        document = dataset.dataset.document_of(part.sequence)
        source = read_source(f"{part.prefix}.provenance.parquet", document)
        _write(
            f"   tokens {part.offset} to {part.offset + part.num_tokens} of document {document}: "
            f"{inputs[source.input]}, line {source.line}"
        )
    excerpt = text.replace(END_OF_TEXT, f"\n{END_OF_TEXT}\n").strip()
    _write("   " + "\n   ".join(excerpt[:700].splitlines()))


def _say(text: str) -> None:
    _write(f"\n{text}")


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
