"""Statistics of a build of conversations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from dsindex.amounts import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.instruction.encoder import EncodedConversation


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionStatistics:
    """Counts of conversations and their tokens, to be added up over shards."""

    conversations: int = 0
    """Number of records that became tokens."""
    sequences: int = 0
    """Number of sequences: one per conversation, more if it was split."""
    tokens: int = 0
    learnt: int = 0
    """Number of trainable tokens, with mask 1."""
    cut: int = 0
    """Number of tokens that truncation or splitting left out."""
    shortened: int = 0
    """Number of conversations that were truncated or split."""
    special_in_text: int = 0
    """Number of conversations whose text contains a special token's string."""

    @classmethod
    def of(cls, encoded: Sequence[EncodedConversation], *, learnt: int) -> InstructionStatistics:
        """Return the statistics of conversations.

        Args:
            encoded: The conversations.
            learnt: Number of their trainable tokens.
        """
        return cls(
            conversations=len(encoded),
            sequences=sum(len(conversation.lengths) for conversation in encoded),
            tokens=sum(len(conversation.tokens) for conversation in encoded),
            learnt=learnt,
            cut=sum(conversation.cut for conversation in encoded),
            shortened=sum(each.cut > 0 or len(each.lengths) > 1 for each in encoded),
            special_in_text=sum(conversation.special_in_text for conversation in encoded),
        )

    def __add__(self, other: InstructionStatistics) -> InstructionStatistics:
        return InstructionStatistics(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )

    def describe(self) -> str:
        """Return a summary in one sentence."""
        share = 100 * self.learnt / self.tokens if self.tokens else 0.0
        return (
            f"{count(self.conversations, 'conversation')}, {count(self.sequences, 'sequence')}, "
            f"{count(self.tokens, 'token')}, "
            f"{self.learnt:,} trainable ({share:.1f} %), {self.cut:,} cut off"
            + (f", {self.shortened:,} too long and truncated or split" if self.shortened else "")
        )
