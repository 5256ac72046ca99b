"""What is compared for each part of a tokenizer, and how."""

import itertools
import random
import time

from dsindex.text.encoders import SCHEMES
from dsindex.text.engines import DIFFERING, PATTERNS, read_ranges
from tests.agreement import texts as t
from tests.agreement import vocabularies as v
from tests.agreement.engines import BothEngines
from tests.support.foreign_tokenizers import sentencepiece_model

TIKTOKEN = {f"tiktoken {scheme}": pattern for pattern, scheme in SCHEMES.items()}
PARTS = [*PATTERNS, "nfc", "space-marks", "sentencepiece", *TIKTOKEN]
_BATCH_CHARACTERS = 1 << 19
_NFC = {"type": "NFC"}


def library_of(part):
    """Return the reference of a part."""
    return part.split()[0] if part in ("sentencepiece", *TIKTOKEN) else "tokenizers"


def forms(part):
    """Return the normalizers and pre-tokenizers that are taken for a part; shapes of models; a pattern of tiktoken."""
    if part == "sentencepiece":
        return ["gemma", "llama2", "mistral"]
    if part in TIKTOKEN:
        return [TIKTOKEN[part]]
    if part == "space-marks":
        return _space_mark_forms()
    if part == "nfc":
        return [(_NFC, v.byte_level(use_regex=True)), *((_NFC, v.pattern_splits(name)) for name in PATTERNS)]
    pairs = [(None, v.pattern_splits(part))]
    if len(PATTERNS[part]) == 1:
        pairs.append((None, v.pattern_splits(part, behavior="Removed", invert=True)))
    if part == "gpt2":
        for prefix in (False, True):
            pairs.insert(0, (None, v.byte_level(use_regex=True, add_prefix_space=prefix)))
    return pairs


def _space_mark_forms():
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    sequence = {"type": "Sequence", "normalizers": [prepend, replace]}
    metaspaces = [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
        for scheme, split in itertools.product(["never", "always", "first"], [True, False])
    ]
    merged = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    pairs = list(itertools.product([sequence, replace, None], [None, *metaspaces]))
    return [*pairs, (replace, merged), (sequence, merged)]


def tokenizers_of(form, *, part):
    """Make tokenizers of one form whose tokens show, each in another way, where a text was split.

    Args:
        form: Normalizer and pre-tokenizer.
        part: That the form is of.
    """
    if part == "sentencepiece":
        yield sentencepiece_model(form)
        return
    shuffled = random.Random(5).sample(v.joining_merges(), len(v.joining_merges()))
    if part in TIKTOKEN:
        yield from (v.ranks(form, merges) for merges in (v.joining_merges(), shuffled))
        return
    steps = dict(zip(("normalizer", "pre_tokenizer"), form, strict=True))
    if part == "space-marks":
        yield v.with_model(v.space_mark_model(), added=["<s>", "</s>"], **steps)
        return
    yield v.with_model(v.joining_model(), **steps)
    yield v.with_model(v.bpe(shuffled), **steps)
    whole_words = v.bpe(words=[sequence.encode() for sequence in t.short_sequences(3)], ignore_merges=True)
    yield v.with_model(whole_words, **steps)


def sweep_code_points(part, points=t.CODE_POINTS):
    """Find the code points on which the engines differ in some context."""
    engines = BothEngines(next(tokenizers_of(forms(part)[0], part=part)), library_of(part))
    differing = _differing_in_contexts(engines, points, part=part)
    if part == "nfc":
        candidates = sorted(set(points).difference(differing).intersection(t.SCRIPTS))
        for point in list(_differing(engines, candidates, lambda point: t.pairs(point, t.neighbours(point)))):
            near = t.neighbours(point)
            agreeing = sorted(set(near) - _differing_in_contexts(engines, near, part=part))
            differing.update([point] if engines.differ([t.pairs(point, agreeing)]) else [])
    return sorted(differing)


def _differing_in_contexts(engines, points, *, part):
    contexts = t.NFC_CONTEXTS if part == "nfc" else t.CONTEXTS
    differing = set(_differing(engines, points, lambda point: t.in_contexts(point, contexts)))
    return differing.union(_differing(engines, points, chr))


def _differing(engines, points, text):
    size = max(1, _BATCH_CHARACTERS // len(text(0x100)))
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        yield from (part[number] for number in engines.differ([text(point) for point in part]))


def compare_sequences(part, *, length, seconds):
    """Find texts without differing code points on which the engines differ all the same.

    Args:
        part: Of a tokenizer.
        length: Every sequence of so many characters, one of each class, is tried.
        seconds: How long to try long ones, in all.
    """
    differing_texts = []
    apart = table_points(part)
    contents = [tokenizer for form in forms(part) for tokenizer in tokenizers_of(form, part=part)]
    for tokenizer in contents:
        engines = BothEngines(tokenizer, library_of(part))
        for texts in _batches(t.short_sequences(length)):
            differing_texts += [texts[number] for number in engines.differ(texts)]
        rng, end = random.Random(part), time.monotonic() + seconds / len(contents)
        while time.monotonic() < end:
            texts = [text for text in (t.long_sequence(rng) for _ in range(500)) if apart.isdisjoint(map(ord, text))]
            if part == "nfc":
                texts += [t.composing_sequence(rng, apart) for _ in range(1000)]
            differing_texts += [texts[number] for number in engines.differ(texts)]
    return differing_texts


def _batches(texts):
    iterator = iter(texts)
    while batch := list(itertools.islice(iterator, 1 << 16)):
        yield batch


def table_points(part):
    """The code points that the table names for a part."""
    return {point for first, last in read_ranges(DIFFERING[part]) for point in range(first, last + 1)}


def sampled_points(part, stride):
    """Every n-th code point, and the ends of the ranges in the table with their neighbours."""
    ends = {point for ends in read_ranges(DIFFERING[part]) for point in ends}
    near = {point + step for point in ends for step in (-1, 0, 1)}
    return sorted({*t.CODE_POINTS[::stride], *near, *map(ord, t.CLASSES)}.intersection(t.CODE_POINTS))


def expected_points(part, points):
    """Those of the points that the table names."""
    return sorted(table_points(part).intersection(points))
