"""Commands of preprocess_data.py: one word changed, they run, and every flag is taken, named or refused."""

import json

import pytest

from tests.support.foreign_tokenizers import rank_entries
from tests.support.golden import GOLDEN, TOKENIZERS
from tests.support.published import read_pair

QUICKSTART = (
    "python tools/preprocess_data.py --input data.jsonl --output-prefix processed_data "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /path/to/tokenizer.model --workers 8 --append-eod"
)
"""From docs/get-started/quickstart.md of Megatron-LM, as are the flags of the next from its docs/user-guide."""
FAST = QUICKSTART.replace("--workers 8", "--json-keys text --use-gigatoken")
TEXTS = [json.loads(line)["text"] for line in (GOLDEN / "docs.jsonl").read_bytes().split(b"\n")[:40]]


@pytest.fixture
def folder(in_folder):
    (in_folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return in_folder


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [QUICKSTART, FAST], ids=["quickstart", "fast"])
def test_documented_command_runs_with_one_word_changed(cli, command):
    model = str(TOKENIZERS["plain"])
    cli(command.replace("/path/to/tokenizer.model", model).replace("python tools/preprocess_data.py", "build"))
    cli(f"build --input data.jsonl --output-prefix own --append-eod --tokenizer-model {model}")
    assert read_pair("processed_data_text_document") == read_pair("own_text_document")


def test_ranks_are_found_again_by_verify(folder, cli):
    (folder / "vocab.json").write_text(json.dumps(rank_entries()))
    flags = "--tokenizer-type TikTokenizer --vocab-size 560 --tiktoken-num-special-tokens 9"
    cli(f"build --input data.jsonl --append-eod --output-prefix processed_data --tokenizer-model vocab.json {flags}")
    manifest = json.loads((folder / "processed_data_text_document.manifest.json").read_text())
    options = {"vocab_size": 560, "tiktoken_num_special_tokens": 9}
    assert manifest["content"]["tokenizer"].get("options") == options
    assert "1 of 1 shards tokenized again" in cli("verify processed_data_text_document --against-source").out


def test_gpt2_files_take_the_place_of_the_model(folder, cli):
    model = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
    (folder / "gpt2-vocab.json").write_text(json.dumps(model["vocab"]))
    lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (folder / "gpt2-merges.txt").write_text("#version: 0.2\n" + "".join(f"{line}\n" for line in lines))
    words = "build --input data.jsonl --append-eod --output-prefix"
    vocabulary = "--tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json"
    cli(f"{words} processed_data {vocabulary} --merge-file gpt2-merges.txt")
    cli(f"{words} own --tokenizer-model {TOKENIZERS['gpt2']}")
    assert read_pair("processed_data_text_document") == read_pair("own_text_document")
    cli("verify processed_data_text_document --against-source")
    assert "--vocab-file needs --merge-file" in cli(f"{words} half {vocabulary}", 2).err
