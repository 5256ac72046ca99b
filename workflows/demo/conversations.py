"""Conversations for the demo and the tests, made from the demo's documents, a few turns each."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from workflows.demo.texts import demo_documents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LONGEST_TURN = 400
_MOST_EXCHANGES = 6


def write_demo_conversations(path: Path, *, num_conversations: int, seed: int = 2026) -> None:
    """Write conversations as JSONL; the same seed yields the same bytes."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in demo_conversations(num_conversations, seed=seed):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def demo_conversations(num_conversations: int, *, seed: int = 2026) -> Iterator[dict[str, Any]]:
    """Yield records with `id`, `conversations` (`from`, `value`), `instruction` and `role`."""
    rng = random.Random(seed)
    for document in demo_documents(num_conversations, seed=seed):
        turns = [document.title, *(line[:_LONGEST_TURN] for line in document.text.splitlines() if line.strip())]
        num_turns = 2 * min(len(turns) // 2, 1 + rng.randrange(_MOST_EXCHANGES))
        yield {
            "id": document.id,
            "conversations": [
                {"from": "gpt" if number % 2 else "human", "value": turn}
                for number, turn in enumerate(turns[:num_turns])
            ],
            "instruction": f"Answer in {document.lang}.",
            "role": "A patient assistant",
        }
