"""Pickled lists of pairs of integers: raw indices, and the indices of `.pbin` files.

Modalities writes `pickle.dumps(pairs, protocol=4)`. The reader never unpickles: it parses the opcodes of such a list
and refuses all others, so an untrusted file runs no code, and time and memory are proportional to its size.

A raw index is `<stem>.idx` next to a JSONL file, as Modalities' `create_raw_index` writes it: one pair of byte offset
and byte length per line, counting a carriage return but not the newline (docs/formats.md §3). MMIDIDX uses the same
suffix, but its first bytes differ.
"""

from __future__ import annotations

import os
import pickle
import re
from array import array
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError
from dsindex.store.errors import reading
from dsindex.store.read import open_stored

if TYPE_CHECKING:
    from io import BufferedReader

    from _typeshed import SupportsWrite
    from numpy.typing import NDArray

BATCH_PAIRS = 1000
"""Number of pairs in one batch of pickle's list opcodes."""
FRAME_BYTES = 1 << 16
"""Pickle ends a frame of this size or more before the next item."""
CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 2 + 9 + 2
"""Size of protocol, frame and empty list, before the first pair."""
_LONGEST_OPCODE = 16
# Integers from 0 to 2**63 - 1: in 1, 2 or 4 bytes, or after a byte with their size; the last byte has the sign.
_LONGS = b"|".join(rb"\x%02x.{%d}[\x00-\x7f]" % (size, size - 1) for size in range(1, 9))
_INTEGER = rb"K.|M..|J.{3}[\x00-\x7f]|\x8a(?:\x00|" + _LONGS + b")"
_PAIR = re.compile(rb"(" + _INTEGER + rb")(" + _INTEGER + rb")\x86\x94", re.DOTALL)
_PAIRS = re.compile(rb"(?:(?:" + _INTEGER + rb"){2}\x86\x94)*+", re.DOTALL)
_HEAD = re.compile(rb"\x80[\x04\x05](?:\x95(.{8}))?\]\x94", re.DOTALL)
_OPCODE = re.compile(rb"(?P<integer>" + _INTEGER + rb")|\x95(?P<frame>.{8})|\x86\x94|[(ea.]", re.DOTALL)
_GRAMMAR = {
    "list": {"(": "batch", "integer": "1 alone", ".": "end"},
    "batch": {"integer": "1 in batch", "e": "list"},
    "1 in batch": {"integer": "2 in batch"},
    "2 in batch": {"\x86\x94": "batch"},
    "1 alone": {"integer": "2 alone"},
    "2 alone": {"\x86\x94": "pair alone"},
    "pair alone": {"a": "list"},
}
"""State → next opcode → next state. Frames may begin in any state."""


def write_pairs(file: SupportsWrite[bytes], pairs: NDArray[np.int64]) -> None:
    """Write the same bytes as `pickle.dumps` of pairs, shape [n, 2], with one batch of Python objects at a time."""
    file.write(pickle.PROTO + b"\4")
    frame = b"]\x94"
    for begin in range(0, len(pairs), BATCH_PAIRS):
        batch = pairs[begin : begin + BATCH_PAIRS].tolist()
        items = pickle.dumps(list(map(tuple, batch)), protocol=4)[_HEAD_BYTES:-1]
        if len(batch) == 1 < len(pairs):
            items = b"(" + items[:-1] + b"e"
        if len(frame) + len(items) > FRAME_BYTES:
            ends = (match.start() for match in _OPCODE.finditer(items) if match["integer"] is not None)
            end = next((offset for offset in ends if len(frame) + offset >= FRAME_BYTES), len(items))
            if end < len(items):
                _write_frame(file, frame + items[:end])
                frame, items = b"", items[end:]
        frame += items
    _write_frame(file, frame + b".")


def _write_frame(file: SupportsWrite[bytes], content: bytes) -> None:
    if len(content) >= 4:  # pickle leaves out the header of a smaller frame
        file.write(pickle.FRAME + len(content).to_bytes(8, "little"))
    file.write(content)


def read_pairs(path: str, *, offset: int = 0) -> NDArray[np.int64]:
    """Read the pickled list that begins at an offset and ends with the file.

    Returns:
        The pairs, shape [n, 2], all at least 0.

    Raises:
        FormatError: If the file has anything else there.
    """
    try:
        with reading(path, FormatError), open_stored(path) as file:
            size_bytes = file.seek(0, os.SEEK_END) - offset
            file.seek(offset)
            numbers = _parse_numbers(file, size_bytes)
    except ValueError as error:
        raise FormatError(f"{path}: not a pickled list of offsets and lengths: {error}") from error
    return np.asarray(numbers).reshape(-1, 2)


def first_number(head: bytes) -> int | None:
    """Return the first number of a list, given the first bytes of its pickle; None if the list is empty.

    Raises:
        ValueError: If the bytes do not begin such a list.
    """
    start = _HEAD.match(head)
    if start is None:
        raise ValueError("it does not begin as a pickled list")
    first = _OPCODE.match(head, start.end() + head.startswith(b"(", start.end()))
    return None if first is None or first["integer"] is None else _decode(first["integer"])


def _parse_numbers(file: BufferedReader, size_bytes: int) -> array[int]:
    """Return the numbers of all pairs.

    Raises:
        ValueError: If the bytes are not such a list.
    """
    numbers, state, content = array("q"), "list", file.read(CHUNK_BYTES)
    begin, head = 0, _HEAD.match(content)  # `content` begins at byte `begin` of the pickle
    if head is None or int.from_bytes(head[1] or b"", "little") > size_bytes - head.end() + len(b"]\x94"):
        raise ValueError("it does not begin as one")
    position = head.end()
    while state != "end":
        if len(content) - position < _LONGEST_OPCODE and begin + len(content) < size_bytes:
            begin, content, position = begin + position, content[position:] + file.read(CHUNK_BYTES), 0
        run = _PAIRS.match(content, position) if state == "batch" else None
        if run is not None and run.end() > position:
            numbers.extend(map(_decode, chain.from_iterable(_PAIR.findall(content, position, run.end()))))
            position = run.end()
            continue
        opcode = _OPCODE.match(content, position)
        if opcode is None:
            raise ValueError(f"byte {begin + position:,} is damaged or cut off")
        kind, position = opcode.lastgroup or opcode[0].decode("latin-1"), opcode.end()
        if kind == "frame" and int.from_bytes(opcode[kind], "little") <= size_bytes - begin - position:
            continue
        next_state = _GRAMMAR[state].get(kind)
        if next_state is None or (next_state == "end" and begin + position < size_bytes):
            raise ValueError(f"{opcode[0]!r} does not belong before byte {begin + position:,}")
        if kind == "integer":
            numbers.append(_decode(opcode[0]))
        state = next_state
    return numbers


def _decode(integer: bytes) -> int:
    return int.from_bytes(integer[2 if integer[0] == pickle.LONG1[0] else 1 :], "little")


# Raw indices.


def raw_index_path(path: str) -> str:
    """Return the path at which Modalities looks for a file's raw index.

    >>> raw_index_path("data/news.jsonl")
    'data/news.idx'
    """
    return os.path.splitext(path)[0] + ".idx"


def read_raw_index(index_path: str, *, size_bytes: int) -> NDArray[np.int64]:
    """Read a raw index.

    Args:
        index_path: The index.
        size_bytes: Size of the JSONL file that it belongs to.

    Returns:
        (offset, length) in bytes of each line, shape [lines, 2].

    Raises:
        FormatError: If it is not a raw index, or points outside the file.
    """
    pairs = read_pairs(index_path)
    # Subtract, since the sum of two int64 could wrap around.
    outside = np.flatnonzero((pairs[:, 0] > size_bytes) | (pairs[:, 1] > size_bytes - pairs[:, 0]))
    if len(outside):
        offset, length = pairs[outside[0]].tolist()
        problem = f"entry {outside[0]} ({length} bytes from byte {offset}) is outside the file of {size_bytes} bytes"
        raise FormatError(f"{index_path}: {problem}", hint="the file has changed since it was indexed: index it again")
    return pairs
