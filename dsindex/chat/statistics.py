"""Assign conversations to splits, and count conversations and tokens for the manifests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import xxhash

from dsindex.chat.conversations import (
    OTHER_THOUGHTS,
    QUOTED_ARGUMENTS,
    REORDERED_REPLY,
    TRAINED_QUESTION,
    UNTRAINED_END,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPLITS = ("train", "valid", "test")


def fingerprint_content(content: object) -> bytes:
    """Hash a conversation's content; the hash does not depend on its id, its position or the order of its keys.

    Args:
        content: The fields or messages that are encoded, as JSON data.

    Returns:
        XXH3-128 (16 bytes, big-endian, seed 0) of the content as UTF-8 JSON with sorted keys and no white space.
    """
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_digest(text.encode(errors="surrogatepass"))


def split_by_hash(fingerprint: bytes, *, fractions: Sequence[float], seed: int = 1234) -> str:
    """Return the split of a conversation. Duplicates get the same split, so no training text leaks into the test split.

    Args:
        fingerprint: The result of `fingerprint_content`.
        fractions: Shares of train, valid and test, relative to their sum.
        seed: Hash seed; another seed gives another assignment.

    Returns:
        `train`, `valid` or `test`.

    Raises:
        ValueError: If the fractions are not three numbers >= 0 with a sum above 0.

    >>> split_by_hash(fingerprint_content("Hello"), fractions=(1, 0, 0))
    'train'
    """
    total = sum(fractions)
    if len(fractions) != len(SPLITS) or min(fractions) < 0 or not 0 < total < float("inf"):
        raise ValueError(f"fractions {list(fractions)} are not three numbers of at least 0 with a sum above 0")
    # 53 bits fit a float's mantissa, so `point` is exact and below 1, and a split with share 0 gets nothing.
    point = (xxhash.xxh3_64_intdigest(fingerprint, seed=seed) >> 11) / 2**53
    if point < fractions[0] / total:
        return "train"
    return "valid" if point < (fractions[0] + fractions[1]) / total else "test"


NOTE = "note: "
"""Prefix that marks the counts of notes among a manifest's counts."""
_MEANINGS = {
    UNTRAINED_END: "a model may not learn to stop; move the token into {% generation %}",
    TRAINED_QUESTION: "only replies are trained on",
    REORDERED_REPLY: "templates write thoughts first, then text, then tool calls",
    OTHER_THOUGHTS: "it is kept and trained on like text",
    QUOTED_ARGUMENTS: "the template writes JSON text in quotes; store arguments as objects",
}


def explain_note(note: str) -> str:
    """Return what a note means. Most notes are keys of the record that the template does not use."""
    return _MEANINGS.get(note, "the template does not use it")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionStatistics:
    """Counts of a dataset's conversations and tokens."""

    conversations: int = 0
    """Number of encoded records."""
    sequences: int = 0
    """Number of sequences: one per conversation, or several if the conversation was split."""
    tokens: int = 0
    trainable: int = 0
    """Number of trainable tokens (mask 1)."""
    cut: int = 0
    """Number of tokens that truncation or splitting removed."""
    shortened: int = 0
    """Number of conversations that were truncated or split."""
    special_in_text: int = 0
    """Number of conversations whose text contains the string of a special token."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Note → number of conversations with it."""

    @classmethod
    def of_counts(cls, counts: Mapping[str, int]) -> InstructionStatistics:
        """Build statistics from the counts in a manifest."""
        notes = {name.removeprefix(NOTE): value for name, value in counts.items() if name.startswith(NOTE)}
        numbers = {count.name: counts.get(count.name, 0) for count in fields(cls) if count.name != "notes"}
        return cls(notes=notes, **numbers)
