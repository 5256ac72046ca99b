"""Find the strings of special tokens in a record's own texts, where they become special tokens as well."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsindex.errors import RecordProblem
from dsindex.instruction.records import strings_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsindex.instruction.messages import Message
    from dsindex.instruction.records import Conversation


class SpecialTexts:
    """Looks for special tokens in texts.

    Args:
        contents: The special tokens' strings.
        is_refused: Whether a record with one of them is bad.
    """

    def __init__(self, contents: Iterable[str], *, is_refused: bool) -> None:
        longest_first = sorted(contents, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._is_refused = is_refused
        self._in_keys = self._pattern is not None and any(map(self._pattern.search, ("messages", "role", "content")))

    def are_in(self, conversation: Conversation) -> bool:
        """Tell whether a special token's string stands in a conversation.

        Raises:
            RecordProblem: If one does, and is refused.
        """
        pattern = self._pattern
        if pattern is None:
            return False
        texts = None if conversation.variables or self._in_keys else _texts_of(conversation.messages)
        if texts is not None and not any(map(pattern.search, texts)):
            return False
        return self.are_in_texts(list(strings_in({"messages": conversation.messages, **conversation.variables})))

    def are_in_texts(self, texts: Sequence[str]) -> bool:
        """Tell whether a special token's string stands in one of the texts.

        Raises:
            RecordProblem: If one does, and is refused.
        """
        if self._pattern is None:
            return False
        found = {special for text in texts for special in self._pattern.findall(text)}
        if found and self._is_refused:
            raise RecordProblem("bad-text", f"expected no special token in a text, got {min(found)!r}")
        return bool(found)


def _texts_of(messages: Sequence[Message]) -> list[Any] | None:
    """Return the texts of messages of a role and a text alone; None if there are others."""
    texts: list[Any] = []
    for message in messages:
        if len(message) != 2 or type(message.get("content")) is not str:
            return None
        texts += message.values()
    return texts
