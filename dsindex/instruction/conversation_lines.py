"""Read conversations from lines of JSON: records of usual messages at once, all others by `records.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from dsindex.instruction.messages import DEFAULT_ROLES, read_usual
from dsindex.instruction.records import Conversation, check_text, parse_record, read_conversation, strings_in
from dsindex.text.fields import is_too_deep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.instruction.messages import Message
    from dsindex.instruction.records import Learn

_VARIABLES = ("tools", "documents", "chat_template_kwargs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationReader:
    """Reads conversations as one configuration says; its fields are those of `read_conversation`."""

    record_format: str
    roles: Mapping[str, str]
    learn: Learn
    assistant_role: str

    def read(self, record: Mapping[str, Any]) -> Conversation:
        """Return a record's conversation.

        Raises:
            RecordProblem: As `read_conversation`.
        """
        return read_conversation(
            record,
            record_format=self.record_format,
            roles=self.roles,
            learn=self.learn,
            assistant_role=self.assistant_role,
        )

    def read_line(self, line: bytes) -> Conversation:
        """Return the conversation of a record as stored in a file.

        Raises:
            RecordProblem: As `parse_record` and `read_conversation`.
        """
        messages = self._read_usual(line)
        if messages is not None:
            return Conversation(messages=messages, variables={}, learnt=None)
        conversation = self.read(parse_record(line))
        for text in strings_in([conversation.variables, conversation.messages]):
            check_text(text)
        return conversation

    def _read_usual(self, line: bytes) -> list[Message] | None:
        """Return the messages of a record if they have a role and a text alone, and all of its replies are learnt."""
        if self.learn != "all":
            return None
        try:
            record = orjson.loads(line)
        except ValueError:
            return None
        if type(record) is not dict:
            return None
        key = self._usual_key(record)
        turns = record.pop(key, None)
        if type(turns) is not list or not turns or any(record.get(name) is not None for name in _VARIABLES):
            return None
        if record and is_too_deep(line):
            return None
        messages = []
        for turn in turns:
            message = read_usual(turn, self.roles)
            if message is None:
                return None
            messages.append(message)
        return messages

    def _usual_key(self, record: Mapping[str, Any]) -> str:
        if record.get("system") is not None:
            return ""
        if self.record_format in ("messages", "auto") and record.get("messages") is not None:
            return "messages"
        return "conversations" if self.record_format in ("sharegpt", "auto") else ""


ANY_CONVERSATION = ConversationReader(
    record_format="auto", roles=DEFAULT_ROLES, learn="all", assistant_role="assistant"
)
"""Reads all formats with the usual roles."""
