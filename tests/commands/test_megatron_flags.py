"""Commands of preprocess_data.py: one word changed, they run, and every flag is taken, named or refused."""

import json

import pytest

from dsindex.datasets import IndexedDataset
from dsindex.errors import UsageError
from dsindex.options.build import BuildConfig
from tests.support.foreign_tokenizers import rank_entries
from tests.support.golden import GOLDEN, TOKENIZERS

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


@pytest.fixture
def run(folder, cli):  # noqa: ARG001 - the working folder
    """Run a command in the folder; returns what it prints."""
    return lambda *words, code=0: cli(words, code)


def tokens_of(prefix="processed_data"):
    dataset = IndexedDataset(f"{prefix}_text_document")
    return [dataset[number].tolist() for number in range(len(dataset))]


@pytest.mark.parametrize("command", [QUICKSTART, FAST], ids=["quickstart", "fast"])
def test_documented_command_runs_with_one_word_changed(run, command):
    model = str(TOKENIZERS["plain"])
    run("build", *command.replace("/path/to/tokenizer.model", model).split()[2:])
    run("build", "--input", "data.jsonl", "--output-prefix", "own", "--append-eod", "--tokenizer-model", model)
    assert tokens_of() == tokens_of("own")


def test_ranks_are_found_again_by_verify(folder, run):
    (folder / "vocab.json").write_text(json.dumps(rank_entries()))
    flags = ["--tokenizer-type", "TikTokenizer", "--vocab-size", "560", "--tiktoken-num-special-tokens", "9"]
    base = ["--input", "data.jsonl", "--output-prefix", "processed_data", "--tokenizer-model", "vocab.json"]
    run("build", *base, "--append-eod", *flags)
    manifest = json.loads((folder / "processed_data_text_document.manifest.json").read_text())
    options = {"vocab_size": 560, "tiktoken_num_special_tokens": 9}
    assert manifest["content"]["tokenizer"].get("options") == options
    assert "1 of 1 shards tokenized again" in run("verify", "processed_data_text_document", "--against-source").out


def test_gpt2_files_take_the_place_of_the_model(folder, run):
    model = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
    (folder / "gpt2-vocab.json").write_text(json.dumps(model["vocab"]))
    lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (folder / "gpt2-merges.txt").write_text("#version: 0.2\n" + "".join(f"{line}\n" for line in lines))
    base = ["build", "--input", "data.jsonl", "--append-eod", "--output-prefix"]
    files = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "gpt2-vocab.json"]
    files += ["--merge-file", "gpt2-merges.txt"]
    run(*base, "processed_data", *files)
    run(*base, "own", "--tokenizer-model", str(TOKENIZERS["gpt2"]))
    assert tokens_of() == tokens_of("own")
    run("verify", "processed_data_text_document", "--against-source")
    assert "--vocab-file needs --merge-file" in run(*base, "half", *files[:4], code=2).err


def test_other_types_are_refused_with_a_reason():
    with pytest.raises(UsageError, match=r"^--tokenizer-type: 'Gpt2' is not one of HuggingFaceTokenizer, "):
        BuildConfig(input=["a"], output_prefix="o", tokenizer_model="t", tokenizer_type="Gpt2")
