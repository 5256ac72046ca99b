"""Load drawn tokenizers that strangers may give, each with a limit on the address space: run by its test as a child.

    python -m tests.text.hostile_tokenizers FOLDER FIRST COUNT

A number and a kind are printed before each, so that the parent knows which one ends the process.
"""

import json
import random
import resource
import shutil
import signal
import sys
from pathlib import Path

from dsindex.errors import DsindexError
from dsindex.text.encoders import make_encoder
from dsindex.text.engines import choose_engine
from dsindex.text.tiktoken_files import TokenizerOptions
from dsindex.text.tokenizer import decode, load_tokenizer
from tests.agreement import vocabularies as v
from tests.support import damage
from tests.support import text_tokenizers as trained
from tests.support.foreign_tokenizers import rank_entries, sentencepiece_model, tiktoken_file

TEXT = "a text, <|eot|> été"
PLAIN = v.with_model(v.bpe(), pre_tokenizer=v.byte_level(use_regex=True))
DOCUMENTS = [trained.byte_level(), trained.sentencepiece_bpe(), trained.word_piece()]
DOCUMENTS.append(trained.with_template("<|bos|> $A"))
SIDE_FILES = {
    "tokenizer_config.json": {
        "eos_token": "<|eot|>", "bos_token": {"content": "<|bos|>", "lstrip": False}, "extra_special_tokens": ["a"],
        "additional_special_tokens": ["<|eot|>"], "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer",
        "added_tokens_decoder": {"0": {"content": "<|eot|>", "special": True, "lstrip": False}},
    },
    "special_tokens_map.json": {"eos_token": "<|eot|>", "pad_token": {"content": "<|eot|>"}, "additional": ["a"]},
    "added_tokens.json": {"<|eot|>": 0, "the": 400},
}  # fmt: skip
VALUES = [
    "\ud800", 5, [5], {"content": 5}, {"content": "\ud800"}, {"type": []}, float("inf"), json.loads("[" * 90 + "]" * 90)
]  # fmt: skip


def added(count, **flags):
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return [{"id": 256 + n, "content": f"<{n:x}>"} | dict.fromkeys(names, n % 2 == 1) | flags for n in range(count)]


def document(**changes):
    return json.dumps({**json.loads(PLAIN), **changes}).encode()


DOUBLING = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30


def template(pieces, ids):
    special = {"x": {"id": "x", "ids": [0] * ids, "tokens": ["x"] * ids}}
    both = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    single = [{"SpecialToken": {"id": "x", "type_id": 0}}, both[0]] * pieces
    return {"type": "TemplateProcessing", "single": single, "pair": both, "special_tokens": special}


LARGE = [
    lambda: document(normalizer={"type": "Sequence", "normalizers": DOUBLING}),
    lambda: document(decoder={"type": "Sequence", "decoders": DOUBLING}),
    lambda: document(normalizer={"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 1_000_000}),
    lambda: document(normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x"}] * 30_000}),
    lambda: document(post_processor=template(20_000, 1)),
    lambda: document(post_processor=template(900, 50_000)),
    lambda: document(added_tokens=added(20_000, single_word=False, lstrip=False, rstrip=False)),
    lambda: document(added_tokens=[{**added(1)[0], "content": "ab" * 500_000}]),
    lambda: document(added_tokens=[{**added(1)[0], "id": 2**32 - 1}]),
    lambda: b"[" * 100_000,
    lambda: b'{"model": {"vocab": ' + b'{"a":' * 100_000,
    lambda: document(pre_tokenizer={"type": "Sequence", "pretokenizers": [v.byte_level(use_regex=False)] * 40}),
]


def changed(content, rng):
    """Damage a JSON file as bytes or as a value."""
    if rng.random() < 0.25:
        return damage.damage_bytes(content, rng)
    document = json.loads(content)
    for _ in range(rng.randint(1, 3)):
        document = damage.damage_json(document, rng, [*damage.VALUES, *VALUES])
    return json.dumps(document).encode()


def draw(folder, kind, rng):
    """Write a tokenizer of which one file is hostile; return its path and options."""
    if kind == "tiktoken":
        files = {"gpt2.tiktoken": damage.damage_bytes(tiktoken_file(), rng)}
    elif kind == "megatron":
        files = {"ranks.json": changed(json.dumps(rank_entries()).encode(), rng)}
    elif kind == "sentencepiece":
        model = sentencepiece_model(rng.choice(["llama2", "gemma", "t5"]))
        files = {"tokenizer.model": damage.damage_bytes(model, rng)}
    elif kind == "large":
        files = {"tokenizer.json": rng.choice(LARGE)()}
    else:
        files = {"tokenizer.json": rng.choice(DOCUMENTS)}
        for name, values in SIDE_FILES.items() if kind != "tokenizer.json" else []:
            drawn_values = {key: value for key, value in values.items() if rng.random() < 0.5 or name == kind}
            files[name] = json.dumps(drawn_values).encode()
        files[kind] = changed(files[kind], rng)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    options = TokenizerOptions(vocab_size=520, tiktoken_num_special_tokens=20) if kind == "megatron" else None
    return str(folder if "tokenizer.json" in files else folder / next(iter(files))), options


KINDS = ["tokenizer.json", *SIDE_FILES, "tiktoken", "megatron", "sentencepiece", "large"]


def use(path, options=None):
    """Do with a tokenizer what a build does before it begins."""
    tokenizer = load_tokenizer(path, options=options)
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    decode(tokenizer, make_encoder(tokenizer, engine).encode([TEXT]).tokens[:5])


def main(folder, first, count):
    for content in [*DOCUMENTS, PLAIN]:  # libraries are loaded before there is a limit
        (folder / "tokenizer.json").write_bytes(content)
        use(str(folder))
    for number in range(first, first + count):
        rng, kind = random.Random(number), KINDS[number % len(KINDS)]
        shutil.rmtree(folder)
        folder.mkdir()
        path, options = draw(folder, kind, rng)
        sys.stdout.write(f"{number} {kind}\n")
        sys.stdout.flush()
        size = sum(file.stat().st_size for file in folder.iterdir())
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = in_use + (64 << 20) + 20 * size
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        signal.alarm(60)
        try:
            use(path, options)
        except DsindexError as error:
            lines = str(error).split("\n")
            if len(lines) > 2 or not all(line.startswith("hint: ") for line in lines[1:]):
                raise ValueError(f"more than one sentence: {error}") from error
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
