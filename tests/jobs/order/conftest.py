"""Three small files, and small runs."""

import pytest

from dsindex.engine.shards import shuffle
from tests.faults.corpus import BROKEN, write_corpus
from tests.jobs.order.ordered_builds import FILES


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, num_lines) in enumerate(FILES.items()):
        broken = {7: BROKEN["not JSON"], 20: BROKEN["null"]} if name == "b" else {}
        write_corpus(folder / name, num_lines=num_lines, broken=broken, seed=seed)
    return folder


@pytest.fixture
def small_runs(monkeypatch):
    """Runs and buckets of about 24 KB, so that there are several."""
    monkeypatch.setattr(shuffle, "MIN_RUN_BYTES", 24 << 10)
