"""Divide a long conversation between exchanges: as many as fit into each sequence, each with the whole prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from dsindex.errors import RecordProblem
from dsindex.instruction.chat import write_conversation
from dsindex.instruction.messages import TOOL_ROLES
from dsindex.instruction.token_batches import MaskedTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.instruction.messages import Message
    from dsindex.instruction.records import Conversation

Encode = Callable[[Iterator[list[int]]], Iterator[MaskedTokens]]
"""Encode the same record with other choices of its messages, given by their positions."""


def num_system(messages: Sequence[Message]) -> int:
    """Return the number of system messages at the beginning."""
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def write_chosen(conversation: Conversation, chosen: Sequence[int]) -> bytes:
    """Return the request to render some messages of a conversation after its system messages."""
    messages, learnt = conversation.messages, conversation.learnt
    kept = (*range(num_system(messages)), *chosen)
    places = None if learnt is None else [place for place, number in enumerate(kept) if number in learnt]
    return write_conversation([messages[number] for number in kept], conversation.variables, learnt=places)


def group_messages(messages: Sequence[Message], first: int, assistant: str) -> list[list[int]]:
    """Cut a conversation, from its `first` message on, into exchanges.

    One begins with each message that follows an assistant's and is neither an assistant's nor a tool's.
    """
    groups: list[list[int]] = []
    for number in range(first, len(messages)):
        follows_reply = number > first and messages[number - 1]["role"] == assistant
        if not groups or (follows_reply and messages[number]["role"] not in {assistant, *TOOL_ROLES}):
            groups.append([])
        groups[-1].append(number)
    return groups


def split_exchanges(limit: int, exchanges: Sequence[Sequence[int]], encode: Encode) -> list[MaskedTokens]:
    """Divide the exchanges, in order, into sequences with as many as fit in each."""
    sequences: list[MaskedTokens] = []
    first = 0
    while first < len(exchanges):
        best: MaskedTokens | None = None
        last = first
        # One more exchange each time, encoded lazily.
        for tried in encode(list(chain(*exchanges[first:end])) for end in range(first + 1, len(exchanges) + 1)):
            if len(tried.tokens) > limit:
                break
            best, last = tried, last + 1
        if best is None and tried.mask.any():
            raise RecordProblem(
                "too-long",
                f"exchange {first + 1} and its prompt: expected at most {limit} tokens, got {len(tried.tokens)}",
            )
        # A single exchange without trainable tokens may be too long: it is left out in any case.
        sequences.append(tried if best is None else best)
        first = max(last, first + 1)
    if not sequences:
        raise RecordProblem("too-long", f"expected at most {limit} tokens, and there is no exchange to split at")
    return sequences
