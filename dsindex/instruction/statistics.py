"""Statistics of a build of conversations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.instruction.encode import UNLEARNT_END
from dsindex.instruction.records import LEARNT_QUESTION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.instruction.encode import EncodedConversation

_NOTE = "note: "


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
    notes: Mapping[str, int] = field(default_factory=dict)
    """What the template did not write, and the like -> number of conversations."""

    @classmethod
    def of_counts(cls, counts: Mapping[str, int]) -> InstructionStatistics:
        """Return statistics from the counts of a manifest or of shards."""
        notes = {name.removeprefix(_NOTE): value for name, value in counts.items() if name.startswith(_NOTE)}
        return cls(notes=notes, **{name: value for name, value in counts.items() if not name.startswith(_NOTE)})

    def counts(self) -> dict[str, int]:
        """Return the statistics as named counts, which are added up over shards and stored in the manifest."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "notes"}
        return own | {f"{_NOTE}{note}": number for note, number in sorted(self.notes.items())}

    def lines(self) -> list[str]:
        """Return a summary: a sentence, and one for each note."""
        share = 100 * self.learnt / self.tokens if self.tokens else 0.0
        shortened = f", {self.shortened:,} too long and truncated or split" if self.shortened else ""
        whole = (
            f"{count(self.conversations, 'conversation')}, {count(self.sequences, 'sequence')}, "
            f"{count(self.tokens, 'token')}, {self.learnt:,} trainable ({share:.1f} %), {self.cut:,} cut off{shortened}"
        )
        return [whole, *(f"  note: {self._describe(note, number)}" for note, number in sorted(self.notes.items()))]

    def _describe(self, note: str, number: int) -> str:
        meaning = _MEANINGS.get(note, "the template does not write it")
        return f"{note} in {number:,} of {count(self.conversations, 'conversation')}: {meaning}"


_MEANINGS = {
    UNLEARNT_END: "a model may not learn to stop; put the token inside of {% generation %}",
    LEARNT_QUESTION: "only replies are learnt",
}


def statistics_of(encoded: Sequence[EncodedConversation], *, learnt: int) -> Counter[str]:
    """Return the counts of conversations, which have so many trainable tokens together."""
    notes = Counter(note for conversation in encoded for note in conversation.notes)
    return Counter(
        InstructionStatistics(
            conversations=len(encoded),
            sequences=sum(len(conversation.lengths) for conversation in encoded),
            tokens=sum(len(conversation.tokens) for conversation in encoded),
            learnt=learnt,
            cut=sum(conversation.cut for conversation in encoded),
            shortened=sum(each.cut > 0 or len(each.lengths) > 1 for each in encoded),
            special_in_text=sum(conversation.special_in_text for conversation in encoded),
            notes=notes,
        ).counts()
    )
