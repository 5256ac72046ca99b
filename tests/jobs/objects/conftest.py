"""A store that takes what jobs write, in an environment that has its credentials and names it."""

import pytest

from dsindex.engine import merge as ranges
from tests.faults.corpus import write_corpus
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, serving_objects

STEP = 4096
"""Bytes of a range, and so of a part, in tests that use `small_ranges`."""


@pytest.fixture
def store(monkeypatch):
    """A store with an empty bucket `out`; modules that read from it override this and add what they read."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with serving_objects(min_part_bytes=1, equal_parts=True, buckets={"out"}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


@pytest.fixture
def small_ranges(monkeypatch):
    """Outputs of several parts, however small."""
    make_ranges_small(monkeypatch)


def make_ranges_small(monkeypatch):
    """Let ranges, and so parts, be of STEP bytes; digests of files are then others, too."""
    monkeypatch.setattr(ranges, "range_bytes", lambda _total: STEP)
    monkeypatch.setattr(ranges, "DIGEST_BLOCK_BYTES", STEP)
    monkeypatch.setattr(ranges, "COPY_BYTES", STEP // 4)
    monkeypatch.setattr("dsindex.store.storage.DIGEST_BLOCK_BYTES", STEP)


@pytest.fixture
def text(tmp_path):
    """300 records."""
    path = tmp_path / "text.jsonl"
    write_corpus(path, num_lines=300, broken={})
    return path
