"""Statistics of conversations, as the manifest of a split has them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.instruction.encode import UNLEARNT_END
from dsindex.instruction.records import LEARNT_QUESTION

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from dsindex.instruction.encode import EncodedConversation

_NOTE = "note: "
_MEANINGS = {
    UNLEARNT_END: "a model may not learn to stop; put the token inside of {% generation %}",
    LEARNT_QUESTION: "only replies are learnt",
}


def count_conversation(encoded: EncodedConversation, counts: Counter[str]) -> None:
    """Add a conversation to named counts; the number of trainable tokens, `learnt`, is the caller's to add."""
    counts["conversations"] += 1
    counts["sequences"] += len(encoded.lengths)
    counts["tokens"] += len(encoded.tokens)
    counts["cut"] += encoded.cut
    counts["shortened"] += encoded.cut > 0 or len(encoded.lengths) > 1
    counts["special_in_text"] += encoded.special_in_text
    counts.update(f"{_NOTE}{note}" for note in encoded.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionStatistics:
    """Counts of the conversations of a dataset and their tokens."""

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
    """What the template did not write, and the like → number of conversations."""

    @classmethod
    def of_counts(cls, counts: Mapping[str, int]) -> InstructionStatistics:
        """Return statistics from the counts of a manifest."""
        notes = {name.removeprefix(_NOTE): value for name, value in counts.items() if name.startswith(_NOTE)}
        own = {each.name: counts.get(each.name, 0) for each in fields(cls) if each.name != "notes"}
        return cls(notes=notes, **own)

    def lines(self) -> list[str]:
        """Return a summary: a sentence, and one for each note."""
        share = 100 * self.learnt / self.tokens if self.tokens else 0.0
        shortened = f", {self.shortened:,} too long and truncated or split" if self.shortened else ""
        whole = count(self.conversations, "conversation")
        sizes = f"{whole}, {count(self.sequences, 'sequence')}, {count(self.tokens, 'token')}"
        lines = [f"{sizes}, {self.learnt:,} trainable ({share:.1f} %), {self.cut:,} cut off{shortened}"]
        for note, number in sorted(self.notes.items()):
            meaning = _MEANINGS.get(note, "the template does not write it")
            lines.append(f"  note: {note} in {number:,} of {whole}: {meaning}")
        return lines
