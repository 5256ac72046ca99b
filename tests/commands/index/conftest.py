"""Two datasets to index."""

import json

import pytest

from tests.commands.index.index_jobs import IDENTIFIERS
from tests.support.datasets import write_dataset


@pytest.fixture
def folder(in_folder):
    """Two datasets `web` and `books`, and a tokenizer's identifiers, in the current folder."""
    write_dataset(in_folder / "web", [[[1] * length] for length in [20, 50, 60, 30, 100, 5] * 40])
    write_dataset(in_folder / "books", [[[1] * length] for length in [500, 0, 1] * 20])
    (in_folder / "identifiers.json").write_text(json.dumps(IDENTIFIERS))
    return in_folder
