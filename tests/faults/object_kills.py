"""Drivers that work in a bucket, killed when the store has been asked so often; and what the bucket then holds."""

import json
import os
import shutil
import signal
from collections import Counter

from tests.faults.corpus import BROKEN, TOKENIZER, write_corpus
from tests.support.conversations import CONVERSATIONS

CHAT = """
special_tokens: {bos_token: "<|endoftext|>", eos_token: "<|endoftext|>"}
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .instruction, .role]
message_construction: [role, instruction, conversations]
"""
"""What `dsindex instruct` is told about the conversations of the tests."""
KINDS = ("piped", "shuffle", "pack", "instruct")
"""Jobs that are not a plain build."""


def write_texts(folder):
    """Write what the jobs read: `a.jsonl`, some of it broken, and `c/chat.jsonl`."""
    broken = dict(zip(range(9, 200, 41), BROKEN.values(), strict=False))
    write_corpus(folder / "a.jsonl", num_lines=200, broken=broken)
    (folder / "c").mkdir()
    shutil.copy(CONVERSATIONS, folder / "c" / "chat.jsonl")
    return folder


def name_job(kind, prefix, *, source, chat):
    """Return the words of a command.

    Args:
        kind: One of KINDS, or `merge`.
        prefix: Of the output.
        source: Address of the folder that `write_texts` filled; for `merge`, the address of a dataset.
        chat: The file with CHAT.
    """
    shared = ["--on-bad-record", "quarantine", "--workers", "2", "--shard-size", "6KiB", "--executor", "local"]
    output = ["--output-prefix", prefix]
    if kind == "merge":
        return ["merge", "--input", source, source, "--executor", "local", *output]
    if kind == "piped":
        return ["build", *TOKENIZER, "--input", "-", *shared, *output]
    if kind == "shuffle":
        order = ["--shuffle-documents", "3", "--json-keys", "text", "title"]
        return ["build", *TOKENIZER, "--input", f"{source}/*.jsonl", *shared, *order, *output]
    if kind == "pack":
        return ["pack", *TOKENIZER[:2], "--input", f"{source}/*.jsonl", *shared, "--output", f"{prefix}.pbin"]
    parts = ["--split", "8,1,1", "--seq-length", "768"]
    return ["instruct", str(chat), *TOKENIZER[:2], "--input", f"{source}/c/*", *shared, *parts, *output]


def objects(store, folder):
    """What a bucket has below a folder, as `published` tells it of a disk."""
    found = {}
    start = f"{folder}/" if folder else ""
    for key in store.names("out", start):
        content = store.content(f"out/{key}")
        name = key.removeprefix(start)
        found[name] = json.dumps(json.loads(content)["content"]).encode() if "manifest" in name else content
    return found


def count_moments(store, run):
    told = Counter()
    store.watch = lambda moment, *_: told.update([moment])
    run()
    store.watch = None
    return told


def kill_at(store, pid_file, number, moment):
    """Kill the process whose id is in a file when so many requests have come to this moment."""
    left = number

    def watch(now, *_):
        nonlocal left
        if now == moment:
            left -= 1
            if left == 0:
                os.kill(int(pid_file.read_text()), signal.SIGKILL)

    store.watch = watch
