"""Conversations and instruction configurations that tests in several folders share."""

import json

from dsindex.chat.config import parse_config
from tests.support.golden import GOLDEN

CONVERSATIONS = GOLDEN / "conversations.jsonl"
SPEC = {
    "special_tokens": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "loss_masking_jq_patterns": ['.conversations | select(.from == "human")', ".instruction", ".role"],
    "message_construction": ["role", "instruction", "conversations"],
}
BAD = {
    b"{broken": "bad-json",
    b'{"role": "x", "instruction": "y", "conversations": []}': "no-turns",
    b'{"role": "x", "instruction": "y", "conversations": [{"from": "bot", "value": "z"}]}': "unknown-role",
    b'{"role": "x", "instruction": "y", "conversation": [{"from": "human", "value": "z"}]}': "missing-field",
    b'{"role": "x", "instruction": "y", "conversations": [{"from": "human", "value": "z"}]}': "no-trained-tokens",
    b'{"role": "x", "instruction": "y", "conversations": [{"from": "gpt", "value": "z"}]}': "pattern-no-match",
    b'{"role": "\\ud800", "instruction": "y", "conversations": [{"from": "gpt", "value": "z"}]}': "bad-text",
}
# The example in Modalities' indexed_dataset_and_finetuning.md.
SPEC_YAML = (GOLDEN / "spec.yaml").read_text()
SPEC_RECORD = json.loads((GOLDEN / "spec.jsonl").read_text())
HUMAN = """
message_construction: [role, conversations]
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .role]
"""


def conversation(*turns, **fields):
    roles = ("human", "gpt")
    return {"conversations": [{"from": roles[i % 2], "value": text} for i, text in enumerate(turns)], **fields}


def config(text):
    return parse_config("special_tokens: {bos_token: <s>, eos_token: </s>}\n" + text)
