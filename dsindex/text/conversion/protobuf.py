"""Read the fields of a protobuf message, as far as SentencePiece models need it.

Specified at https://protobuf.dev/programming-guides/encoding/. Unknown fields are returned like all others, and the
last value of a repeated scalar counts, as the specification says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field, in order.

    Returns:
        Integers for varints; bytes for texts, messages and numbers of fixed size (little-endian).

    Raises:
        ValueError: If the message is cut, or has a kind of field that protobuf no longer uses.

    >>> list(read_fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])))
    [(1, 150), (2, b'hi')]
    """
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _read_varint(message, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _read_varint(message, place)
        elif kind in {_FIXED32, _FIXED64}:
            size = 4 if kind == _FIXED32 else 8
        else:
            msg = f"expected a protobuf field of a known kind at byte {place}, got kind {kind}"
            raise ValueError(msg)
        if size > len(message) - place:
            msg = f"expected {size} bytes at byte {place}, got {len(message) - place}"
            raise ValueError(msg)
        yield number, message[place : place + size]
        place += size


def read_scalars(message: bytes) -> dict[int, int | bytes]:
    """Return the last value of each field.

    Raises:
        ValueError: As `read_fields`.
    """
    return dict(read_fields(message))


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Return an integer of at most 64 bits and the place after it."""
    value = 0
    for number, byte in enumerate(message[place : place + 10]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, place + number + 1
    msg = f"expected an integer at byte {place}, got a number that does not end"
    raise ValueError(msg)
