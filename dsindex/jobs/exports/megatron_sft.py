"""JSON lines for Megatron-LM's `--sft`: `{"messages": [{"role": …, "content": …}, …]}`; for packs, one after the other.

Megatron tokenizes them while it trains, with a template of its own. What it would fail on, or read in another way, is
refused here, or left out and counted: it begins a new conversation at each system message, expects a user's or tool's
message before each reply, and knows no field of a message but these two. Which conversations there are, and in which
split, is read from the provenance of the tokens, so the lines are those of the dataset.

A line with a pack has the messages of several conversations, each with a system message in front, by which the readers
(Megatron-LM's SFTDataset, NeMo-RL's `megatron_sft_packed`) find its beginning. They pad each to a multiple of tokens.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dsindex.datasets.exports import Counts, WrittenFile, file_rows
from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.errors import BadRecordError, FormatError, InputError, RecordProblem
from dsindex.instruction.records import parse_record
from dsindex.store.storage import atomic_writer
from dsindex.text.parts import read_part_lines
from dsindex.text.streams import LongLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.instruction.blocks import BlockLayout
    from dsindex.instruction.records import ConversationReader
    from dsindex.text.forms import TextPart

BLOCK_BYTES = 1 << 20
REPLY_FOLLOWS = frozenset({"user", "tool"})
_REMEDY = "take the record out, leave it out of the export with --on-bad-record quarantine, or give up --export sft"
UNREAD_KEYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""Keys of a message whose content Megatron would leave out."""
ROLES = frozenset({"system", "assistant", *REPLY_FOLLOWS})
PACKED_TEMPLATES = ("nemotron-h-aligned", "nemotron-nano-v2")
"""The named templates that are prompt formats of the readers of packs, so that lengths are theirs."""
BYTES_PER_TASK = 32 << 20
"""Text of a plain input that is read by one task; other inputs are read as a whole."""
PACKS_PER_TASK = 1 << 22
"""Tokens of the packs that one task writes, divided by their length."""
_BEGIN, _END = b'{"messages":[', b"]}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesTask:
    """Task of writing some conversations of a split, in a file that is later joined with the others."""

    parts: tuple[TextPart, ...]
    """Consecutive parts of an input."""
    is_whole: bool
    """Whether they are the whole input; then its conversations are found by their lines, otherwise by their offsets."""
    provenance: str
    """The provenance of the split's tokens."""
    begin: int
    """First document in the provenance."""
    end: int
    reader: ConversationReader
    packed: bool
    """Whether the lines are for packs: with a system message and a reply at the end; empty if it is to be left out."""
    leave_out: bool
    """Leave out conversations that Megatron would not read as they are, instead of stopping at the first."""
    folder: str
    name: str
    """Name of the file, relative to the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLinesTask:
    """Task of writing the lines of some packs."""

    conversations: tuple[tuple[str, int], ...]
    """The files with the lines of all conversations, each with the number of its first one, and the end of all."""
    sequences: NDArray[np.int32]
    """Numbers of the conversations, pack after pack."""
    starts: NDArray[np.int64]
    """Start of each pack in `sequences`, then the end of the last; shape [packs + 1]."""
    folder: str
    name: str


def plan_messages(
    parts: Sequence[tuple[int, TextPart]],
    provenance: str,
    *,
    split: str,
    reader: ConversationReader,
    packed: bool,
    leave_out: bool,
    folder: str,
) -> list[MessagesTask]:
    """Return the tasks of a split.

    Args:
        parts: The inputs in order, in parts, each with the number of its input.
        provenance: The provenance of its tokens.
        split: Its name in the export.
        reader: As for MessagesTask, like the others.
        packed: Whether the lines are for packs.
        leave_out: Whether to leave out what Megatron would misread.
        folder: Where the files are written.

    Raises:
        FormatError: If the provenance is damaged, or of other inputs.
    """
    groups = list(_group(parts))
    places = [(number, own[0].begin, is_whole) for number, own, is_whole in groups]
    counts = _count_documents(provenance, places)
    ends = np.cumsum(counts).tolist()
    return [
        MessagesTask(
            parts=tuple(own),
            is_whole=is_whole,
            provenance=provenance,
            begin=end - count,
            end=end,
            reader=reader,
            packed=packed,
            leave_out=leave_out,
            folder=folder,
            name=f"{split}-{place:05d}-of-{len(groups):05d}.lines",
        )
        for place, ((_, own, is_whole), count, end) in enumerate(zip(groups, counts.tolist(), ends, strict=True))
        if count or len(groups) == 1
    ]


def _group(parts: Sequence[tuple[int, TextPart]]) -> Iterator[tuple[int, list[TextPart], bool]]:
    """Yield the parts of each task, with the number of their input and whether they are the whole of it."""
    for number, group in groupby(parts, key=lambda part: part[0]):
        own = [part for _, part in group]
        form = own[0].form
        if form.is_table or form.container != "plain" or form.format != "jsonl":
            yield number, own, True
            continue
        for _, some in groupby(own, key=lambda part: part.begin // BYTES_PER_TASK):
            yield number, list(some), False


def _count_documents(provenance: str, places: Sequence[tuple[int, int, bool]]) -> NDArray[np.int64]:
    """Return the documents of each task, given the number of its input, its first byte and whether it is the whole."""
    counts = np.zeros(len(places), np.int64)
    numbers = np.array([number for number, *_ in places])
    begins = np.array([0 if is_whole else begin for _, begin, is_whole in places])
    total = count_rows(provenance)
    for first in range(0, total, ROWS_PER_GROUP):
        inputs, offsets, _ = read_rows(provenance, first, min(first + ROWS_PER_GROUP, total))
        for number in np.unique(inputs).tolist():
            own = np.flatnonzero(numbers == number)
            found = np.searchsorted(begins[own], offsets[inputs == number], side="right") - 1
            if not len(own) or found.min() < 0:
                raise _other_inputs(provenance, f"input {number}")
            counts[own] += np.bincount(found, minlength=len(own))
    return counts


def write_messages(task: MessagesTask) -> WrittenFile:
    """Read an input, or a part of it, and write the messages of each conversation of the split.

    Raises:
        BadRecordError: At the first conversation that Megatron would not read as it is.
        FormatError: If the provenance is damaged or does not fit the inputs.
        InputError: If an input cannot be read.
        OutputError: If the file cannot be written.
    """
    _, offsets, lines = read_rows(task.provenance, task.begin, task.end)
    wanted = lines if task.is_whole else offsets
    counts, left_out, at = Counts(), 0, 0
    with atomic_writer(os.path.join(task.folder, task.name)) as file:
        for part, keys, read in _lines(task.parts, by_line=task.is_whole):
            last = at + int(np.searchsorted(wanted[at:], keys[-1], side="right"))
            found = np.searchsorted(keys, wanted[at:last])
            if not np.array_equal(keys[found], wanted[at:last]):
                raise _other_inputs(task.provenance, part.input)
            for index, number in enumerate(found.tolist(), at):
                try:
                    file.write(plain_messages(read(number), task.reader, packed=task.packed))
                    counts.rows += 1
                except RecordProblem as problem:
                    if not task.leave_out:
                        reason, place = (
                            f"{problem.reason} ({problem.kind}); {_REMEDY}{'-packed' * task.packed}",
                            int(lines[index]),
                        )
                        is_row = part.form.is_table
                        raise BadRecordError(part.input, int(offsets[index]), reason, place, is_row=is_row) from None
                    left_out += 1
                    file.write(b"\n" if task.packed else b"")
            at = last
    if at < len(wanted):
        raise _other_inputs(task.provenance, task.parts[0].input)
    return WrittenFile(file=file.as_stored(task.name), counts=counts, left_out=left_out)


def plan_pack_lines(
    messages: Sequence[tuple[MessagesTask, WrittenFile]],
    packs: BlockLayout,
    *,
    split: str,
    folder: str,
) -> list[PackLinesTask]:
    """Return the tasks of a split, given the files with its conversations, and its packs."""
    files = [(task.name, task.begin) for task, _ in messages]
    starts = packs.block_starts
    rows = file_rows(packs.num_blocks, max(1, PACKS_PER_TASK // packs.sequence_length))
    return [
        PackLinesTask(
            conversations=(*files, ("", messages[-1][0].end)),
            sequences=packs.conversations[starts[begin] : starts[end]],
            starts=starts[begin : end + 1] - starts[begin],
            folder=folder,
            name=f"{split}-packs-{number:05d}-of-{len(rows):05d}.lines",
        )
        for number, (begin, end) in enumerate(rows)
    ]


def write_pack_lines(task: PackLinesTask) -> WrittenFile:
    """Write a line for each pack, but for those of which every conversation was left out.

    Raises:
        InputError: If a file with conversations cannot be read.
        OutputError: If the file cannot be written.
    """
    counts = Counts()
    firsts = np.array([first for _, first in task.conversations])
    files = np.searchsorted(firsts, task.sequences, side="right") - 1
    with atomic_writer(os.path.join(task.folder, task.name)) as file:
        for begin, end in zip(task.starts[:-1].tolist(), task.starts[1:].tolist(), strict=True):
            lines = []
            for place in range(begin, end):
                name, first = task.conversations[files[place]]
                line = _Lines.open(os.path.join(task.folder, name)).line(int(task.sequences[place]) - first)
                lines += [line[len(_BEGIN) : -len(_END)]] if len(line) > 1 else []
            if lines:
                file.write(_BEGIN + b",".join(lines) + _END)
                counts.rows += 1
                counts.sequences += len(lines)
    return WrittenFile(file=file.as_stored(task.name), counts=counts)


class _Lines:
    """The lines of a mapped file; where they begin takes 8 bytes of memory for each."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if os.path.getsize(path) else b""
        bounds = [np.zeros(1, np.int64)]
        for begin in range(0, len(self._data), BLOCK_BYTES):
            block = np.frombuffer(self._data[begin : begin + BLOCK_BYTES], np.uint8)
            bounds.append(np.flatnonzero(block == ord("\n")) + begin + 1)
        self._bounds = np.concatenate(bounds)

    def line(self, number: int) -> bytes:
        return self._data[self._bounds[number] : self._bounds[number + 1]]

    @classmethod
    @lru_cache(maxsize=4096)
    def open(cls, path: str) -> _Lines:
        """Return the lines of a file, which stays mapped while this process writes packs."""
        try:
            return cls(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); run the same command again") from error


def plain_messages(line: bytes, reader: ConversationReader, *, packed: bool = False) -> bytes:
    r"""Return a record's conversation as a line for Megatron.

    Args:
        line: The record.
        reader: Reads its conversation.
        packed: Put an empty system message in front if there is none, and expect a reply at the end.

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
    if packed and plain[-1]["role"] != "assistant":
        raise _problem(f"message {len(plain)}: expected a reply at the end, as readers of packs do")
    if packed and plain[0]["role"] != "system":
        plain.insert(0, {"role": "system", "content": ""})
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


def _other_inputs(provenance: str, place: str) -> FormatError:
    return FormatError(
        f"{provenance}: expected a line of {place} for each of its conversations, found others; the inputs are not "
        "those that the dataset was made of"
    )


def _lines(
    parts: Sequence[TextPart], *, by_line: bool
) -> Iterator[tuple[TextPart, NDArray[np.int64], Callable[[int], bytes]]]:
    """Yield the lines of consecutive parts by blocks: lines or rows from 1, or offsets, and what reads one of them."""
    base = 1
    for part in parts:
        for block in read_part_lines(part, block_bytes=BLOCK_BYTES):
            if isinstance(block, LongLine):
                base += 1
                continue
            offsets = block.offsets()
            yield part, np.arange(base, base + len(offsets)) if by_line else offsets, block.text
            base += len(offsets)
