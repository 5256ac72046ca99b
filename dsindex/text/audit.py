"""Compare gigatoken with the reference on a sample of the build's own text, before the build starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import TokenizerError
from dsindex.text.encoders import encode_leniently, make_encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.text.encoders import Engine
    from dsindex.text.tokenizer import Tokenizer


def audit(tokenizer: Tokenizer, engine: Engine, texts: Sequence[str]) -> None:
    """Encode texts with both engines and compare the tokens; does nothing if the engine is the reference.

    A text on which the reference fails is left out: there is nothing to compare.

    Raises:
        TokenizerError: At the first text that they encode differently.
    """
    if engine.name != "gigatoken" or len(texts) == 0:
        return
    wanted, texts = encode_leniently(make_encoder(tokenizer, replace(engine, name=engine.reference)), texts)
    batch = make_encoder(tokenizer, engine).encode(texts)
    if np.array_equal(batch.lengths, wanted.lengths) and np.array_equal(batch.tokens, wanted.tokens):
        return
    pairs = (np.split(each.tokens, np.cumsum(each.lengths)[:-1]) for each in (batch, wanted))
    for text, got, expected in zip(texts, *pairs, strict=False):  # of no texts, there is an empty piece
        if not np.array_equal(got, expected):
            library = tokenizer.library
            raise TokenizerError(
                f"{tokenizer.name}: expected the same tokens from gigatoken and {library}, but they differ on "
                f"{_difference(text, got.tolist(), expected.tolist(), library)}; "
                f"use --engine {'tokenizers' if library == 'tokenizers' else 'reference'}"
            )


def clip_texts(texts: Sequence[str], *, most: int, total: int) -> list[str]:
    """Shorten each text to `most` characters, and drop the last texts, so that all have at most `total`."""
    clipped = []
    for text in texts:
        total -= min(len(text), most)
        if total < 0:
            break
        clipped.append(text[:most])
    return clipped


def _difference(text: str, got: list[int], expected: list[int], library: str) -> str:
    same = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
    )
    begin = max(0, same - 2)
    shown = repr(text) if len(text) <= 120 else f"{text[:60]!r} … {text[-60:]!r}"
    return f"{shown} from token {begin}: gigatoken {got[begin : same + 4]}, {library} {expected[begin : same + 4]}"
