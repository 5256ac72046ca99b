"""Commands that work in a bucket, and what the bucket then holds."""

import json

from tests.faults.corpus import TOKENIZER

CHAT = """
special_tokens: {bos_token: "<|endoftext|>", eos_token: "<|endoftext|>"}
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .instruction, .role]
message_construction: [role, instruction, conversations]
"""
"""What `dsindex instruct` is told about the conversations of the tests."""

KINDS = ("build", "merge", "pack", "instruct")


def name_job(kind, prefix, *, source, chat, shard_size="6KiB"):
    """Return the words of a command.

    Args:
        kind: One of KINDS.
        prefix: Of the output.
        source: Address of a folder with JSONL; for `merge`, of a dataset.
        chat: The file with CHAT; conversations are in the folder `c` of the source.
    """
    shared = ["--on-bad-record", "quarantine", "--workers", "2", "--shard-size", shard_size, "--executor", "local"]
    texts = ["--input", f"{source}/*.jsonl", *shared]
    output = ["--output-prefix", prefix]
    keys = ["--json-keys", "text", "title"]
    return {
        "build": ["build", *TOKENIZER, *texts, *keys, *output],
        "merge": ["merge", "--input", source, source, "--executor", "local", *output],
        "pack": ["pack", *TOKENIZER[:2], *texts, "--output", f"{prefix}.pbin"],
        "instruct": ["instruct", str(chat), *TOKENIZER[:2], "--input", f"{source}/c/*", *shared, "--split", "8,1,1",
                     "--seq-length", "768", *output],
    }[kind]  # fmt: skip


def objects(store, folder):
    """What a bucket has below a folder, as `published` tells it of a disk."""
    found = {}
    start = f"{folder}/" if folder else ""
    for key in store.names("out", start):
        content = store.content(f"out/{key}")
        name = key.removeprefix(start)
        found[name] = json.dumps(json.loads(content)["content"]).encode() if "manifest" in name else content
    return found
