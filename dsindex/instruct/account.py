"""Which part of a split a conversation belongs to, and what a build of conversations adds up to."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.instruct.encoder import EncodedConversation

SPLITS = ("train", "valid", "test")


def fingerprint_content(content: object) -> bytes:
    """Give 16 bytes that depend on what a conversation says, and not on its id, its place or the order of its keys.

    Args:
        content: JSON data: the fields or messages that are used.

    Returns:
        XXH3-128, seed 0, big-endian, of JSON with sorted keys and without blanks, in UTF-8.
    """
    import xxhash

    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_digest(text.encode(errors="surrogatepass"))


def split_by_hash(fingerprint: bytes, *, fractions: Sequence[float], seed: int = 1234) -> str:
    """Choose train, valid or test for a conversation, by its content alone: equal conversations go the same way.

    Args:
        fingerprint: From `fingerprint_content`.
        fractions: Shares of train, valid and test; normalised by their sum.
        seed: Another seed, another split.

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
    # 53 bits, so that the quotient is exact and below 1: a part of share 0 gets nothing.
    place = (xxhash.xxh3_64_intdigest(fingerprint, seed=seed) >> 11) / 2**53
    if place < fractions[0] / total:
        return "train"
    return "valid" if place < (fractions[0] + fractions[1]) / total else "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionStatistics:
    """What was made of conversations; add them up over shards."""

    conversations: int = 0
    """Records that became tokens."""
    sequences: int = 0
    """One per conversation, more where long ones were split."""
    tokens: int = 0
    learnt: int = 0
    """Tokens with mask 1."""
    cut: int = 0
    """Tokens that truncation or splitting left out."""
    special_in_text: int = 0
    """Conversations in whose text a special token's string stands."""

    @classmethod
    def of(cls, encoded: EncodedConversation) -> InstructionStatistics:
        """Count one conversation."""
        return cls(
            conversations=1,
            sequences=len(encoded.lengths),
            tokens=len(encoded.tokens),
            learnt=int(encoded.mask.sum()),
            cut=encoded.cut,
            special_in_text=int(encoded.special_in_text),
        )

    def __add__(self, other: InstructionStatistics) -> InstructionStatistics:
        return InstructionStatistics(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )

    def describe(self) -> str:
        """Say it in one sentence."""
        share = 100 * self.learnt / self.tokens if self.tokens else 0.0
        return (
            f"{self.conversations:,} conversations, {self.sequences:,} sequences, {self.tokens:,} tokens, "
            f"{self.learnt:,} learnt ({share:.1f} %), {self.cut:,} cut off"
        )
