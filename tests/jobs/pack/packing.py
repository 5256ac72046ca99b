"""The texts and tokenizers that the tests pack."""

import json
import os

import tokenizers

from dsindex.cli.main import main
from dsindex.text.tokenizer import load_tokenizer
from tests.support.golden import OWN
from tests.support.pbin_files import pbin_bytes


def words(folder, size, *, added=()):
    """A tokenizer with `size` words, the first of which are those of the golden text, and <eod> as its last one."""
    known = dict.fromkeys(["[UNK]", *" ".join(golden_texts()).split(), *(f"<{number}>" for number in range(size))])
    vocabulary = [*list(known)[: size - 1], "<eod>"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eod>"])
    tokenizer.add_tokens(list(added))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eod>"}))
    return str(folder)


def packed_by_hand(texts, tokenizer, *, version, token_bytes):
    """What must come out, told as plainly as possible."""
    loaded = tokenizers.Tokenizer.from_file(os.path.join(tokenizer, "tokenizer.json"))
    eod = load_tokenizer(tokenizer).eod_id
    documents = [loaded.encode(text).ids for text in texts]
    closed = [ids if ids[-1] == eod else [*ids, eod] for ids in documents if ids]
    return pbin_bytes(closed, version=version, token_bytes=token_bytes)


def golden_texts():
    return [json.loads(line)["text"] for line in OWN.docs.read_text("utf-8").split("\n") if line]


# The command line.


def said(capsys, *arguments):
    code = main(["pack", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


INPUT = ("--input", OWN.docs)

TOKENIZER = ("--tokenizer-model", OWN.plain_tokenizer)
