"""Drivers that work in a bucket, killed when the store has been asked so often; and what the bucket then holds."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.object_server import ObjectServer

CHAT = """
special_tokens: {bos_token: "<|endoftext|>", eos_token: "<|endoftext|>"}
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .instruction, .role]
message_construction: [role, instruction, conversations]
"""
"""What `dsindex instruct` is told about the conversations of the tests."""


def objects(store: ObjectServer, folder: str) -> dict[str, bytes]:
    """What a bucket has below a folder, as `published` tells it of a disk."""
    found = {}
    start = f"{folder}/" if folder else ""
    for key in store.names("out", start):
        content = store.content(f"out/{key}")
        name = key.removeprefix(start)
        found[name] = json.dumps(json.loads(content)["content"]).encode() if "manifest" in name else content
    return found


def count_moments(store: ObjectServer, run: Callable[[], object]) -> Counter[str]:
    told: Counter[str] = Counter()
    store.watch = lambda moment, *_: told.update([moment])
    run()
    store.watch = None
    return told


def kill_at(store: ObjectServer, pid_file: Path, number: int, moment: str) -> None:
    """Kill the process whose id is in a file when so many requests have come to this moment."""
    left = number

    def watch(now: str, *_: str) -> None:
        nonlocal left
        if now == moment:
            left -= 1
            if left == 0:
                os.kill(int(pid_file.read_text()), signal.SIGKILL)

    store.watch = watch
