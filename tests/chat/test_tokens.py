"""The mask against slow references, for conversations in several scripts and three kinds of tokenizer."""

import functools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from dsindex.chat.config import parse_config
from dsindex.chat.encode import InstructionEncoder
from dsindex.chat.tokens import ChatTokenizer, mask_between_markers, mask_from_spans
from dsindex.errors import RecordProblem
from tests.support.chat_tokenizers import KINDS, LINES, train
from tests.support.golden import TOKENIZERS
from tests.support.text_tokenizers import byte_level

CHAT = """
chat_template: "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.name }}{% generation %}{{ m.content }}\
{% endgeneration %}{{ m.tail }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
"""
ALPHABET = [*sorted(set("".join(LINES))), " ", "  ", "\n", "\t", "\u00a0", "\u200d", "ﬁ", "İ", "\u0301", "<s>", "§"]
CHOICES = [*ALPHABET, *(word for line in LINES for word in line.split(" "))]

BYTES = frozenset(pre_tokenizers.ByteLevel.alphabet())

words = st.lists(st.sampled_from(CHOICES), max_size=12).map("".join)
turns = st.tuples(words, words, words, words)
conversations = st.lists(turns, min_size=1, max_size=5)


@functools.cache
def tokenizer_of(kind):
    return train(kind) if kind in KINDS else ChatTokenizer.from_path(TOKENIZERS[kind])


@functools.cache
def raw_tokenizer_of(kind):
    return Tokenizer.from_str(tokenizer_of(kind)._json)


@functools.cache
def encoder_of(kind):
    return InstructionEncoder(parse_config(CHAT), tokenizer_of(kind))


def record_of(chat):
    """Return a record, and the pieces of the text that the template makes of it."""
    messages, pieces = [], []
    for question, name, reply, tail in chat:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": reply, "name": name, "tail": tail})
        pieces += [(question, False), (name, False), (reply, True), (tail, False)]
    return {"messages": messages}, pieces


def reference_mask(kind, pieces):
    """Tokenize the whole, then ask every character of every token."""
    text = "".join(piece for piece, _ in pieces)
    trained = [is_trained for piece, is_trained in pieces for _ in piece]
    encoding = raw_tokenizer_of(kind).encode(text, add_special_tokens=False)
    mask = []
    for begin, end in exact_offsets(kind, text, encoding.tokens, encoding.offsets):
        places = range(begin, max(end, begin + 1))
        mask.append(int(any(trained[place] for place in places if place < len(text))))
    return encoding.ids, mask


def exact_offsets(kind, text, tokens, offsets):
    if kind in {"wordpiece", "unigram"}:
        return offsets
    # Not the tokenizer's word for it: the bytes of a byte-level tokenizer's tokens are the bytes of the text.
    owner = [place for place, character in enumerate(text) for _ in character.encode()]
    spans, position = [], 0
    for token in tokens:
        size = len(token) if all(character in BYTES for character in token) else len(token.encode())
        places = owner[position : position + size]
        position += size
        spans.append((places[0], places[-1] + 1))
    assert position == len(owner)
    return spans


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", [*KINDS, *TOKENIZERS])
@settings(max_examples=40)
@given(chat=conversations)
def test_mask_is_that_of_the_characters_and_never_changes_tokens(kind, chat):
    record, pieces = record_of(chat)
    ids, mask = reference_mask(kind, pieces)
    if not any(mask):
        with pytest.raises(RecordProblem, match="nothing is trained on"):
            encoder_of(kind).encode(record)
        return
    encoded = encoder_of(kind).encode(record)
    assert (encoded.tokens.tolist(), encoded.mask.tolist()) == (ids, mask)


@pytest.mark.parametrize(("offsets", "spans", "expected"), [
    pytest.param([[0, 3], [3, 4]], [(2, 3)], [1, 0], id="straddles-begin"),
    pytest.param([[0, 1], [0, 1], [0, 1], [1, 2]], [(0, 1)], [1, 1, 1, 0], id="one-character-in-pieces"),
    pytest.param([[0, 1], [1, 1], [1, 2]], [(1, 2)], [0, 1, 1], id="no-character-before-trained"),
    pytest.param([[0, 1], [1, 1]], [(0, 1)], [1, 0], id="no-character-after-trained"),
    pytest.param([[2, 2]], [(0, 2)], [0], id="at-the-end"),
    pytest.param([], [(0, 2)], [], id="no-tokens"),
])  # fmt: skip
def test_mask_from_spans_marks_tokens_with_a_trained_character(offsets, spans, expected):
    begins, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    mask = mask_from_spans(begins, ends, np.array(spans, dtype=np.int64).reshape(-1, 2))
    assert mask.tolist() == expected


@pytest.mark.parametrize(("ids", "expected"), [
    # The example in Modalities' own test, as a mask.
    ([5, 5, 0, 5, 5, 1, 5, 0, 5, 1, 0, 1, 5, 0, 1], [0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
    ([5, 6], [0, 0]), ([1], None), ([0], None), ([0, 0, 1, 1], None),
], ids=["modalities", "none", "end", "begin", "nested"])  # fmt: skip
def test_mask_between_markers_or_none_if_they_do_not_alternate(ids, expected):
    marked = mask_between_markers(np.array(ids, dtype=np.uint32), begin_id=0, end_id=1)
    if expected is None:
        assert (type(marked), marked.kind) == (RecordProblem, "unbalanced-markers")
    else:
        assert (marked.tokens.tolist(), marked.mask.tolist()) == (ids, expected)


def test_text_on_which_the_library_fails_is_a_problem_of_its_record():
    """Oniguruma gives up on the pattern, and tokenizers panics."""
    document = json.loads(byte_level())
    splits = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [splits, document["pre_tokenizer"]]}
    encoder = InstructionEncoder(parse_config(CHAT), ChatTokenizer(json.dumps(document)))
    replies = [{"role": "assistant", "content": text} for text in ("one", "x" * 40, "two")]
    lines = [json.dumps({"messages": [{"role": "user", "content": "q"}, reply]}).encode() for reply in replies]
    outcomes = list(encoder.encode_lines(lines))
    assert [isinstance(outcome, RecordProblem) for outcome in outcomes] == [False, True, False]
    assert (outcomes[1].kind, "retry-limit" in outcomes[1].reason) == ("not-encodable", True)
