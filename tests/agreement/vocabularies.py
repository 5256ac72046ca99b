"""Tokenizers whose tokens show where the text was split: no two texts that are split differently give the same ids."""

import functools
import json

import msgspec
from tokenizers import Tokenizer, models, trainers

from dsindex.text.engines import PATTERNS, byte_characters
from dsindex.text.tiktoken_files import END_OF_TEXT, TiktokenEncoding
from tests.support.text_tokenizers import SENTENCES

_CONTINUATION, _LEAD, _ASCII = range(0x80, 0xC0), range(0xC2, 0xF5), range(0x80)


def byte_level(*, use_regex, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern, *, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def pattern_splits(name, **options):
    return sequence(*(split(pattern, **options) for pattern in PATTERNS[name]), byte_level(use_regex=False))


def with_model(model, *, pre_tokenizer, normalizer=None, added=()):
    """Put a tokenizer.json around a model; the added tokens are special and stand in its vocabulary."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": model["vocab"][content], "content": content, **flags} for content in added]
    parts = {"truncation": None, "padding": None, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    ends = {"post_processor": None, "decoder": None, "model": model}
    return json.dumps({"version": "1.0", "added_tokens": tokens, **parts, **ends}).encode()


def bpe(merges=(), *, words=(), **options):
    """A byte-level model with these merges, and these words though nothing is merged to them."""
    characters = byte_characters()
    pairs = [tuple("".join(characters[byte] for byte in part) for part in pair) for pair in merges]
    spelt = ("".join(characters[byte] for byte in word) for word in words)
    tokens = dict.fromkeys([*characters, *map("".join, pairs), *spelt])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None} | {
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocabulary, "merges": [list(pair) for pair in pairs],
    } | options  # fmt: skip


@functools.cache
def joining_merges():
    """Join the last byte of a character with the first of the next, if one is outside ASCII; then any two of ASCII.

    Each byte of two neighbours outside ASCII is in one such pair at most, so a pair is one token wherever the two were
    not split.
    """
    across = [(x, y) for x in (*_CONTINUATION, *_ASCII) for y in _LEAD]
    across += [(x, y) for x in _CONTINUATION for y in _ASCII]
    return [(bytes([x]), bytes([y])) for x, y in [*across, *((x, y) for x in _ASCII for y in _ASCII)]]


def ranks(pattern, merges):
    """A definition of a tiktoken encoding with these pairs as tokens."""
    tokens = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *(first + second for first, second in merges)])
    numbers = {token: number for number, token in enumerate(tokens)}
    special = {END_OF_TEXT: len(numbers)}
    fields = {"ranks": numbers, "special_tokens": special, "vocabulary_size": len(numbers) + 1}
    return msgspec.json.encode(TiktokenEncoding(pattern=pattern, **fields))


@functools.cache
def joining_model():
    return bpe(joining_merges())


@functools.cache
def space_mark_model():
    """A model with byte fallback, trained on sentences with marks for spaces, some tokens across two words."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=specials, show_progress=False)
    sentences = [*SENTENCES * 3, *["a a a b b  c c   1 1 1 . . , , s's s's"] * 4]
    tokenizer.train_from_iterator([sentence.replace(" ", "▁") for sentence in sentences], trainer)
    return json.loads(tokenizer.to_str())["model"]
