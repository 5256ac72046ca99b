"""Where the functions run."""

import pytest


@pytest.fixture(autouse=True)
def _in_folder(in_folder):
    """Paths in results and manifests are as given; two runs with the same names differ in their folder only."""
