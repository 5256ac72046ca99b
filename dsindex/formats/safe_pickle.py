"""Pickled lists of pairs of integers, as Modalities stores its indices: written and read as streams.

The writer produces the bytes of `pickle.dumps(pairs, protocol=4)`. The reader decodes that layout with array
operations. A pickle in any other layout is unpickled only if a regular expression matches all of its opcodes: one list,
pairs of integers, nothing nested and nothing that can be called. Opcodes: `pickletools` in Python's standard library.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from dsindex.errors import FormatError
from dsindex.store.reading import open_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from numpy.typing import NDArray

    from dsindex.store.clients import Bytes

FRAME_TARGET = 64 << 10
"""The pickler closes a frame at the first value that begins at least this many bytes after the frame's beginning."""

BATCH_ITEMS = 1000
"""Items that the pickler appends with one APPENDS."""

CHUNK_PAIRS = 32 * BATCH_ITEMS
"""Pairs encoded at once."""

READ_BYTES = 1 << 20
"""Bytes of a pickle decoded at once."""

_PROTOCOL_4 = b"\x80\x04"
_LIST_BEGIN = b"]\x94"
_EMPTY_LIST = b"]\x94."
_FRAME, _LONG1 = 0x95, 0x8A
_FRAME_HEADER_BYTES = 9
_TUPLE_END = b"\x86\x94"
_BATCH_CHANGE = b"e("
_LONGEST_PAIR = 24
"""APPENDS, MARK, two LONG1 of 10 bytes, TUPLE2, MEMOIZE."""

# Bytes of an integer with its opcode: K 1 byte unsigned, M 2 bytes unsigned, J 4 bytes signed; LONG1 stores its length.
# 0: the opcode is not an integer.
_WIDTHS = np.zeros(256, dtype=np.int64)
_WIDTHS[[ord("K"), ord("M"), ord("J"), _LONG1]] = [2, 3, 5, 2]
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)
_POWERS_OF_TWO = np.array([1 << bits for bits in range(31, 63)], dtype=np.int64)


class PairListWriter:
    """Write `pickle.dumps(pairs, protocol=4)` for a list of tuples of two integers that arrives in chunks.

    At most one frame and one chunk are held in memory. Equal pairs are pickled as distinct objects.
    """

    def __init__(self, write: Callable[[Bytes], object]) -> None:
        self._write = write
        self._num_pairs = 0
        self._only: NDArray[np.int64] | None = None
        self._frame = bytearray(_LIST_BEGIN)
        write(_PROTOCOL_4)

    def add(self, pairs: NDArray[np.int64]) -> None:
        """Append pairs.

        Args:
            pairs: Shape [n, 2], none below 0.

        Raises:
            ValueError: If a number is below 0: these are offsets and lengths.
        """
        if pairs.size and int(pairs.min()) < 0:
            raise ValueError(f"expected offsets and lengths of at least 0, got {pairs.min()}")
        if len(pairs) and self._num_pairs == 0 and self._only is None:
            # The pickler writes a list of one item without MARK, so the first pair waits for a second.
            self._only, pairs = pairs[:1], pairs[1:]
        if len(pairs) and self._only is not None:
            pairs = np.concatenate((self._only, pairs))
            self._only = None
        for begin in range(0, len(pairs), CHUNK_PAIRS):
            self._encode(np.ascontiguousarray(pairs[begin : begin + CHUNK_PAIRS], dtype=np.int64))

    def close(self) -> None:
        """Write the end of the list; nothing can be added afterwards."""
        if self._only is not None:
            self._encode(self._only)
            self._frame.remove(ord("("))
            self._frame += b"a"
        elif self._num_pairs:
            self._frame += b"e"
        self._frame += b"."
        if bytes(self._frame) == _EMPTY_LIST:  # fewer than 4 bytes get no frame
            self._write(_EMPTY_LIST)
        else:
            self._write_frame(memoryview(self._frame))

    def _encode(self, pairs: NDArray[np.int64]) -> None:
        """Encode each pair in a row of fixed width, then remove the unused bytes."""
        count = len(pairs)
        rows = np.zeros((count, _LONGEST_PAIR), dtype=np.uint8)
        used = np.zeros((count, _LONGEST_PAIR), dtype=np.bool_)
        batch_begins = np.arange(-self._num_pairs % BATCH_ITEMS, count, BATCH_ITEMS)
        rows[batch_begins, :2] = list(_BATCH_CHANGE)
        used[batch_begins, :2] = True
        if self._num_pairs == 0 and count:
            used[0, 0] = False  # no batch ends before the first
        _lay_integers(pairs[:, 0], rows[:, 2:12], used[:, 2:12])
        _lay_integers(pairs[:, 1], rows[:, 12:22], used[:, 12:22])
        rows[:, 22:] = list(_TUPLE_END)
        used[:, 22:] = True
        self._num_pairs += count

        # The pickler may close a frame where a value begins: before the first and before the second integer of a pair.
        row_ends = np.cumsum(used.sum(axis=1))
        first = np.concatenate(([0], row_ends[:-1])) + used[:, :2].sum(axis=1)
        second = row_ends - 2 - used[:, 12:22].sum(axis=1)
        carried = len(self._frame)
        boundaries = carried + np.stack((first, second), axis=1).ravel()
        self._frame += rows[used].tobytes()
        begin = 0
        while (found := int(np.searchsorted(boundaries, begin + FRAME_TARGET))) < len(boundaries):
            end = int(boundaries[found])
            self._write_frame(memoryview(self._frame)[begin:end])
            begin = end
        self._frame = self._frame[begin:]

    def _write_frame(self, payload: memoryview) -> None:
        self._write(bytes([_FRAME]) + len(payload).to_bytes(8, "little"))
        self._write(payload)


def _lay_integers(values: NDArray[np.int64], rows: NDArray[np.uint8], used: NDArray[np.bool_]) -> None:
    """Encode integers as the pickler does, with the shortest of K, M, J, LONG1; shapes [n], [n, 10], [n, 10]."""
    octets = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    one, two, four = values < 1 << 8, values < 1 << 16, values < 1 << 31
    rows[:, 0] = np.where(one, ord("K"), np.where(two, ord("M"), np.where(four, ord("J"), _LONG1)))
    widths = np.where(one, 2, np.where(two, 3, 5))
    if four.all():
        rows[:, 1:5] = octets[:, :4]
    else:
        # LONG1 takes bits // 8 + 1 bytes, which leaves room for the sign: 2**31 takes 5.
        long_bytes = (31 + np.searchsorted(_POWERS_OF_TWO, values, side="right")) // 8 + 1
        rows[four, 1:5] = octets[four, :4]
        rows[~four, 1] = long_bytes[~four]
        rows[~four, 2:] = octets[~four]
        widths = np.where(four, widths, 2 + long_bytes)
    used[:] = np.arange(10) < widths[:, None]


def read_pairs(path: str, *, offset: int = 0) -> Iterator[NDArray[np.int64]]:
    """Read a pickled list of pairs of integers as a stream.

    Args:
        path: A file.
        offset: Byte at which the pickle begins; it extends to the end of the file.

    Yields:
        The next pairs, shape [n, 2], none below 0.

    Raises:
        FormatError: If the rest of the file is anything but such a list.
    """
    num_pairs = 0
    try:
        with open_stored(path) as file:
            try:
                for pairs in _decode_frames(file, offset):
                    num_pairs += len(pairs)
                    yield pairs
            except _OtherLayoutError:
                # Start over, and skip the pairs that were yielded already.
                file.seek(offset)
                yield from _unpickle_pairs(path, file.read(), num_pairs)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error


class _OtherLayoutError(Exception):
    """The pickle is damaged, or not in the layout that the pickler of protocol 4 writes."""


def _payloads(file: IO[bytes], offset: int) -> Iterator[bytes]:
    """Yield the content of the frames, joined to about READ_BYTES."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(offset)
    if file.read(2) != _PROTOCOL_4:
        raise _OtherLayoutError
    position = offset + 2
    parts: list[bytes] = []
    joined_bytes = 0
    while position < size_bytes:
        header = file.read(_FRAME_HEADER_BYTES)
        left = int.from_bytes(header[1:], "little")
        position += len(header) + left
        if len(header) < _FRAME_HEADER_BYTES or header[0] != _FRAME or position > size_bytes:
            raise _OtherLayoutError
        while left:
            parts.append(file.read(min(left, READ_BYTES)))
            if not parts[-1]:
                raise _OtherLayoutError
            left -= len(parts[-1])
            joined_bytes += len(parts[-1])
            if joined_bytes >= READ_BYTES:
                yield b"".join(parts)
                parts, joined_bytes = [], 0
    yield b"".join(parts)


def _decode_frames(file: IO[bytes], offset: int) -> Iterator[NDArray[np.int64]]:
    rest: bytes | None = None
    for payload in _payloads(file, offset):
        if rest is None:
            if not payload.startswith(_LIST_BEGIN + b"("):
                raise _OtherLayoutError
            data = payload[len(_LIST_BEGIN) + 1 :]
        else:
            data = rest + payload
        pairs, used_bytes = _decode_pairs(data)
        yield pairs
        rest = data[used_bytes:]
        if len(rest) > 2 * _LONGEST_PAIR:
            raise _OtherLayoutError
    if rest != b"e.":
        raise _OtherLayoutError


def _decode_pairs(data: bytes) -> tuple[NDArray[np.int64], int]:
    """Decode the whole pairs that `data` begins with; return them and the number of bytes that they take.

    A pair ends with TUPLE2 MEMOIZE, 86 94. These bytes also occur inside numbers, so each occurrence is a candidate:
    from the beginning of a pair, the opcodes say where it must end, and the next one begins there. Where every
    candidate is a true end, which is nearly always, this is one comparison of arrays; the chain is followed step by
    step only over those that are not.
    """
    octets = np.frombuffer(data + bytes(_LONGEST_PAIR), dtype=np.uint8)
    ends = np.flatnonzero((octets[:-1] == _TUPLE_END[0]) & (octets[1:] == _TUPLE_END[1]))
    if len(ends) == 0:
        return np.empty((0, 2), dtype=np.int64), 0
    begins = np.concatenate(([0], ends[:-1] + 2))
    at_batch = octets[begins] == _BATCH_CHANGE[0]
    first = begins + 2 * at_batch
    first_width = _integer_widths(octets, first)
    second = first + first_width
    second_width = _integer_widths(octets, second)
    true_ends = second + second_width
    sound = (first_width > 0) & (second_width > 0) & (~at_batch | (octets[begins + 1] == _BATCH_CHANGE[1]))
    is_pair, used_bytes = _follow_chain(ends, true_ends, sound)
    pairs = np.empty((int(np.count_nonzero(is_pair)), 2), dtype=np.int64)
    pairs[:, 0] = _integers(octets, first[is_pair])
    pairs[:, 1] = _integers(octets, second[is_pair])
    return pairs, used_bytes


def _follow_chain(
    ends: NDArray[np.int64], true_ends: NDArray[np.int64], sound: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], int]:
    """Return a mask of the candidates at which a pair begins, and the end of the last whole pair."""
    is_pair = np.zeros(len(ends), dtype=np.bool_)
    exceptions = np.flatnonzero(~sound | (true_ends != ends))
    reached = 0
    used_bytes = 0
    while reached < len(ends):
        upcoming = int(np.searchsorted(exceptions, reached))
        stop = int(exceptions[upcoming]) if upcoming < len(exceptions) else len(ends)
        is_pair[reached:stop] = True
        if stop > reached:
            used_bytes = int(ends[stop - 1]) + 2
        reached = stop
        if stop == len(ends):
            break
        if not sound[stop]:
            raise _OtherLayoutError
        end = int(np.searchsorted(ends, true_ends[stop]))
        if end == len(ends):
            break  # the pair continues after this data
        if ends[end] != true_ends[stop]:
            raise _OtherLayoutError
        is_pair[stop] = True
        used_bytes = int(ends[end]) + 2
        reached = end + 1
    return is_pair, used_bytes


def _integer_widths(octets: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the encoded sizes of the integers at `positions`; 0 where there is no integer of up to 8 bytes."""
    opcodes = octets[positions]
    widths = _WIDTHS[opcodes]
    is_long = opcodes == _LONG1
    if is_long.any():
        long_bytes = octets[positions[is_long] + 1].astype(np.int64)
        widths[is_long] = np.where((long_bytes > 0) & (long_bytes <= 8), 2 + long_bytes, 0)
    return widths


def _integers(octets: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Decode the integers at `positions`, which must be complete; this layout has no negative ones."""
    opcodes = octets[positions]
    is_long = opcodes == _LONG1
    num_bytes = np.where(is_long, octets[positions + 1], _WIDTHS[opcodes] - 1)
    # One unaligned load of 8 bytes each, masked to the bytes of the number.
    eights = np.ndarray(shape=(len(octets) - 7,), dtype="<u8", buffer=octets, strides=(1,))
    values = eights[positions + 1 + is_long] & _LOW_BYTES[num_bytes]
    signed = is_long | (opcodes == ord("J"))
    if bool(((values[signed] >> (8 * num_bytes[signed] - 1).astype(np.uint64)) != 0).any()):
        raise _OtherLayoutError
    decoded: NDArray[np.int64] = values.view(np.int64)
    return decoded


# Opcodes of other layouts. A frame may begin before any value: one of more than 16 MiB, for which the unpickler would
# make room, is refused. Protocols below 4 number what they memoize.
_FRAMED = rb"(?:\x95.{3}\x00{5})?"
_LONGS = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(10))
_INTEGER = rb"(?:K.|M..|J.{4}|\x8a(?:" + _LONGS + rb"))"
_KNOWN = re.compile(
    rb"\x80[\x02-\x05]" + _FRAMED + rb"\](?:\x95.{8}|" + _INTEGER + rb"|[hq].|[jr].{4}|[(ae\x86\x94])*+", re.DOTALL
)
_OPCODE_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}


def _unpickle_pairs(path: str, data: bytes, begin: int) -> Iterator[NDArray[np.int64]]:
    """Unpickle a list in another layout after checking every opcode; yield its pairs from number `begin` on."""
    expected = f"{path}: expected a pickled list of (offset, length)"
    if _pair_list(len(data)).fullmatch(data) is None:
        known = _KNOWN.match(data)
        position = 0 if known is None else known.end()
        opcode = data[position : position + 1]
        got = "one that is cut off, damaged, or of something else"
        if opcode not in {b"", b"."} and position:
            got = f"{_OPCODE_NAMES.get(opcode, f'the unknown opcode {opcode.hex()}')} at byte {position} of the pickle"
        raise FormatError(f"{expected}, got {got}; it was not unpickled")
    try:
        value = _Unpickler(io.BufferedReader(io.BytesIO(data))).load()
    except (pickle.UnpicklingError, EOFError) as error:  # a frame or a place in the memo that is not there
        raise FormatError(f"{expected}, got one that is cut off or damaged ({error})") from error
    for first in range(begin, len(value), CHUNK_PAIRS):
        chunk = value[first : first + CHUNK_PAIRS]
        is_pair = [item is not value and min(item) >= 0 and max(item) < 1 << 63 for item in chunk]
        if not all(is_pair):
            number = first + is_pair.index(False)
            msg = f"{path}: expected entry {number} to be (offset, length), two integers from 0 to 2**63 - 1"
            raise FormatError(msg)
        yield np.array(chunk, np.int64)


def _pair_list(size_bytes: int) -> re.Pattern[bytes]:
    """Return the pattern of pickles that are one list of pairs of integers, or of references to earlier pairs.

    The unpickler makes room for the largest place in the memo, 64 GiB for 2**32 - 1, so no place may be much larger
    than the pickle.
    """
    octets = (min(size_bytes, 0xFFFFFFFF) or 1).to_bytes(4, "little").rstrip(b"\0")
    place = b"." * (len(octets) - 1) + rb"[\x00-\x%02x]" % octets[-1] + rb"\x00" * (4 - len(octets))
    memoized = rb"(?:\x94|q.|r" + place + rb")?"
    pair = _FRAMED + rb"(?:h.|j.{4}|" + _INTEGER + _FRAMED + _INTEGER + rb"\x86" + memoized + rb")"
    batch = _FRAMED + rb"\((?:" + pair + rb")*+e|" + pair + rb"a"
    return re.compile(rb"\x80[\x02-\x05]" + _FRAMED + rb"\]" + memoized + rb"(?:" + batch + rb")*+\.", re.DOTALL)


class _Unpickler(pickle.Unpickler):
    """Looks up nothing, which a list of pairs does not ask for either."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")
