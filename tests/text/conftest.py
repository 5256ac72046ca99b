"""No state of other tests."""

import pytest

from dsindex.text import encoders


@pytest.fixture
def alone(monkeypatch):
    """No threads of `tokenizers`, and no tokenizers that other tests have left in this process."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    encoders.make_encoder.cache_clear()
