import subprocess
import sys
from types import SimpleNamespace

import gigatoken
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dsindex.text import fast_tokenizers as ragged


@pytest.mark.parametrize("parallel", [False, True])
def test_ragged_texts_give_the_tokens_of_single_ones(parallel, tmp_path, monkeypatch):
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
    monkeypatch.setattr(ragged, "sys", SimpleNamespace(modules={}))  # as if awkward had not been imported
    for most in (sys.maxsize, 0):
        monkeypatch.setattr(ragged, "SINGLE_TEXTS", most)
        tokens, lengths = ragged.encode_ragged(fast, offsets, data, parallel=parallel)
        assert (tokens.dtype, lengths.dtype) == (np.uint32, np.int64)
        expected = [fast.encode(text).tolist() for text in texts[1:-1]]
        assert [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] == expected


@pytest.mark.parametrize("most", [3, 2])
def test_few_texts_do_not_import_what_arrays_need(most):
    code = """if True:
        import sys
        import numpy as np
        from types import SimpleNamespace
        from dsindex.text import fast_tokenizers as ragged
        ragged.SINGLE_TEXTS = int(sys.argv[1])
        fast = SimpleNamespace(encode=lambda text: np.frombuffer(text, np.uint8).astype(np.uint32))
        try:
            offsets, data = np.array([1, 1, 3]), np.arange(4, dtype=np.uint8)
            tokens, lengths = ragged.encode_ragged(fast, offsets, data, parallel=False)
            print(tokens.tolist(), lengths.tolist(), "awkward" in sys.modules)
        except AttributeError:
            print("awkward" in sys.modules)
    """
    shown = subprocess.run([sys.executable, "-c", code, str(most)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ("[1, 2] [0, 2] False" if most == 3 else "True")
