"""Tokenizer folders with random settings, and a digest of how a tokenizer encodes some texts."""

import hashlib
import json
import random

from tests.support.golden import TOKENIZERS

FOLDERS = 300
WORDS = ["<|eos|>", "<|bos|>", "long", "ĠÐ¿", "xxxx", "TACG"]
TEXTS = [
    "long <|eos|>longlong xx xxxx п TACGTACG",
    "xxxx  <|bos|>TACG п long xxxx <|eos|>x",
    "  long <|eos|>  п\n<|bos|> tacgTACG LONG П",
]
FLAGS = ("lstrip", "rstrip", "normalized", "single_word")
NAMES = ("eos_token", "pad_token", "unk_token", "bos_token")
WITHOUT_EFFECT = {
    "clean_up_tokenization_spaces": True, "model_max_length": 2, "padding_side": "left", "legacy": False,
    "split_special_tokens": False,
}  # fmt: skip


def draw(number):
    """Return file name → JSON for a folder with random named tokens, token lists and flags, mostly for known words."""
    rng = random.Random(number)

    def flags(word):
        return {"content": word, "special": rng.random() < 0.6} | {name: rng.random() < 0.3 for name in FLAGS}

    def named():
        token = {"__type": "AddedToken", **flags(rng.choice(WORDS))}
        return token if rng.random() < 0.3 else rng.choice([*WORDS * 4, "<new>"])

    document = json.loads((TOKENIZERS["bos"] / "tokenizer.json").read_bytes())
    if rng.random() < 0.3:
        document["normalizer"] = {"type": "Lowercase"}
    if rng.random() < 0.3:
        numbers = {"pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": rng.choice(WORDS)}
        document["padding"] = {"strategy": "BatchLongest", "direction": "Right", **numbers}
    config = {name: named() for name in NAMES if rng.random() < 0.4} | {"tokenizer_class": "PreTrainedTokenizerFast"}
    lists = {"additional_special_tokens": rng.sample(WORDS, 2), "image_token": rng.choice(WORDS)}
    lists["extra_special_tokens"] = rng.choice([rng.sample(WORDS, 2), {"x_token": rng.choice(WORDS)}, []])
    vocabulary = document["model"]["vocab"]
    lists["added_tokens_decoder"] = {str(vocabulary[word]): flags(word) for word in rng.sample(WORDS, 2)}
    config |= {name: value for name, value in lists.items() if rng.random() < 0.35}
    config |= {name: value for name, value in WITHOUT_EFFECT.items() if rng.random() < 0.2}
    if rng.random() < 0.1:
        config |= {"add_bos_token": rng.random() < 0.8, "add_eos_token": rng.random() < 0.2, "bos_token": "<|bos|>"}
    files = {"tokenizer.json": document, "tokenizer_config.json": config}
    if rng.random() < 0.4:
        files["special_tokens_map.json"] = {name: rng.choice(WORDS) for name in NAMES if rng.random() < 0.4}
    if rng.random() < 0.5:
        files["added_tokens.json"] = {word: vocabulary[word] for word in rng.sample(WORDS, 2)}
    return files


def write(folder, number):
    """Write the folder of `draw(number)`; return its path."""
    path = folder / str(number)
    path.mkdir()
    for name, content in draw(number).items():
        (path / name).write_text(json.dumps(content))
    return path


def digest(rows, size, eos, special):
    """Return a digest of the ids of TEXTS, the vocabulary size, the EOS token and the special tokens."""
    return hashlib.sha256(json.dumps([rows, size, eos, sorted(special)]).encode()).hexdigest()[:16]
