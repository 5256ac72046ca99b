"""Small GPT models trained on the same text in Megatron's order and packed: `python -m tests.benchmarks.order_trial`.

For every seed, which decides weights and order, one model reads an epoch of a dataset's caches in each order. Reported
is the loss on held-out documents, whole and on their first 256 tokens, and how many documents were cut. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import tokenizers
import torch
from torch import nn
from torch.nn import functional

import dsindex
from dsindex.index.cuts import count_cuts

EOD, FIRST = "<|endoftext|>", 256


class GPT(nn.Module):
    """Decoder with learnt positions; input and output share their embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next tokens, shape [batch, length, vocabulary]."""
        size = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        hidden = self.blocks(self.tokens(tokens) + self.places.weight[:size], mask, is_causal=True)
        return hidden @ self.tokens.weight.T


def prepare(args: argparse.Namespace) -> tuple[Path, list[np.ndarray]]:
    """Train a tokenizer, build the dataset of the training text, and encode the held-out documents."""
    folder = Path(args.folder)
    with open(args.input, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    random.Random(0).shuffle(texts)
    held_out, kept, size = texts[: args.held_out], [], 0
    for text in texts[args.held_out :]:
        size += len(text.encode())
        if size > args.megabytes * 1_000_000:
            break
        kept.append(text)
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in kept))
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(kept, vocab_size=args.vocabulary, special_tokens=[EOD], show_progress=False)
    (folder / "tokenizer").mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOD})
    )
    dsindex.build(
        folder / "train.jsonl", output_prefix=folder / "train", tokenizer=folder / "tokenizer", append_eod=True
    )
    end = tokenizer.token_to_id(EOD)
    return folder / "train_text_document", [np.array([end, *tokenizer.encode(text).ids, end]) for text in held_out]


def train(args: argparse.Namespace, prefix: Path, order: str, seed: int) -> tuple[GPT, str]:
    """Train a model on one epoch; return it and the cuts in the order that it read."""
    cache = Path(args.folder) / f"{order}-{seed}"
    dsindex.build_index(
        prefix, seq_length=args.seq_length, epochs=1, split="1", seed=seed, data_cache_path=cache, plain_names=True,
        document_order=order,
    )  # fmt: skip
    samples = dsindex.open(cache, split="train")
    cuts = count_cuts(
        samples.dataset.sequence_lengths, samples.document_index, sequence_length=args.seq_length,
        num_samples=len(samples),
    )  # fmt: skip
    torch.manual_seed(seed)
    model = GPT(args.vocabulary, args.seq_length, args.width, args.layers)
    steps = len(samples) // args.batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        rate = args.learning_rate * min((step + 1) / (0.05 * steps), 0.55 + 0.45 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        text = torch.from_numpy(samples.batch(range(step * args.batch, (step + 1) * args.batch)))
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, "; ".join(cuts.lines())


@torch.no_grad()
def evaluate(model: GPT, documents: list[np.ndarray], length: int) -> tuple[float, float]:
    """Return the loss per token on documents, cut to `length`, and on their first 256 tokens."""
    sums, counts = [0.0, 0.0], [0, 0]
    for document in documents:
        text = torch.from_numpy(document[: length + 1]).long()
        losses = functional.cross_entropy(model(text[None, :-1])[0], text[1:], reduction="none")
        for place, own in enumerate((losses, losses[:FIRST])):
            sums[place] += float(own.sum())
            counts[place] += len(own)
    return sums[0] / counts[0], sums[1] / counts[1]


def main() -> None:
    """Train all pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", help="JSONL with the field text")
    parser.add_argument("folder", help="an empty folder for tokenizer, dataset and caches")
    sizes = {"seeds": 6, "megabytes": 4, "held-out": 400, "vocabulary": 4096, "seq-length": 512, "batch": 8}
    for name, default in {**sizes, "width": 128, "layers": 4, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    Path(args.folder).mkdir(parents=True, exist_ok=True)
    prefix, documents = prepare(args)
    found: dict[str, list[tuple[float, float]]] = {"shuffled": [], "packed": []}
    for seed in range(args.seeds):
        for order, losses in found.items():
            model, cuts = train(args, prefix, order, seed)
            losses.append(evaluate(model, documents, args.seq_length))
            sys.stdout.write(f"seed {seed}, {order}: {losses[-1][0]:.3f}, {losses[-1][1]:.3f}; {cuts}\n")
            sys.stdout.flush()
    for place, what in enumerate(("whole documents", f"first {FIRST} tokens")):
        columns = {order: [each[place] for each in losses] for order, losses in found.items()}
        columns["difference"] = [a - b for a, b in zip(columns["shuffled"], columns["packed"], strict=True)]
        told = [f"{name} {mean(own):.3f} ± {stdev(own) if len(own) > 1 else 0:.3f}" for name, own in columns.items()]
        sys.stdout.write(f"{what}: {', '.join(told)}\n")


if __name__ == "__main__":
    main()
