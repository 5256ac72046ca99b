"""Where the functions run."""

import pytest


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    """Paths in results and manifests are as given; two runs with the same names differ in their folder only."""
    monkeypatch.chdir(tmp_path)
