"""Shuffled documents in buckets: runs and buckets of the shuffle are objects, and the order is that of a disk."""

import math

import numpy as np
import pytest

from dsindex.engine.shards import shuffle
from dsindex.engine.shards import shuffle as document_slices
from dsindex.engine.shards.shuffle import cut_key_range, document_keys
from dsindex.errors import InputError
from dsindex.execution import local
from tests.faults.object_kills import objects
from tests.jobs.objects.conftest import make_ranges_small
from tests.jobs.objects.object_builds import build
from tests.support.published import published

SHUFFLED = {"shuffle_documents": 3, "json_keys": ("text", "title")}


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch):
    """Runs and buckets of about 6 KB, so that there are several, none of which is held in memory."""
    monkeypatch.setattr(shuffle, "MIN_OBJECT_RUN_BYTES", 6 << 10)
    monkeypatch.setattr(local, "RECENT_BYTES", 0)  # so that they are read from the store


@pytest.fixture
def expected(text, tmp_path_factory):
    """What a disk has, with one run only."""
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patched:
        make_ranges_small(patched)
        build(text, str(folder / "x"), **SHUFFLED)
    return published(folder)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_ranges")
def test_keys_that_are_not_where_they_are_expected_are_found(store, text, expected, monkeypatch):
    monkeypatch.setattr(document_slices, "expect_window", lambda count, *_: (count // 2, count // 2 + 1))
    build(text, "s3://out/data/x", **SHUFFLED)
    assert objects(store, "data") == expected


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_ranges")
def test_run_that_vanishes_is_named_and_made_again(store, text, expected):
    def vanish(moment, operation, target):
        if moment == "arrived" and operation == "PutObject" and "/bucket-" in target:
            for name in store.names("out", "data/x.build/shards/"):
                if name.endswith(".order"):
                    del store.objects[f"out/{name}"]

    store.watch = vanish
    with pytest.raises(InputError, match=r"/run-.*\.order: cannot be read \(it was removed meanwhile\); run the same"):
        build(text, "s3://out/data/x", workers=1, **SHUFFLED)
    store.watch = None
    build(text, "s3://out/data/x", **SHUFFLED)
    assert objects(store, "data") == expected


def test_keys_are_read_around_their_place():
    """The keys of a range are in the window where they are expected, which is little larger than they need."""
    keys = np.sort(document_keys(7, 0, 300_000))
    for low, high in cut_key_range(40):
        begin, end = document_slices.expect_window(len(keys), low, high)
        window = keys[begin:end]
        assert document_slices.reaches_beyond(window, (begin, end), len(keys), low, high)
        assert len(window) < 300_000 / 40 + 9 * math.isqrt(300_000)
