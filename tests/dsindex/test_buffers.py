"""Memory that is used again for ranges of objects, and never while somebody still reads it."""

import random
import threading

import pytest

pytest.importorskip("obstore")

from dsindex.store import reading
from dsindex.store import reading as buffers
from dsindex.store.reading import ObjectReader, give_back, take_buffer
from dsindex.store.urls import Access, parse_url
from tests.support.object_server import Fault, serving_objects

MIB = 1 << 20
CONTENT = random.Random(0).randbytes(3 * MIB)


@pytest.fixture(autouse=True)
def none_spare(monkeypatch):
    monkeypatch.setattr(buffers, "_spare", type(buffers._spare)())


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr(reading, "RANGE_BYTES", 200_000)
    monkeypatch.setattr(buffers, "_UNIT_BYTES", 1000)
    with serving_objects(objects={"in/a": CONTENT, "in/b": CONTENT[::-1]}, public={"in"}) as server:
        yield server


def test_buffer_is_used_again_for_ranges_of_about_its_size():
    first = take_buffer(MIB + 1)
    assert len(first) == 2 * MIB
    give_back(first)
    assert take_buffer(2 * MIB) is first
    give_back(first)
    assert take_buffer(2 * MIB + 1) is not first  # too small
    assert take_buffer(MIB - 1) is not first  # too large: it would be wasted
    assert take_buffer(MIB) is first


def test_few_buffers_are_kept(monkeypatch):
    monkeypatch.setattr(buffers, "MOST_SPARE_BYTES", 3 * MIB)
    taken = [take_buffer(MIB) for _ in range(5)]
    for buffer in taken:
        give_back(buffer)
    again = [take_buffer(MIB) for _ in range(5)]
    assert [any(buffer is old for old in taken) for buffer in again] == [True] * 3 + [False] * 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(4))
def test_readers_side_by_side_read_what_is_there(seed, store):
    """Forwards, past ranges, back again and elsewhere, while others take the buffers that were let go."""
    store.faults += [Fault(kind="reset", operation="GetObject", after=3, times=2)]
    chosen = random.Random(seed)
    contents = {"a": CONTENT, "b": CONTENT[::-1]}
    readers = {name: ObjectReader(parse_url(f"s3://in/{name}", Access(endpoint_url=store.url))) for name in contents}
    positions = dict.fromkeys(contents, 0)
    for reader in readers.values():
        reader.expect_forwards(0, len(CONTENT))
    for _ in range(120):
        name = chosen.choice(list(contents))
        size = chosen.choice([1, 4096, 70_000, 450_000])
        offset = positions[name] if chosen.random() < 0.8 else chosen.randrange(len(CONTENT))
        buffer = bytearray(size)
        filled = readers[name].read_into(memoryview(buffer), offset)
        assert buffer[:filled] == contents[name][offset : offset + size], (name, offset, size)
        positions[name] = (offset + size) % len(CONTENT)
        if chosen.random() < 0.05:  # some requests are still under way
            readers[name].close()
            readers[name] = ObjectReader(parse_url(f"s3://in/{name}", Access(endpoint_url=store.url)))
            readers[name].expect_forwards(positions[name], len(CONTENT))
    for reader in readers.values():
        reader.close()


def test_memory_of_a_request_that_is_under_way_is_nobody_elses(store, monkeypatch):
    """Its reader was closed meanwhile, but the answer may still be written there."""
    began, goes_on = threading.Semaphore(0), threading.Event()
    written = []

    def answer_late(_url, begin, end, *, into, **_):
        written.append(into.obj)
        began.release()
        goes_on.wait()
        into[:] = bytes(end - begin)
        return into

    monkeypatch.setattr(reading, "read_range", answer_late)
    reader = ObjectReader(parse_url("s3://in/a", Access(endpoint_url=store.url)))
    reader.expect_forwards(2 * MIB, 3 * MIB)
    for _ in range(reading.RANGES_AHEAD + 1):
        assert began.acquire(timeout=60)
    reader.close()
    taken = [take_buffer(200_000) for _ in range(8)]
    goes_on.set()
    assert not any(buffer is other for buffer in taken for other in written)
