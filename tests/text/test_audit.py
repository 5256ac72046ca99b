"""A wrong engine is caught on a sample of the text."""

from dataclasses import replace

import numpy as np
import pytest

from dsindex.errors import TokenizerError
from dsindex.text import encoders
from dsindex.text.engines import audit, choose_engine, clip_texts
from tests.support import text_tokenizers as trained


def test_audit_catches_a_wrong_engine(monkeypatch):
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    original = encoders.Encoder._encode_fast

    def wrong(self, *texts):
        batch = original(self, *texts)
        return replace(batch, spaced=np.where(batch.spaced == batch.tokens[-1], 7, batch.spaced))

    monkeypatch.setattr(encoders.Encoder, "_encode_fast", wrong)
    with pytest.raises(TokenizerError, match=r"^trained: .* return different tokens for 'wheel'\nhint: use --engine"):
        audit(tokenizer, engine, ["wheel"])
    with pytest.raises(TokenizerError, match=r"'(x ){30}' … '( x){30}'"):
        audit(tokenizer, engine, ["x " * 500 + " x" * 500 + "wheel" + " x" * 30])


def test_texts_are_clipped():
    texts = ["éé", "abcdefgh", "", "水"]
    assert clip_texts(texts, most=5, total=100) == ["éé", "abcde", "", "水"]
    assert clip_texts(texts, most=5, total=7) == ["éé", "abcde", ""]
    assert clip_texts(texts[1:], most=5, total=0) == []
