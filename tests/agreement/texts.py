"""The texts that are tried: a code point in its contexts, short sequences of all classes of characters, long ones."""

import functools
import itertools
import unicodedata

CODE_POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]

CONTEXTS = "{}a{}B 1{}2 {}é{}中あ{}\u0301{}²{}.{}/{}\n{}\r\n\t{}\n\n{}\u00a0{}'s '{} 's{} a{}'LL  {}\n A{}{}{}a ({}"
"""A line in which the code point stands before and after a letter, digit, mark, space, newline and sign, after and
before an apostrophe, within short forms, and in runs, at its begin and at its end."""

NFC_CONTEXTS = (
    "{} a{} a\u0345{} a{}\u0334 a\u0301{}\u0323 {}\u0301 {}{} \u1100{} {}\u1161 {}\u11a8 "
    "{}\u0338 {}\u3099 {}\u0307 {}'s a{}"
)
"""The same before and after combining marks of low and high classes, and parts of syllables that compose."""

CLASSES = (
    "a", "B", "s", "l", "ǅ", "ʰ", "中", "あ", "\u0301", "1", "²", ".", "/", "'", "+", " ", "\n", "\r", "\t", "\u00a0",
    "\u200d", "\u0378",
)  # fmt: skip
"""A character of every class that a pattern knows: with these all short sequences are tried."""

_MORE = (
    "ab", "The", " the", " 123", "  ", "\n\n", "\r\n", "'ll", "'VE", "'ſ", "ſ", "\u212a", "中文", "ひ", "カ", "é",
    "E\u0301", "ß", "İ", "ﬁ", "🌊", "👩‍🌾", "\U0001f1e9", "😀🏽", "ش", "नदी", "ไท", "한", "½", "Ⅷ", "٣", "\u2028",
    "\x85", "\x1c", "\0", "\u3000", "\u200b", "_", "-", "$", "€", "（", "。", "\ue000", "\U0010ffff", "\ufeff",
    "é" * 9, "x" * 17, "中" * 30, " " * 9, "1" * 10, "." * 20, "\n" * 7, "\u0301" * 5, "//", "/\n", "▁", "▁▁",
    "<0x41>", "</s>", "<s>", "e\u0323\u0301", "\u1100\u1161\u11a8",
)  # fmt: skip


def in_contexts(point, contexts):
    return contexts.replace("{}", chr(point))


def short_sequences(length):
    """Every sequence of so many characters, each of one of the classes, or fewer."""
    for size in range(1, length + 1):
        yield from map("".join, itertools.product(CLASSES, repeat=size))


def long_sequence(rng):
    """A sequence of up to 150 pieces, often of a few kinds only."""
    pool = rng.choice([CLASSES, _MORE, CLASSES + _MORE])
    if rng.random() < 0.3:
        pool = tuple(rng.sample(pool, 4))
    return "".join(rng.choices(pool, k=rng.randint(1, rng.choice([3, 6, 12, 40, 150]))))


def composing_sequence(rng, apart):
    """A sequence of characters that NFC moves, composes or takes apart, none of them in a set."""
    return "".join(character for character in rng.choices(_composing(), k=8) if ord(character) not in apart)


@functools.cache
def _composing():
    """What this Python's version of Unicode knows of them, letters that they compose with, and parts of syllables."""
    moved = [chr(point) for point in CODE_POINTS if unicodedata.combining(chr(point))]
    composed = [chr(point) for point in CODE_POINTS if unicodedata.decomposition(chr(point))[:1] not in {"", "<"}]
    return [*moved, *composed, *"aeiouAEIOU " * 20, *map(chr, range(0x1100, 0x1200))]


_BLOCKS = [(0x80, 0x2BFF), (0xA640, 0xABFF), (0xFB00, 0x11FFF), (0x16000, 0x16FFF), (0x1D000, 0x1FFFF)]
SCRIPTS = [point for first, last in _BLOCKS for point in range(first, last + 1)]
"""Where new characters that compose can stand: not among ideographs, syllables, hieroglyphs and in private use."""


def neighbours(point):
    """The code points of a block of 128: new letters and marks compose within their script."""
    return list(range(point & ~0x7F, (point & ~0x7F) + 128))


def pairs(point, other_points):
    """A code point before and after each of some others."""
    return " ".join(chr(point) + chr(other) + " " + chr(other) + chr(point) for other in other_points)
