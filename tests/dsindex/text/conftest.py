"""No state of other tests."""

import pytest

from dsindex.text import fast_tokenizers


@pytest.fixture
def alone(monkeypatch):
    """No threads of `tokenizers`, and no tokenizers that other tests have left in this process."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(fast_tokenizers, "_SHARED", {})
