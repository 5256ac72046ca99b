"""Texts with a wanted code point are found, wherever in the text and the buffer it stands."""

import random

import pytest

from dsindex.text.encoders import find_texts

RANGES = [(0x88F, 0x88F), (0xA7CE, 0xA7CF), (0x10940, 0x10959), (0x323B0, 0x33479)]
EDGES = [0x88E, 0x88F, 0x890, 0xA7CD, 0xA7CE, 0xA7CF, 0xA7D0, 0x1093F, 0x10940, 0x10959, 0x1095A, 0x323AF, 0x323B0,
         0x33479, 0x3347A, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF]  # fmt: skip
PLAIN = ["a", "plain words, ", "é", "Привет ", "中文", "😀"]


@pytest.mark.parametrize("ranges", [RANGES, [(0x80, 0x80), (0x7FF, 0x7FF)], [(0x10FFFF, 0x10FFFF)]], ids=str)
def test_texts_with_a_member_are_found(ranges):
    rng = random.Random(3)
    texts = [
        "".join(chr(rng.choice(EDGES)) if rng.random() < 0.02 else rng.choice(PLAIN) for _ in range(rng.randint(0, 60)))
        for _ in range(800)
    ]
    wanted = [
        number
        for number, text in enumerate(texts)
        if any(first <= ord(character) <= last for character in text for first, last in ranges)
    ]
    assert 0 < len(wanted) < len(texts)
    assert find_texts(texts, list(map(str.encode, texts)), tuple(ranges)) == wanted
