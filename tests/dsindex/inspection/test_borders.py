"""The pieces of a text show where tokens begin, and put together they are the text."""

import pytest

from dsindex.text.tokenizer import load_tokenizer, reference_of
from dsindex.tools.inspect import cut_pieces, show_text
from tests.support.foreign_tokenizers import sentencepiece_model, tiktoken_file
from tests.support.golden import TOKENIZERS

TEXT = "A naïve fox, 数 and 🦊🦊\r\n  twice\x1b[2J."


@pytest.mark.parametrize("name", ["gpt2", "plain"])
def test_pieces_together_are_the_text(name):
    tokenizer = load_tokenizer(str(TOKENIZERS[name]))
    ids = reference_of(tokenizer).encode([TEXT], add_special_tokens=False)[0].tolist()
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == TEXT
    assert [token for piece in pieces for token in piece.ids] == ids
    assert len(pieces) > 5
    assert "\ufffd" not in "".join(piece.text or "" for piece in pieces)


@pytest.mark.parametrize("name", ["m.model", "cl100k_base.tiktoken"])
def test_pieces_of_other_libraries_are_the_text(name, tmp_path):
    (tmp_path / name).write_bytes(sentencepiece_model("llama2") if name == "m.model" else tiktoken_file())
    tokenizer = load_tokenizer(str(tmp_path / name))
    ids = reference_of(tokenizer).encode(["a fox and 数 twice"], add_special_tokens=False)[0].tolist()
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == "a fox and 数 twice"
    after = cut_pieces(tokenizer, ids[2:], before=ids[:2])
    assert [piece.text for piece in after] == [piece.text for piece in pieces][-len(after) :]


def test_ids_outside_the_vocabulary_have_no_text():
    tokenizer = load_tokenizer(str(TOKENIZERS["plain"]))
    pieces = cut_pieces(tokenizer, [5, 10_000_000, -1, 6])
    assert [piece.text is None for piece in pieces] == [False, True, True, False]


def test_nothing_in_a_text_can_control_a_terminal():
    shown = show_text("a\x1b]0;title\x07\x9b31m\r\u202e\u200b\U000e0041\ufeffb")
    assert shown.isprintable()
    assert shown == r"a\x1b]0;title\x07\x9b31m\r\u202e\u200b\U000e0041\ufeffb"
