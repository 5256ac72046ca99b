from __future__ import annotations

from typing import TYPE_CHECKING

import gigatoken
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dsindex.text.ragged import encode_ragged

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("parallel", [False, True])
def test_ragged_texts_give_the_tokens_of_single_ones(parallel: bool, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["one text of zwei Wörter"] * 4, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    fast = gigatoken.Tokenizer.from_json((tmp_path / "tokenizer.json").read_bytes())
    texts = [b"not a text of the array", b"one text", b"", "zwei Wörter".encode(), b"<|end|>", b"neither"]
    offsets = np.cumsum([0, *map(len, texts)])[1:-1]
    data = np.frombuffer(b"".join(texts), np.uint8)
    for _ in range(2):
        tokens, lengths = encode_ragged(fast, offsets, data, parallel=parallel)
        assert (tokens.dtype, lengths.dtype) == (np.uint32, np.int64)
        expected = [fast.encode(text).tolist() for text in texts[1:-1]]
        assert [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] == expected
