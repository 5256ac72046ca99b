"""Cut the text of a compressed file that can only be decoded from its start into pieces of whole lines.

The pieces are given by offsets in the compressed file, so that their number is known before anything is decoded. A
piece ends with the line that is incomplete, or would begin next, when the file was decoded up to its last offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.containers.decoding import Decoder
from dsindex.text.byte_sources import opened_input

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from dsindex.containers.kinds import Container

READ_BYTES = 1 << 20
"""Text decoded at a time."""


def split_stream(
    path: str, container: Container, bounds: Sequence[int], *, expected_size: int | None = None
) -> Generator[tuple[int, bytes]]:
    """Decode a file from its start and yield its text with the number of the piece that each part of it belongs to.

    Args:
        path: The file.
        container: How it is compressed.
        bounds: Offsets in the file, ascending from 0 to its size: piece k is about what [bounds[k], bounds[k + 1])
            decodes to.
        expected_size: Size of the file in bytes when the job was planned.

    Yields:
        Pieces' numbers, ascending, and consecutive text of at most READ_BYTES. A piece inside one long line has none.

    Raises:
        InputError: If the file cannot be read, has changed, is damaged or cut off.
    """
    with opened_input(path, expected_size) as file:
        file.expect_forwards(0, file.size_bytes)
        decoder = Decoder(path, file, container)
        last = len(bounds) - 2
        piece = 0
        for number in range(len(bounds) - 1):
            in_earlier_line = number > 0
            for text in _decode(decoder, None if number == last else bounds[number + 1]):
                cut = 0
                if in_earlier_line:
                    cut = text.find(b"\n") + 1
                    yield piece, text[:cut] if cut else text
                    in_earlier_line = not cut
                if not in_earlier_line:
                    piece = number
                    if cut < len(text):
                        yield piece, text[cut:] if cut else text


def _decode(decoder: Decoder, before: int | None) -> Iterator[bytes]:
    """Yield all text that the file's bytes before an offset decode to; None: all of it."""
    while True:
        text = decoder.read(READ_BYTES, before=before)
        if text:
            yield text
        elif decoder.at_end or (before is not None and not decoder.has_input(before)):
            return
