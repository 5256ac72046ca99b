import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [b"not a text of the array", b"one text", b"", "zwei Wörter".encode(), b"<|end|>", b"neither"]
PROGRAM = """if True:
    import json, sys
    path, few, parallel, package, begin, end = json.loads(sys.argv[1])
    if package:
        import awkward
    import gigatoken
    import numpy as np
    from dsindex.text import fast_tokenizers as ragged
    ragged.FEW_TEXTS, ragged.LISTED_TEXTS = few, 0
    fast = gigatoken.Tokenizer.from_json(open(path, "rb").read())
    texts = [text.encode() for text in json.loads(sys.argv[2])]
    offsets = np.cumsum([0, *map(len, texts)])[begin:end]
    tokens, lengths = ragged.encode_ragged(fast, offsets, np.frombuffer(b"".join(texts), np.uint8), parallel=parallel)
    assert (tokens.dtype, lengths.dtype) == (np.uint32, np.int64)
    assert [row.tolist() for row in np.split(tokens, np.cumsum(lengths)[:-1])][: len(lengths)] == [
        fast.encode(text).tolist() for text in texts[begin : begin + len(lengths)]
    ] and len(lengths) == len(offsets) - 1
    print("awkward" in sys.modules)
    if package:  # it is the package itself that others see
        print(len(fast.encode_batch(awkward.Array([b"a", b"b"]))))
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["one text of zwei Wörter"] * 4, trainer)
    path = tmp_path_factory.mktemp("ragged") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.quick(3)
@pytest.mark.parametrize("bounds", [(1, 6), (2, 4), (1, 2)], ids=["four", "one-empty-first", "none"])
@pytest.mark.parametrize(("few", "package", "imported"), [
    (9, False, False), (9, True, True), (0, False, True),
], ids=["list", "list-beside-awkward", "array"])  # fmt: skip
def test_texts_give_the_tokens_of_single_ones(few, package, imported, bounds, tokenizer):
    """Few texts are passed as a list, without awkward, whether others use it or not; many as an array."""
    arguments = json.dumps([tokenizer, few, bounds == (1, 6), package, *bounds])
    texts = json.dumps([text.decode() for text in TEXTS])
    command = [sys.executable, "-c", PROGRAM, arguments, texts]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert shown == [str(imported), *(["2"] if package else [])]
