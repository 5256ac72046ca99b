"""Pickled lists of pairs of integers: raw indices, and the indices of `.pbin` files.

Modalities writes `pickle.dumps(pairs, protocol=4)`. The reader unpickles nothing: it parses the opcodes that such a list
consists of and refuses all others, so a stranger's file runs no code, and memory and time are proportional to its size.

    protocol 4 · list · { mark · pairs · append all }* · stop      a pair: integer · integer · tuple of two
"""

from __future__ import annotations

import os
import pickle
import re
from array import array
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError
from dsindex.store.read import open_stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from _typeshed import SupportsWrite
    from numpy.typing import NDArray

BATCH_PAIRS = 1000
"""Pairs that pickle appends to a list at once."""
FRAME_BYTES = 1 << 16
"""Size from which pickle ends a frame, before the next item."""
CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 2 + 9 + 2
"""Protocol, frame and the empty list, before the first pair."""
_LONGEST_OPCODE = 16
# Integers from 0 to 2**63 - 1 in 1, 2, 4 or any number of bytes, the last of which has the sign.
_LONGS = b"|".join(rb"\x%02x.{%d}[\x00-\x7f]" % (size, size - 1) for size in range(1, 9))
_INTEGER = rb"K.|M..|J.{3}[\x00-\x7f]|\x8a(?:\x00|" + _LONGS + b")"
_PAIR = re.compile(rb"(" + _INTEGER + rb")(" + _INTEGER + rb")\x86\x94", re.DOTALL)
_PAIRS = re.compile(rb"(?:(?:" + _INTEGER + rb"){2}\x86\x94)*+", re.DOTALL)
_HEAD = re.compile(rb"\x80[\x04\x05](?:\x95(.{8}))?\]\x94", re.DOTALL)
_OPCODE = re.compile(rb"(?P<integer>" + _INTEGER + rb")|\x95(?P<frame>.{8})|\x86\x94|[(ea.]", re.DOTALL)


def write_pairs(file: SupportsWrite[bytes], pairs: NDArray[np.int64]) -> None:
    """Pickle pairs of shape [n, 2] as Modalities does, with one batch of them as Python objects at a time."""
    file.write(pickle.PROTO + b"\4")
    frame = b"]\x94"
    for begin in range(0, len(pairs), BATCH_PAIRS):
        batch = pairs[begin : begin + BATCH_PAIRS].tolist()
        items = pickle.dumps(list(map(tuple, batch)), protocol=4)[_HEAD_BYTES:-1]
        if len(batch) == 1 < len(pairs):
            items = b"(" + items[:-1] + b"e"
        if len(frame) + len(items) > FRAME_BYTES:
            ends = (match.start() for match in _OPCODE.finditer(items) if match["integer"] is not None)
            end = next((each for each in ends if len(frame) + each >= FRAME_BYTES), len(items))
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
    """Read the pickled list at the end of a file, from a byte on.

    Returns:
        The pairs, shape [n, 2], none below 0.

    Raises:
        FormatError: If it is anything else.
    """
    numbers = array("q")
    try:
        with open_stored(path) as file:
            size_bytes = file.seek(0, os.SEEK_END) - offset
            file.seek(offset)
            for block in _parse_numbers(file, size_bytes):
                numbers.extend(block)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FormatError(f"{path}: not a pickled list of offsets and lengths: {error}") from error
    return np.asarray(numbers).reshape(-1, 2)


def first_number(head: bytes) -> int | None:
    """Return the first number of a list, given the first bytes of its pickle; None if the list is empty.

    Raises:
        ValueError: If these are other bytes.
    """
    start = _HEAD.match(head)
    if start is None:
        raise ValueError("it does not begin as a pickled list")
    first = _OPCODE.match(head, start.end() + head.startswith(b"(", start.end()))
    return None if first is None or first["integer"] is None else _decode(first["integer"])


def _parse_numbers(file: BufferedReader, size_bytes: int) -> Iterator[list[int]]:
    """Yield the numbers of all pairs, those of a chunk of the file at a time.

    Raises:
        ValueError: If the bytes are not those of such a list.
    """
    content = file.read(CHUNK_BYTES)
    left_bytes = size_bytes - len(content)
    head = _HEAD.match(content)
    if head is None or int.from_bytes(head[1] or b"", "little") > size_bytes - head.end() + len(b"]\x94"):
        raise ValueError("it does not begin as one")
    position, waiting = head.end(), list[int]()
    is_batch = is_single = is_end = False
    while not is_end:
        if len(content) - position < _LONGEST_OPCODE and left_bytes > 0:
            more = file.read(CHUNK_BYTES)
            left_bytes = left_bytes - len(more) if more else 0
            content, position = content[position:] + more, 0
        if is_batch and not waiting:
            end = _PAIRS.match(content, position).end()  # type: ignore[union-attr]  # it matches nothing, too
            yield [_decode(number) for pair in _PAIR.findall(content, position, end) for number in pair]
            position = end
        opcode = _OPCODE.match(content, position)
        if opcode is None:
            if len(content) - position < _LONGEST_OPCODE and left_bytes > 0:
                continue
            raise ValueError(f"byte {size_bytes - left_bytes - len(content) + position:,} is damaged or cut off")
        position = opcode.end()
        match opcode[0][:1]:
            case b"\x95":
                fits = int.from_bytes(opcode["frame"], "little") <= len(content) - position + left_bytes
            case b"\x86":
                fits, is_single = len(waiting) == 2 and not is_single, not is_batch
                if is_batch and fits:
                    yield waiting
                    waiting = []
            case b"(":
                fits, is_batch = not (is_batch or waiting), True
            case b"e":
                fits, is_batch = is_batch and not waiting, False
            case b"a":
                fits, is_single = is_single and len(waiting) == 2, False
                yield waiting
                waiting = []
            case b".":
                fits, is_end = not (is_batch or waiting) and position == len(content) and left_bytes <= 0, True
            case _:
                fits = len(waiting) < 2
                waiting = [*waiting, _decode(opcode[0])]
        if not fits:
            raise ValueError(f"byte {size_bytes - left_bytes - len(content) + position:,} does not belong there")


def _decode(integer: bytes) -> int:
    return int.from_bytes(integer[2 if integer[0] == pickle.LONG1[0] else 1 :], "little")
