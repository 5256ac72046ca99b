"""Conversations with bad records among them."""

import pytest

from tests.support.conversations import BAD, CONVERSATIONS


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Conversations with every kind of bad record among them."""
    path = tmp_path_factory.mktemp("inputs") / "broken.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:120]
    path.write_bytes(b"\n".join([*lines[:50], *BAD, b"", *lines[50:]]) + b"\n")
    return path
