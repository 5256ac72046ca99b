"""Code points on which gigatoken and `tokenizers` differ, found by `python -m tests.agreement`, which tries all.

The two use different versions of Unicode: a code point that is a letter for one is unassigned for the other. The
command prints these tables from the texts in `tests/agreement/texts.py`. To allow a new release of either package, run
the command with it, and add the version here if the tables are the same.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GIGATOKEN_VERSIONS = ("0.10.0",)
TOKENIZERS_VERSIONS = ("0.22.0", "0.22.1", "0.22.2", "0.23.1", "0.23.2", "0.23.3")
"""Versions of which all pairs give the tables below."""
SENTENCEPIECE_VERSIONS = ("0.2.0", "0.2.1", "0.2.2", "0.2.3")
"""Versions that agree with gigatoken on every code point."""
TIKTOKEN_VERSIONS = ("0.9.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0")
"""Versions that differ from gigatoken on the code points on which `tokenizers` does."""
REFERENCE_VERSIONS: dict[str, tuple[str, ...]] = {
    "tokenizers": TOKENIZERS_VERSIONS,
    "sentencepiece": SENTENCEPIECE_VERSIONS,
    "tiktoken": TIKTOKEN_VERSIONS,
}

_LETTERS = (
    "88F C5C CDC A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 "
    "16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6E2 1E6E4-1E6E5 1E6E7-1E6ED 1E6F0-1E6F4 "
    "1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)
"""The 4,657 letters and numbers of Unicode 17 that are unassigned for the reference."""
_MARKS = "1ACF-1ADD 1AE0-1AEB 10EFA-10EFB 11B60-11B67 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"
"""The 42 combining marks of Unicode 17 that are unassigned for the reference."""
_SIGNS = (
    "20C1 2B96 FBC3-FBD2 FD90-FD91 FDC8-FDCE 10ED0-10ED8 1CCFA-1CCFC 1CEBA-1CED0 1CEE0-1CEF0 1F6D8 1F777-1F77A "
    "1F8D0-1F8D8 1FA54-1FA57 1FA8A 1FA8E 1FAC8 1FACD 1FAEA 1FAEF 1FBFA"
)
"""The 104 symbols of Unicode 17 that are unassigned for the reference."""
_COMPOSING = (
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ADD 1AE0-1AEB 1DF6-1DFA A82C 105D2 105DA 10D24-10D27 "
    "10D69-10D6D 10EAB-10EAC 10EFA-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11382 11384 1138B 11390 "
    "113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E 11839-1183A 11930 11935 1193D-1193E 11943 119E0 11A34 11A47 "
    "11A99 11D42 11D44-11D45 11D97 11F41-11F42 1611E-16122 16129 1612F 16D63 16D67-16D69 16FF0-16FF1 1E08F "
    "1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"
)
"""178 characters of Unicode 10 to 17 that NFC moves or composes; the reference normalizes by Unicode 9."""

DIFFERING: dict[str, str] = {
    "gpt2": _LETTERS,
    "llama3": _LETTERS,
    "qwen2": _LETTERS,
    "qwen3.5": f"{_LETTERS} {_MARKS}",
    "o200k": f"{_LETTERS} {_MARKS}",
    "nemotron": f"{_LETTERS} {_MARKS}",
    "deepseek": f"{_LETTERS} {_MARKS} {_SIGNS}",
    "nfc": f"{_LETTERS} {_COMPOSING}",
    "space-marks": "",
}
"""Code points and ranges, in hexadecimal, by part of a tokenizer."""


def was_compared(gigatoken: str, reference: str, library: str = "tokenizers") -> bool:
    """Tell whether these versions of gigatoken and of a reference were compared."""
    return gigatoken in GIGATOKEN_VERSIONS and reference in REFERENCE_VERSIONS[library]


@functools.cache
def differing_ranges(parts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the code points on which the engines can differ.

    Args:
        parts: Names of the tokenizer's parts, as returned by `compared_parts`.

    Returns:
        First and last code point of each range, ascending.
    """
    points = sorted(
        point for part in parts for first, last in read_ranges(DIFFERING[part]) for point in range(first, last + 1)
    )
    return join_points(points)


def read_ranges(text: str) -> list[tuple[int, int]]:
    """Parse ranges in the notation of the tables.

    >>> read_ranges("88F 10940-10959")
    [(2191, 2191), (67904, 67929)]
    """
    pairs = (entry.partition("-") for entry in text.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in pairs]


def join_points(points: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Join adjacent code points into ranges.

    >>> join_points([1, 2, 3, 7])
    ((1, 3), (7, 7))
    """
    ranges: list[tuple[int, int]] = []
    for point in sorted(set(points)):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return tuple(ranges)
