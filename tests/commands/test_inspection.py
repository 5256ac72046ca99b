"""What a path leads to, how texts are cut into pieces, and what a pass over a dataset measures."""

from __future__ import annotations

import pytest

from dsindex.commands.token_data import cut_pieces
from dsindex.text.encoders import encode_by_reference
from dsindex.text.tokenizer import load_tokenizer
from tests.support.foreign_tokenizers import sentencepiece_model, tiktoken_file
from tests.support.golden import TOKENIZERS

FILES = {"m.model": sentencepiece_model("llama2"), "cl100k_base.tiktoken": tiktoken_file()}


@pytest.mark.parametrize("name", ["gpt2", *FILES])
def test_pieces_together_are_the_text(name, tmp_path):
    for file, content in FILES.items():
        (tmp_path / file).write_bytes(content)
    tokenizer = load_tokenizer(str(tmp_path / name if name in FILES else TOKENIZERS[name]))
    text = "a fox and 数 twice" if name in FILES else "A naïve fox, 数 and 🦊🦊\r\n  twice\x1b[2J."
    ids = encode_by_reference(tokenizer, [text], add_special_tokens=False)[0]
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == text
    assert [token for piece in pieces for token in piece.ids] == ids
    assert len(pieces) > 5
    after = cut_pieces(tokenizer, ids[2:], before=ids[:2])
    assert [piece.text for piece in after] == [piece.text for piece in pieces][-len(after) :]


def test_ids_outside_the_vocabulary_have_no_text():
    tokenizer = load_tokenizer(str(TOKENIZERS["plain"]))
    pieces = cut_pieces(tokenizer, [5, 10_000_000, -1, 6])
    assert [piece.text is None for piece in pieces] == [False, True, True, False]
