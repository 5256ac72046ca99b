"""Conversations with bad records among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.conversations import BAD, CONVERSATIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations with every kind of bad record among them."""
    path = tmp_path_factory.mktemp("inputs") / "broken.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:120]
    path.write_bytes(b"\n".join([*lines[:50], *BAD, b"", *lines[50:]]) + b"\n")
    return path
