"""How datasets in object stores are read: ranges, read-ahead, requests in flight, and the files that are kept."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("obstore")

from dsindex.datasets.reading_order import ReadingOrder
from dsindex.errors import InputError
from dsindex.store import ranges
from dsindex.store import ranges as kept
from dsindex.store.ranges import ObjectArray, ObjectRanges
from dsindex.store.requests import Gate, gate_of
from dsindex.store.storage import local_copy
from dsindex.store.stores import head_object
from dsindex.store.urls import Access, ObjectIdentity, ObjectUrl, parse_url
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault, serving_objects

CONTENT = np.random.default_rng(5).bytes(3000)
URL = ObjectUrl("s3://b/a", identity=ObjectIdentity(size_bytes=len(CONTENT), version='"1"'))


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving_objects(objects={f"b/{name}.idx": name.encode() * 5000 for name in "abc"}) as server:
        yield server


def address(store, key):
    return parse_url(f"s3://b/{key}", Access(endpoint_url=store.url))


@pytest.fixture
def asked(monkeypatch):
    """The requests for CONTENT, which is read without a server, in pieces so small that all limits are met."""
    made = []

    def read_range(url, begin, end, **__):
        if url == URL:  # and not a request that an earlier test no longer waits for
            made.append((begin, end))
        return CONTENT[begin:end]

    limits = {
        "BLOCK_BYTES": 256,
        "RANGE_BYTES": 128,
        "KEPT_BYTES": 700,
        "JOINED_BYTES": 8,
        "SMALL_BYTES": 0,
        "AHEAD_BYTES": 200,
    }
    for name, value in {**limits, "FIRST_BYTES": 32, "read_range": read_range}.items():
        monkeypatch.setattr(ranges, name, value)
    return made


part = st.tuples(st.integers(0, 2999), st.integers(0, 400)).map(lambda pair: (pair[0], min(sum(pair), 3000)))


@pytest.mark.usefixtures("asked")
@given(batches=st.lists(st.lists(part, max_size=6), max_size=12), small=st.booleans())
def test_any_ranges_are_read_as_they_are(batches, small):
    ranges.SMALL_BYTES = 5000 if small else 0
    reader = ObjectRanges(URL.with_key("any", identity=URL.identity))
    for wanted in batches:
        found = reader.read_many(wanted, later=[(0, 900)])
        assert found == [CONTENT[begin:end] for begin, end in wanted]
        reader.expect(wanted[::-1])
        for begin, end in wanted:
            assert reader.read(begin, end) == CONTENT[begin:end]
    reader.close()


def test_neighbours_are_asked_for_together_and_once(asked):
    reader = ObjectRanges(URL)
    reader.read_many([(100, 120), (122, 140), (300, 310)])
    reader.read_many([(105, 139)])
    assert sorted(asked) == [(100, 140), (300, 310)]


def test_small_objects_are_read_by_blocks_while_all_of_them_can_be_kept(asked, monkeypatch):
    for name, value in {"SMALL_BYTES": 4000, "RANGE_BYTES": 256}.items():
        monkeypatch.setattr(ranges, name, value)
    first, second = ObjectRanges(URL), ObjectRanges(URL)
    first.read_many([(300, 301)])
    second.read_many([(300, 301)])
    first.close()
    ObjectRanges(URL).read_many([(300, 301)])
    assert asked == [(256, 512), (300, 301), (256, 512)]


def test_reader_that_goes_forwards_asks_for_more_each_time(asked):
    reader = ObjectRanges(URL)
    for begin in range(0, 3000, 10):
        reader.read(begin, begin + 10)
    assert len(asked) < 50
    assert max(end - begin for begin, end in asked) > 64


def test_array_is_sliced_and_indexed_as_numpy_does(asked):
    array, plain = ObjectArray(URL, np.dtype("<u2"), offset=4), np.frombuffer(CONTENT, "<u2", offset=4)
    numbers = np.array([5, 900, -1, 5, 6, 7])
    assert len(array) == array.size == len(plain)
    assert (array[3:700] == plain[3:700]).all()
    assert (array[::-7] == plain[::-7]).all()
    assert (array[numbers] == plain[numbers]).all()
    assert array[-2] == plain[-2]
    assert len(array[5:2]) == 0
    with pytest.raises(IndexError):
        array[len(plain)]
    with pytest.raises(ValueError, match="read-only"):
        array[:3][0] = 1
    assert asked


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[0], [1], [2], [3]], [[], [], [3, 4], [5, 6, 7]]),
        ([[0, 1], [8, 9], [16, 17]], [[], [], [24, 25, 32, 33]]),
        ([[7, 3], [7, 3]], [[], []]),
        ([[0], [1], [2], [9], [10], [11]], [[], [], [3, 4], [], [], [12, 13]]),
        ([[0], [1], [2], []], [[], [], [3, 4], []]),
    ],
    ids=["samples", "batches of a worker", "the same again", "a jump", "nothing"],
)
def test_next_batches_are_told_from_the_steps_before(batches, expected):
    order = ReadingOrder()
    assert [order.expected_after(batch, most=64) for batch in batches] == expected


def test_nothing_is_expected_twice_and_no_more_than_allowed():
    order, seen = ReadingOrder(), []
    for number in range(300):
        found = order.expected_after([number], most=20)
        assert all(number < each <= number + 20 for each in found)
        seen += found
    assert seen == sorted(set(seen))


def test_store_that_asks_to_slow_down_has_fewer_requests_in_flight():
    gate = Gate(most=16)
    with gate.passing() as one, gate.passing() as other:
        gate.slow_down(one)
        gate.slow_down(other)  # it was under way before the first was refused
    assert gate.limit == 8
    with gate.passing() as later:
        gate.slow_down(later)
    assert gate.limit == 4
    for _ in range(4):
        gate.succeed()
    assert gate.limit == 5
    for _ in range(500):
        gate.succeed()
    assert gate.limit == 16


def test_no_more_requests_pass_than_a_gate_allows():
    gate, running, most = Gate(most=3), [], []
    lock = threading.Lock()

    def request():
        with gate.passing():
            with lock:
                running.append(1)
                most.append(len(running))
            time.sleep(0.001)
            with lock:
                running.pop()

    threads = [threading.Thread(target=request) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 3


def test_refusals_of_a_store_lower_its_limit_only(store):
    store.objects |= {"slow/a": b"1", "quick/a": b"2"}
    store.faults.append(Fault(kind="503", match="/slow/", times=2))
    slow, quick = (parse_url(f"s3://{bucket}/a", Access(endpoint_url=store.url)) for bucket in ("slow", "quick"))
    _, head = head_object(slow)
    head_object(quick)
    assert head == b"1"
    assert (gate_of(slow).limit, gate_of(quick).limit) == (16, 64)


def test_objects_are_kept_and_fetched_again_when_they_change(store):
    first = local_copy(address(store, "a.idx"))
    assert local_copy(address(store, "a.idx")) == first
    assert store.count("bytes=0-4999") == 1
    store.objects["b/a.idx"] = b"A" * 5000
    changed = local_copy(address(store, "a.idx"))
    assert changed != first
    assert Path(changed).read_bytes() == b"A" * 5000


def test_processes_that_ask_together_fetch_once(store):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(local_copy(address(store, "a.idx")))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 6
    assert len(set(paths)) == 1
    assert store.count("bytes=0-4999") == 1


def test_only_own_files_are_removed_when_there_are_too_many(store, monkeypatch):
    monkeypatch.setenv(kept.CAP_VARIABLE, "0.00001")  # two of them
    first, second = (local_copy(address(store, key)) for key in ("a.idx", "b.idx"))
    folder = os.path.dirname(first)
    foreign = os.path.join(folder, "0123456789abcdef0123456789abcdef")
    with open(foreign, "wb") as file:
        file.write(bytes(50_000))
    for age, path in ((3000, foreign), (1000, second), (2000, first)):
        os.utime(path, (time.time() - age,) * 2)
    third = local_copy(address(store, "c.idx"))
    assert [os.path.exists(path) for path in (first, second, third, foreign)] == [False, True, True, True]


def test_folder_that_cannot_keep_is_one_sentence(store, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        local_copy(address(store, "a.idx"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(kept.CAP_VARIABLE, "much")
    with pytest.raises(InputError, match="expected a number of GB such as 50, got 'much'"):
        local_copy(address(store, "a.idx"))
