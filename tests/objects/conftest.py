import pytest

from dsindex.engine.progress import Reporter
from tests.jobs.conftest import make_config

__all__ = ["make_config"]


@pytest.fixture
def quiet():
    return Reporter()
