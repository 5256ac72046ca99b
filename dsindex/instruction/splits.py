"""Assign conversations to train, valid and test by their content alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLITS = ("train", "valid", "test")


def fingerprint_content(content: object) -> bytes:
    """Return 16 bytes that depend on a conversation's content, not on its id, its position or the order of its keys.

    Args:
        content: JSON data, the fields or messages in use.

    Returns:
        XXH3-128, seed 0, big-endian, of JSON in UTF-8 with sorted keys and without blanks.
    """
    import xxhash

    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_digest(text.encode(errors="surrogatepass"))


def split_by_hash(fingerprint: bytes, *, fractions: Sequence[float], seed: int = 1234) -> str:
    """Return the split of a conversation, by its content alone: equal conversations are in the same split.

    Args:
        fingerprint: The result of `fingerprint_content`.
        fractions: Shares of train, valid and test; normalised by their sum.
        seed: Another seed gives another assignment.

    Returns:
        `train`, `valid` or `test`.

    Raises:
        ValueError: If the fractions are not three numbers >= 0 with a sum above 0.

    >>> split_by_hash(fingerprint_content("Hello"), fractions=(1, 0, 0))
    'train'
    """
    import xxhash

    total = sum(fractions)
    if len(fractions) != len(SPLITS) or min(fractions) < 0 or not 0 < total < float("inf"):
        raise ValueError(f"expected three fractions of at least 0 with a sum above 0, got {list(fractions)}")
    # 53 bits, so that the quotient is exact and below 1: a split with share 0 gets nothing.
    place = (xxhash.xxh3_64_intdigest(fingerprint, seed=seed) >> 11) / 2**53
    if place < fractions[0] / total:
        return "train"
    return "valid" if place < (fractions[0] + fractions[1]) / total else "test"
