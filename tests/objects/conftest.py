"""A server of S3 in an environment that names it and has its credentials."""

import pytest

from tests.commands.conftest import cli, in_folder, make_config
from tests.support.buckets import ENVIRONMENT, serving_buckets

__all__ = ["cli", "in_folder", "make_config"]


@pytest.fixture
def store(monkeypatch):
    """Empty buckets `out` and `src`."""
    with serving_buckets("out", "src") as buckets:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": buckets.url}.items():
            monkeypatch.setenv(name, value)
        yield buckets
