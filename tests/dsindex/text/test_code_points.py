"""Texts with a wanted code point are found, wherever in the text and the buffer it stands."""

import random

import numpy as np
import pytest

from dsindex.text import encoders as code_points
from dsindex.text.encoders import CodePoints

RANGES = [(0x88F, 0x88F), (0xA7CE, 0xA7CF), (0x10940, 0x10959), (0x323B0, 0x33479)]
EDGES = [0x88E, 0x88F, 0x890, 0xA7CD, 0xA7CE, 0xA7CF, 0xA7D0, 0x1093F, 0x10940, 0x10959, 0x1095A, 0x323AF, 0x323B0,
         0x33479, 0x3347A, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF]  # fmt: skip
PLAIN = ["a", "plain words, ", "é", "Привет ", "中文", "😀"]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(code_points, "_PIECE_BYTES", 100)


def buffers(texts):
    spelt = [text.encode() for text in texts]
    return np.cumsum([0, *map(len, spelt)], dtype=np.int64), np.frombuffer(b"".join(spelt), np.uint8)


def holds_member(text, ranges):
    return any(first <= ord(character) <= last for character in text for first, last in ranges)


@pytest.mark.parametrize("ranges", [RANGES, [(0x80, 0x80), (0x7FF, 0x7FF)], [(0x10FFFF, 0x10FFFF)]], ids=str)
def test_texts_with_a_member_are_found(ranges):
    rng = random.Random(3)
    texts = [
        "".join(chr(rng.choice(EDGES)) if rng.random() < 0.02 else rng.choice(PLAIN) for _ in range(rng.randint(0, 60)))
        for _ in range(800)
    ]
    wanted = [number for number, text in enumerate(texts) if holds_member(text, ranges)]
    assert 0 < len(wanted) < len(texts)
    offsets, data = buffers(texts)
    points = CodePoints(ranges)
    assert points.find_texts(offsets, data).tolist() == wanted
    sliced = points.find_texts(offsets[100:201], data) + 100
    assert sliced.tolist() == [number for number in wanted if 100 <= number < 200]


@pytest.mark.parametrize("point", EDGES[2:-1])
def test_every_place_around_a_step_is_looked_at(point):
    points = CodePoints([(max(point, 0x80), max(point, 0x80))])
    character = chr(max(point, 0x80))
    texts = ["x" * before + character + "x" * after for before in range(125, 132) for after in (0, 1, 63, 64, 65)]
    offsets, data = buffers(texts)
    assert points.find_texts(offsets, data).tolist() == list(range(len(texts)))
    one = np.array([0, offsets[1]])
    assert points.find_texts(one, data).tolist() == [0]


def test_nothing_is_found_where_nothing_is():
    offsets, data = buffers(["", "", "a"])
    assert CodePoints([]).find_texts(offsets, data).tolist() == []
    assert CodePoints(RANGES).find_texts(offsets, data).tolist() == []
    assert CodePoints(RANGES).find_texts(offsets[:1], data).tolist() == []
    assert CodePoints(RANGES).find_texts(*buffers([""])).tolist() == []


def test_a_character_that_is_cut_off_is_none():
    data = np.frombuffer("\u088f\U000323b0".encode(), np.uint8)
    for size in range(1, len(data)):
        found = CodePoints(RANGES).find_texts(np.array([0, size]), data)
        assert found.tolist() == ([0] if size >= 3 else []), size


@pytest.mark.parametrize("ranges", [[(0x7F, 0x80)], [(0x90, 0x8F)], [(0x10FFFF, 0x110000)]])
def test_ranges_are_within_unicode_and_outside_ascii(ranges):
    with pytest.raises(ValueError, match=r"expected ranges within U\+0080 to U\+10FFFF, got U\+"):
        CodePoints(ranges)
