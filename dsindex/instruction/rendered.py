"""A rendered conversation: its text in UTF-8, with the trainable spans of its bytes; and how it is sent.

The process that renders sends a tag, the number of spans, first and last end of each (all of them little-endian
integers of 8 bytes), and the text.
"""

from __future__ import annotations

import struct
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    Span: TypeAlias = tuple[int, int]

LINE_TAG = b"l"
"""Begins a request with a record as stored in a file; other requests are JSON."""
TEXT_TAG, SPECIAL_TAG = b"t", b"s"
"""Begin an answer with a text, the second if a special token's string stands in the record; other answers are JSON."""
_COUNT = struct.Struct("<q")


class RenderedText(NamedTuple):
    """A text and its trainable spans."""

    spelt: bytes
    """The text in UTF-8."""
    ends: tuple[int, ...]
    """First byte of each trainable span, and one past its last: shape [2 * spans]."""
    has_special: bool = False
    """Whether a special token's string was found in the record's own text."""

    @property
    def spans(self) -> list[Span]:
        """The spans in bytes."""
        return list(zip(self.ends[::2], self.ends[1::2], strict=True))

    def in_characters(self) -> tuple[str, list[Span]]:
        """Return the text, and the spans of its characters."""
        text = self.spelt.decode()
        if len(text) == len(self.spelt):
            return text, self.spans
        places = {0: 0}
        for before, place in pairwise(sorted({0, *self.ends})):
            places[place] = places[before] + len(self.spelt[before:place].decode())
        return text, [(places[begin], places[end]) for begin, end in self.spans]


def spell_text(text: str, spans: Sequence[Span]) -> RenderedText:
    """Return a text with spans of characters as its bytes.

    Raises:
        UnicodeEncodeError: If it has a lone surrogate.
    """
    spelt = text.encode()
    ends = tuple(chain.from_iterable(spans))
    if len(text) != len(spelt):
        places = {0: 0}
        for before, place in pairwise(sorted({0, *ends})):
            places[place] = places[before] + len(text[before:place].encode())
        ends = tuple(places[end] for end in ends)
    return RenderedText(spelt, ends)


def write_answer(rendered: RenderedText) -> bytes:
    """Return a text as an answer.

    >>> read_answer(write_answer(RenderedText(b"Hi!", (0, 2))))
    RenderedText(spelt=b'Hi!', ends=(0, 2), has_special=False)
    """
    ends = rendered.ends
    tag = SPECIAL_TAG if rendered.has_special else TEXT_TAG
    return b"%b%b%b" % (tag, struct.pack(f"<{1 + len(ends)}q", len(ends) // 2, *ends), rendered.spelt)


def read_answer(answer: bytes) -> RenderedText | None:
    """Return the text of an answer; None for JSON."""
    tag, begin = answer[:1], 1
    if tag not in (TEXT_TAG, SPECIAL_TAG):
        return None
    num_ends = 2 * _COUNT.unpack_from(answer, begin)[0]
    begin += _COUNT.size
    ends = struct.unpack_from(f"<{num_ends}q", answer, begin)
    return RenderedText(answer[begin + _COUNT.size * num_ends :], ends, tag == SPECIAL_TAG)
