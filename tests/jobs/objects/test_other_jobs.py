"""Jobs other than build whose inputs are in object stores, and what cannot be there."""

import pytest

pytest.importorskip("obstore")

from tests.support.conversations import CONVERSATIONS
from tests.support.golden import OWN

TOKENIZER = str(OWN.plain_tokenizer)
CHAT = """
special_tokens: {bos_token: "<|endoftext|>", eos_token: "<|endoftext|>"}
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .instruction, .role]
message_construction: [role, instruction, conversations]
"""


@pytest.fixture
def store(store, monkeypatch, tmp_path):
    """The store with documents and conversations in the bucket `b`, and an empty current folder."""
    store.objects |= {"b/docs.jsonl": OWN.docs, "b/chat.jsonl": CONVERSATIONS}
    monkeypatch.chdir(tmp_path)
    return store


OUTPUTS = {
    "report": ("report x --output s3://b/r.html", 2),
    "demo": ("demo --output s3://b/demo", 1),
    "raw-index": ("raw-index docs.jsonl --output s3://b/docs.idx", 1),
}


def test_caches_are_refused_with_the_reason(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    words = ["index", "--data-path", "x", "--seq-length", "8", "--epochs", "1", "--data-cache-path", "s3://b/cache"]
    shown = cli(words, 2).err
    assert "--data-cache-path: s3://b/cache: expected a folder, got an address: a training job maps" in shown
    assert not (tmp_path / "s3:").exists()


OTHERS = {
    "options": "build --config s3://b/build.yaml",
    "instruction": "instruct s3://b/chat.yaml --input a --tokenizer-model t --output-prefix x",
    "tokenizer": f"build --input {OWN.docs} --tokenizer-model s3://b/t --output-prefix x",
    "list": f"build --input-list s3://b/list --tokenizer-model {TOKENIZER} --output-prefix x",
}


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_address_of_a_file_that_is_no_input_is_refused(command, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    shown = cli(command.split(), 1).err
    assert ": expected a path, got an address: only inputs are read from object stores; copy it" in shown
    assert "s3://b/" in shown
