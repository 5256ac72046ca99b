"""Texts with which a tokenizer is compared with the library that defines its format."""

import random

from dsindex.text.agreement import probes_of
from tests.agreement.texts import long_sequence, short_sequences
from tests.support.text_tokenizers import NASTY, mixed_texts


def fixed_texts(pieces, *, seed):
    """Probes, runs, sequences of all classes of characters, and random texts, of the given pieces among others."""
    rng = random.Random(seed)
    pool = [*pieces, " ", "  ", "\n", "▁", "a", "<", "|>"]
    mixed = ["".join(rng.choices(pool, k=rng.randint(1, 9))) for _ in range(2000)]
    runs = [f"{before}{character * n}y" for character in ("▁", " ", "a", "=", "\n", "1", "é") for n in range(1, 70)
            for before in ("", "x")]  # fmt: skip
    long = [long_sequence(rng) for _ in range(1000)]
    return [
        *probes_of(pieces),
        *NASTY,
        *mixed_texts(500, seed=seed),
        *mixed,
        *runs,
        *short_sequences(2),
        *long,
        *pieces,
    ]
