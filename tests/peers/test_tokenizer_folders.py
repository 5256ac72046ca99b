"""transformers and we make the same tokenizer of a drawn folder: tokens, size and EOS, or the folder is refused."""

import json
import random
from collections import Counter

import pytest

from dsindex.errors import TokenizerError
from dsindex.text.encoders import encode_by_reference
from dsindex.text.tokenizer import load_tokenizer
from tests.support import text_tokenizers as trained

transformers = pytest.importorskip("transformers", minversion="5.24")
pytestmark = pytest.mark.filterwarnings("ignore")

FOLDERS = 300
WORDS = ["<|eot|>", "<|bos|>", "er", "Ġthe", "wheel", "mill"]
TEXTS = [
    "the wheel <|eot|> turned the river",
    "mill  <|bos|>the river wheel er <|eot|>x",
    "  the <|eot|>  the\n<|bos|> ",
]
FLAGS = ("lstrip", "rstrip", "normalized", "single_word")


def draw(rng):
    """Draw the files of a folder: named tokens, lists and flags, most of them of words in the vocabulary."""

    def flags(word):
        return {"content": word, "special": rng.random() < 0.6} | {name: rng.random() < 0.3 for name in FLAGS}

    def named():
        token = {"__type": "AddedToken", **flags(rng.choice(WORDS))}
        return token if rng.random() < 0.3 else rng.choice([*WORDS * 4, "<new>"])

    document = json.loads(trained.byte_level())
    if rng.random() < 0.3:
        numbers = {"pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": rng.choice(WORDS)}
        document["padding"] = {"strategy": "BatchLongest", "direction": "Right", **numbers}
    names = ("eos_token", "pad_token", "unk_token", "bos_token")
    config = {name: named() for name in names if rng.random() < 0.4} | {"tokenizer_class": "PreTrainedTokenizerFast"}
    lists = {"additional_special_tokens": rng.sample(WORDS, 2), "image_token": rng.choice(WORDS)}
    lists["extra_special_tokens"] = rng.choice([rng.sample(WORDS, 2), {"x_token": rng.choice(WORDS)}])
    vocabulary = document["model"]["vocab"]
    lists["added_tokens_decoder"] = {str(vocabulary[word]): flags(word) for word in rng.sample(WORDS, 2)}
    config |= {name: value for name, value in lists.items() if rng.random() < 0.3}
    files = {"tokenizer.json": document, "tokenizer_config.json": config}
    if rng.random() < 0.4:
        files["special_tokens_map.json"] = {name: rng.choice(WORDS) for name in names if rng.random() < 0.4}
    if rng.random() < 0.4:
        files["added_tokens.json"] = {word: vocabulary[word] for word in rng.sample(WORDS, 2)}
    return files


def test_drawn_folders_are_the_tokenizer_of_transformers(tmp_path):
    outcomes = Counter()
    for number in range(FOLDERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in draw(random.Random(number)).items():
            (folder / name).write_text(json.dumps(content))
        try:
            tokenizer = load_tokenizer(str(folder))
        except TokenizerError as error:
            outcomes["is missing" in str(error)] += 1
            continue
        peer = transformers.AutoTokenizer.from_pretrained(folder)
        own = encode_by_reference(tokenizer, TEXTS, add_special_tokens=True)
        assert (own, tokenizer.vocabulary_size) == ([peer(text)["input_ids"] for text in TEXTS], len(peer)), number
        assert tokenizer.eod_token == peer.eos_token
        outcomes["same"] += 1
    assert outcomes["same"] > FOLDERS * 0.7
    assert not outcomes[False]
