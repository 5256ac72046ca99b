"""Compare gigatoken with a tokenizer's own library for published files, which no checkout contains.

    python -m tests.agreement.files tokenizer.model tekken.json
    python -m tests.agreement.files --tiktoken-encoding llama3.1 tokenizer.model

Every code point is tried alone and in all contexts, with all tokens of the vocabulary and many random texts. The
command exits with 1 if gigatoken differs. It names the files that are left to their own library.
"""

import argparse
import random
import sys
import time

import pyarrow as pa

from dsindex.text.encoders import choose_engine, make_encoder
from dsindex.text.tokenizer import TokenizerOptions, load_tokenizer
from tests.agreement.texts import long_sequence, short_sequences, swept_texts
from tests.support.text_tokenizers import NASTY, mixed_texts


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.agreement.files", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--tiktoken-encoding", metavar="NAME")
    parser.add_argument("--every", type=int, default=1, help="try every n-th code point (default: 1)")
    options = parser.parse_args(arguments)
    given = TokenizerOptions(tiktoken_encoding=options.tiktoken_encoding)
    differ = [_report(load_tokenizer(file, options=given), every=options.every) for file in options.files]
    return 1 if any(differ) else 0


def _report(tokenizer, *, every):
    """Compare the engines on one tokenizer, print what was found, and return whether they differ."""
    begin = time.monotonic()
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    sys.stdout.write(f"{tokenizer.name}, {tokenizer.vocabulary_size:,} tokens: {engine.describe()}\n")
    if engine.name != "gigatoken":
        sys.stdout.write(f"    {engine.reason}\n")
        return False
    fast = make_encoder(tokenizer, engine)
    slow = make_encoder(tokenizer, choose_engine(tokenizer, "reference", add_special_tokens=True))
    found, count = [], 0
    for texts in tried_texts(tokenizer, every=every):
        array = pa.array(texts, pa.large_string())
        one, other = fast.encode(array), slow.encode(array)
        count += len(texts)
        if one.tokens.tolist() != other.tokens.tolist() or one.lengths.tolist() != other.lengths.tolist():
            found += [text for text in texts if _differs(fast, slow, text)]
    sys.stdout.write(f"    {len(found):,} of {count:,} texts differ ({time.monotonic() - begin:.0f} s)\n")
    sys.stdout.writelines(f"    differs: {text!r}\n" for text in sorted(found, key=len)[:5])
    sys.stdout.flush()
    return bool(found)


def tried_texts(tokenizer, *, every):
    """Yield all texts in batches."""
    rng = random.Random(7)
    special = list(tokenizer.special_tokens) or ["</s>"]
    pool = [*special[:200], "<s>", " ", "  ", "\n", "▁", "a", "<", "|>"]
    yield ["".join(rng.choices(pool, k=rng.randint(1, 9))) for _ in range(20_000)]
    yield [*NASTY, *mixed_texts(20_000, seed=7), *short_sequences(3)]
    yield [long_sequence(rng) for _ in range(20_000)]
    yield from swept_texts(every=every)


def _differs(fast, slow, text):
    array = pa.array([text], pa.large_string())
    return fast.encode(array).tokens.tolist() != slow.encode(array).tokens.tolist()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
