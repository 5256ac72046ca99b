"""Both stores keep the same promises; requests that fail are made again or become one sentence without secrets."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("obstore")

from dsindex.errors import DsindexError, InputError, MissingObjectError, OutputError, PlanError
from dsindex.store import lock as lease
from dsindex.store.lock import hold_lock
from dsindex.store.protocol import find, open_output, store_of
from dsindex.store.read import digest_file, input_status, map_file, open_items, open_stored
from tests.support.buckets import CUT, LOST, SECRET_KEY

CONTENT = os.urandom(3 << 20)


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    if request.param == "disk":
        return f"{tmp_path}/place"
    request.getfixturevalue("store")
    return "s3://out/place"


def test_writes_replace(place):
    stored, path = store_of(place), f"{place}/a"
    assert find(path) is None
    assert stored.read(path) is None
    stored.put(path, b"one")
    stored.put(path, b"three")
    assert stored.read(path)[0] == b"three"
    assert input_status(path).size_bytes == 5


@pytest.mark.usefixtures("store")
def test_conditions_of_writes_hold():
    path = "s3://out/a"
    objects = store_of(path)
    first = objects.put_if(path, b"one")
    assert first
    assert objects.put_if(path, b"two") is None
    second = objects.put_if(path, b"two", first)
    assert second
    assert objects.put_if(path, b"three", first) is None
    assert objects.put_if("s3://out/none", b"x", first) is None
    assert objects.read(path) == (b"two", second)
    objects.put(path, b"three")
    assert objects.put_if(path, b"four", second) is None


def test_listing_is_sorted_and_removal_is_idempotent(place):
    store = store_of(place)
    for name in ("b", "a/2", "a/1", "ab"):
        store.put(f"{place}/{name}", name.encode())
    entries = store.list(place)
    assert [entry.path for entry in entries] == [f"{place}/{name}" for name in ("a/1", "a/2", "ab", "b")]
    assert [entry.size_bytes for entry in entries] == [3, 3, 2, 1]
    assert [entry.path for entry in store.list(place, recursive=False)] == [f"{place}/ab", f"{place}/b"]
    assert not store.delete([f"{place}/ab", f"{place}/none"])
    assert len(store.list(place)) == 3
    assert not store.list(f"{place}/nothing")


def test_writer_is_whole_or_absent(place):
    path = f"{place}/x.bin"
    with contextlib.suppress(KeyError), open_output(path) as file:
        file.write(CONTENT)
        raise KeyError
    assert find(path) is None
    buffer = bytearray(65_536)
    with open_output(path, size_bytes=len(CONTENT)) as file:
        for begin in range(0, len(CONTENT), len(buffer)):  # a buffer that is filled again and again, as callers do
            buffer[:] = CONTENT[begin : begin + len(buffer)]
            file.write(memoryview(buffer))
    assert digest_file(path) == file.hexdigest()
    with open_stored(path) as reader:
        assert reader.read() == CONTENT
    assert bytes(map_file(path)) == CONTENT


def test_parts_suffice_for_a_large_object(store, monkeypatch):
    chosen = {}
    monkeypatch.setattr("obstore.open_writer", lambda *_, **options: chosen.update(options) or contextlib.nullcontext())
    with contextlib.suppress(AttributeError), open_output("s3://out/x", size_bytes=5 << 40):
        pass
    assert chosen["buffer_size"] * 10_000 > 5 << 40
    assert store.url


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("way", ["forwards", "here and there"])
def test_ranges_are_those_of_the_content(way):
    path = "s3://out/x"
    store_of(path).put(path, CONTENT)
    with store_of(path).open(path) as file:
        if way == "forwards":
            file.expect_forwards(0, len(CONTENT))
        for offset in range(0, len(CONTENT), 70_001):
            assert file.read_at(70_001, offset) == CONTENT[offset : offset + 70_001]
        assert file.read_at(10, len(CONTENT) - 4) == CONTENT[-4:]
        assert file.read_at(10, len(CONTENT)) == b""
        assert file.read_at(5, 3) == CONTENT[3:8]


@pytest.mark.usefixtures("store")
def test_array_of_an_object():
    path = "s3://out/x"
    store_of(path).put(path, CONTENT)
    plain = np.frombuffer(CONTENT, "<u2")[5:]
    array = open_items(path, np.dtype("<u2"), offset=10)
    assert len(array) == len(plain)
    for items in (slice(3, 9), slice(0, 0), slice(9, 2), slice(-5, None)):
        assert np.array_equal(array[items], plain[items])
    store_of(path).put(path, CONTENT[::-1])
    with pytest.raises(InputError, match="replaced while the job ran"):
        array[600_000:600_005]


@pytest.mark.parametrize("kind", [500, 503, CUT, LOST])
def test_what_passes_is_tried_again(store, kind):
    objects = store_of("s3://out/x")
    store.fail("/out/x", kind, times=2)
    objects.put("s3://out/x", CONTENT)
    store.fail("/out/x", kind, times=2)
    assert objects.read("s3://out/x")[0] == CONTENT
    store.fail("PUT /out/y", kind)
    assert objects.put_if("s3://out/y", b"mine")  # though an answer was lost
    store.fail("/out", kind, times=2)
    assert len(objects.list("s3://out/")) == 2


@pytest.mark.parametrize(("code", "status", "words"), [
    ("AccessDenied", 403, "AccessDenied: the store does not allow it)\nhint: check what this node's"),
    ("InvalidAccessKeyId", 403, "InvalidAccessKeyId"),
    ("NoSuchBucket", 404, "there is no such bucket)\nhint: check its name"),
    ("InvalidRequest", 400, "the store cannot be reached, or keeps refusing"),
])  # fmt: skip
def test_refusal_is_one_sentence(store, code, status, words):
    for read in (store_of("s3://out/x").list, store_of("s3://out/x").read):
        store.fail("/out", status, times=1, code=code)
        try:
            assert not read("s3://out/x")
        except InputError as error:
            message = str(error)
            assert words in message
            assert message.startswith("s3://out/x: cannot be read (")
            assert message.count("\n") == 1
            assert SECRET_KEY not in message
            assert "AWS4" not in message
    store.fail("/out", status, times=9, code=code)
    with pytest.raises(OutputError, match="s3://out/x: cannot be written"):
        store_of("s3://out/x").put("s3://out/x", b"")


def test_signed_web_address_is_read_and_not_shown(store):
    from dsindex.store.urls import locate

    store.put("src/a.jsonl", CONTENT)
    signed = store.client.generate_presigned_url("get_object", Params={"Bucket": "src", "Key": "a.jsonl"})
    path = locate(signed)
    assert "?" not in path
    with store_of(path).open(path) as file:
        assert file.read_at(100, 5) == CONTENT[5:105]
    gone = locate(signed.replace("a.jsonl", "b.jsonl"))
    with pytest.raises(MissingObjectError) as failure:
        input_status(gone)
    assert "Signature" not in str(failure.value)


def test_refused_keys_of_a_removal_are_left(store):
    objects = store_of("s3://out/x")
    for name in "abc":
        objects.put(f"s3://out/{name}", b"")
    store.fail("POST /out.*delete", 403, times=2, code="AccessDenied")
    assert objects.delete([f"s3://out/{name}" for name in "abc"]) == ["s3://out/a"]
    assert store.names("out") == ["a"]


def test_second_driver_is_refused_by_name(place):
    lock_path = f"{place}-lock"
    with hold_lock(lock_path, resource="the output x") as lock:
        lock.require_held()
        assert find(lock_path) is not None
        with pytest.raises(PlanError, match=f"another driver .process {os.getpid()} on .* works on the output x"):
            hold_lock(lock_path, resource="the output x").__enter__()
    assert find(lock_path) is None
    with hold_lock(lock_path, resource="the output x"):
        pass


def test_lock_of_a_killed_owner_is_taken_at_once(place):
    """Without a lease of 60 seconds, as the process of this machine is known to have ended."""
    lock_path = f"{place}-lock"
    command = f"import time; from dsindex.store import lock; held = lock.hold_lock({lock_path!r}, resource='x'); "
    command += "held.__enter__(); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"1\n"
        with pytest.raises(PlanError, match=f"process {owner.pid} on"):
            hold_lock(lock_path, resource="x").__enter__()
        owner.kill()
    with hold_lock(lock_path, resource="x") as lock:
        lock.require_held()


def test_lease_lapses(monkeypatch, store):
    driver = lease._describe_driver()
    content = driver.replace(b'"host": "', b'"host": "another-').replace(b'"pid": ', b'"pid": 9999999')
    store.put("out/lock", content)
    with pytest.raises(PlanError, match="its lock lapses in"):
        hold_lock("s3://out/lock", resource="x").__enter__()
    monkeypatch.setattr(lease, "LEASE_SECONDS", -1.0)
    with hold_lock("s3://out/lock", resource="x"):
        assert store.content("out/lock") != content


def test_forked_process_is_refused(store):
    store.put("src/a", b"")
    assert input_status("s3://src/a").size_bytes == 0  # which has no first byte to ask for
    child = os.fork()
    if not child:
        try:
            input_status("s3://src/a")
        except DsindexError as error:
            os._exit(7 if "spawn" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
