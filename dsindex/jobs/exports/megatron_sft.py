"""JSON lines for Megatron-LM's `--sft`: `{"messages": [{"role": …, "content": …}, …]}`.

Megatron tokenizes them while it trains, with a template of its own. What it would fail on, or read in another way, is
refused here, or left out and counted: it begins a new conversation at each system message, expects a user's or tool's
message before each reply, and knows no field of a message but these two. Which conversations there are, and in which
split, is read from the provenance of the tokens, so the lines are those of the dataset.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from dsindex.datasets.exports import Counts, WrittenFile
from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.errors import BadRecordError, FormatError, RecordProblem
from dsindex.instruction.records import parse_record
from dsindex.store.storage import atomic_writer
from dsindex.text.parts import read_part_lines
from dsindex.text.streams import LongLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsindex.instruction.records import ConversationReader
    from dsindex.store.storage import DigestingWriter
    from dsindex.text.forms import TextPart

SUFFIX = "jsonl"
BLOCK_BYTES = 1 << 20
REPLY_FOLLOWS = frozenset({"user", "tool"})
_REMEDY = "take the record out, leave it out of the export with --on-bad-record quarantine, or give up --export sft"
UNREAD_KEYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""Keys of a message whose content Megatron would leave out."""
ROLES = frozenset({"system", "assistant", *REPLY_FOLLOWS})


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLines:
    """The lines of one split."""

    provenance: str
    """The provenance of its tokens."""
    name: str
    """Name of the file to write, relative to the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesTask:
    """Task of writing the files of all splits."""

    parts: tuple[tuple[int, TextPart], ...]
    """The inputs in order, in parts, each with the number of its input."""
    splits: tuple[SplitLines, ...]
    reader: ConversationReader
    leave_out: bool
    """Leave out conversations that Megatron would not read as they are, instead of stopping at the first."""
    folder: str


def write_messages(task: MessagesTask) -> tuple[WrittenFile, ...]:
    """Read the inputs once, and write each conversation's messages to the file of its split.

    Raises:
        BadRecordError: At the first conversation that Megatron would not read as it is.
        FormatError: If a provenance file is damaged or does not fit the inputs.
        InputError: If an input cannot be read.
        OutputError: If a file cannot be written.
    """
    with contextlib.ExitStack() as opened:
        writers = [
            _SplitWriter(split, opened.enter_context(atomic_writer(os.path.join(task.folder, split.name))))
            for split in task.splits
        ]
        for number, part, line, offset, text in _lines(task.parts):
            for writer in writers:
                if writer.takes(number, line):
                    try:
                        writer.write(plain_messages(text, task.reader))
                    except RecordProblem as problem:
                        if not task.leave_out:
                            reason = f"{problem.reason} ({problem.kind}); {_REMEDY}"
                            is_row = part.form.is_table
                            raise BadRecordError(part.input, offset, reason, line, is_row=is_row) from None
                        writer.leave_out()
        for writer in writers:
            writer.require_complete()
    return tuple(writer.written() for writer in writers)


def plain_messages(line: bytes, reader: ConversationReader) -> bytes:
    r"""Return a record's conversation as a line for Megatron.

    Raises:
        RecordProblem: If Megatron would fail on it or read it in another way.

    >>> from dsindex.instruction.records import ANY_CONVERSATION
    >>> plain_messages(b'{"conversations": [{"from": "human", "value": "Hi"}]}', ANY_CONVERSATION)
    b'{"messages":[{"role":"user","content":"Hi"}]}\n'
    """
    conversation = reader.read(parse_record(line))
    if conversation.variables.get("tools"):
        raise _problem("expected a conversation without `tools`, which Megatron's --sft does not read")
    if conversation.learnt is not None:
        raise _problem("expected replies that are all learnt, as Megatron's --sft learns them all")
    plain: list[dict[str, str]] = []
    for number, message in enumerate(conversation.messages, 1):
        _check(message, number, plain[-1]["role"] if plain else None)
        plain.append({"role": message["role"], "content": _text(message, number)})
    return orjson.dumps({"messages": plain}, option=orjson.OPT_APPEND_NEWLINE)


def _check(message: Mapping[str, Any], number: int, before: str | None) -> None:
    """Check a message, which comes after one of the role `before`."""
    role = message["role"]
    place = f"message {number}"
    if role not in ROLES:
        raise _problem(f"{place}: expected one of the roles {', '.join(sorted(ROLES))}, got {role!r}")
    for key in UNREAD_KEYS:
        if message.get(key):
            raise _problem(f"{place}: expected no `{key}`, which Megatron's --sft does not read")
    if role == "system" and before is not None:
        raise _problem(f"{place}: expected a system message at the start only, as Megatron's --sft cuts there")
    if role == "assistant" and before not in REPLY_FOLLOWS:
        raise _problem(f"{place}: expected a user's or tool's message before a reply, as Megatron's --sft does")
    if role == "assistant" and not message.get("content"):
        raise _problem(f"{place}: expected a reply that is not empty, as Megatron's --sft does")


def _text(message: Mapping[str, Any], number: int) -> str:
    """Return the content of a message as one text; parts of type `text` are joined."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise _problem(f"message {number}: expected a text, the only content that Megatron's --sft reads")
    return content


def _problem(reason: str) -> RecordProblem:
    return RecordProblem("not-for-sft", reason)


def _lines(parts: Sequence[tuple[int, TextPart]]) -> Iterator[tuple[int, TextPart, int, int, bytes]]:
    """Yield input, part, line or row from 1, offset and text of each record of the inputs, blank ones included."""
    current, base = -1, 0
    for number, part in parts:
        if number != current:
            current, base = number, 1
        for block in read_part_lines(part, block_bytes=BLOCK_BYTES):
            if isinstance(block, LongLine):
                base += 1
                continue
            offsets = block.offsets().tolist()
            for index, offset in enumerate(offsets):
                yield number, part, base + index, offset, block.text(index)
            base += len(offsets)


class _SplitWriter:
    """Writes the lines of a split as the provenance of its tokens has them."""

    def __init__(self, split: SplitLines, file: DigestingWriter) -> None:
        self._split = split
        self._file = file
        self._rows = _rows(split.provenance)
        self._next = next(self._rows, None)
        self._counts = Counts()
        self._left_out = 0

    def takes(self, number: int, line: int) -> bool:
        """Tell whether a line of an input is the split's next conversation."""
        return self._next == (number, line)

    def write(self, line: bytes) -> None:
        """Write the next conversation."""
        self._file.write(line)
        self._counts.rows += 1
        self._next = next(self._rows, None)

    def leave_out(self) -> None:
        """Go on after the next conversation without writing it."""
        self._left_out += 1
        self._next = next(self._rows, None)

    def require_complete(self) -> None:
        """Check that all conversations were found.

        Raises:
            FormatError: If some were not.
        """
        if self._next is not None:
            raise FormatError(
                f"{self._split.provenance}: expected a line of the inputs for each conversation, found none for "
                f"line {self._next[1]} of input {self._next[0]}; the inputs are not those that the dataset was made of"
            )

    def written(self) -> WrittenFile:
        file = self._file.as_stored(self._split.name)
        return WrittenFile(file=file, counts=self._counts, left_out=self._left_out)


def _rows(provenance: str) -> Iterator[tuple[int, int]]:
    """Yield input and line of each document."""
    total = count_rows(provenance)
    for begin in range(0, total, ROWS_PER_GROUP):
        inputs, _, lines = read_rows(provenance, begin, min(begin + ROWS_PER_GROUP, total))
        yield from zip(inputs.tolist(), lines.tolist(), strict=True)
