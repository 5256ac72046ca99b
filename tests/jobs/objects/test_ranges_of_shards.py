"""Ranges of an output in a bucket, wherever the bytes of their shards are when they are merged."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")


from dsindex.engine import merge as ranges
from tests.jobs.objects.object_builds import build, built, on_disk


@pytest.mark.quick(2)
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    ("held_bytes", "memory_bytes"),
    [(1 << 20, 1 << 20), (30_000, 1 << 20), (0, 1 << 20), (0, 0)],
    ids=["all held", "some held", "fetched", "in a file"],
)
def test_ranges_are_the_same_wherever_their_shards_are(held_bytes, memory_bytes, store, text, tmp_path, monkeypatch):
    monkeypatch.setattr(ranges, "MEMORY_BYTES", memory_bytes)
    build(text, "s3://out/x")
    fetched = {request for request in store.requests if request.startswith("GET") and ".0.bin" in request}
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert bool(fetched) is (held_bytes < 1 << 20)


def test_large_shards_go_through_a_file(store, text, tmp_path, monkeypatch):
    monkeypatch.setattr("dsindex.engine.shards.attempt.HELD_BYTES", 100)
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")
