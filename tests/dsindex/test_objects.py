"""Reads of object stores: addresses, ranges, failures, buffers, read-ahead, kept files and redirects."""

from __future__ import annotations

import copy
import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError
from hypothesis import given
from hypothesis import strategies as st

from dsindex.errors import InputError, StoreError
from dsindex.json_text import encode_json
from dsindex.store import object_reader, ranges
from dsindex.store import ranges as kept
from dsindex.store.clients import StoreWriteError, persist
from dsindex.store.object_reader import ObjectReader
from dsindex.store.ranges import ObjectArray, ObjectRanges
from dsindex.store.redirects import redirects
from dsindex.store.requests import MOST_REQUESTS, Backoff, Gate, gate_of, request_counts, retry
from dsindex.store.storage import local_copy
from dsindex.store.stores import get_range, head_object, list_folder, read_range
from dsindex.store.urls import Access, ObjectIdentity, ObjectUrl, parse_url
from dsindex.store.writing import put_object
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault, serving_objects
from tests.support.threads import run_together, serving

pytest.importorskip("obstore")
pytest.importorskip("boto3")

CONTENT = random.Random(3).randbytes(1_000_000)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with serving_objects(objects={"b/a.bin": CONTENT, "b/d/x y#%.bin": b"other", "web/a.bin": CONTENT}) as server:
        server.public.add("web")
        yield server


def address(store, key="a.bin"):
    return parse_url(f"s3://b/{key}", Access(endpoint_url=store.url))


@pytest.mark.parametrize(("url", "message"), [
    ("hf://datasets/o", "hf://datasets/o: expected hf://datasets/ORGANISATION/NAME or"),
    ("hf://o/n/a.jsonl", "hf://o/n/a.jsonl: expected hf://datasets/ORGANISATION/NAME or"),
    ("hf://me:h1dden@datasets/o/n/a", "expected an address without user, password and query"),
    ("s3a://b/k", "write it as s3://BUCKET/KEY"),
    ("ftp://host/a", "expected a path or an address of s3://"),
    ("s3:///k", "expected the name of a bucket"),
    ("https://user:h1dden@host/a.jsonl", "https://host/a.jsonl: expected an address without user and password"),
    ("https://host", "expected the address of a file"),
    ("s3://b//k", "s3://b//k: expected a key without empty parts"),
    ("s3://b/a/../k", "expected a key without empty parts"),
])  # fmt: skip
def test_addresses_that_cannot_be_read_are_refused(url, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")) as refused:
        parse_url(url)
    assert "h1dden" not in str(refused.value)


def test_query_of_an_address_is_never_part_of_its_text():
    url = parse_url("https://host/a.jsonl?X-Amz-Signature=9f86d0")
    texts = [str(url), f"{url}", repr(url), url + "", encode_json([url]).decode(), encode_json({"k": url}).decode()]
    assert not [text for text in texts if "9f86d0" in text]
    assert copy.deepcopy(url).query == "X-Amz-Signature=9f86d0"


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_any_ranges_are_read_as_they_are(store, monkeypatch, seed):
    monkeypatch.setattr(object_reader, "RANGE_BYTES", 50_000)
    monkeypatch.setattr(object_reader, "FIRST_BYTES", 5_000)
    reader, chosen = ObjectReader(address(store)), random.Random(seed)
    position = 0
    for _ in range(60):
        kind = chosen.random()
        if kind < 0.1:
            reader.expect_forwards(*sorted(chosen.choices(range(len(CONTENT) + 100), k=2)))
        if kind < 0.4:
            position = chosen.randrange(len(CONTENT) + 10)
        size = chosen.choice([1, 3, 4_000, 60_000, 200_000])
        assert reader.read_at(size, position) == CONTENT[position : position + size]
        position += size
    reader.close()


def test_forward_reads_request_each_byte_once_and_ahead(store, monkeypatch):
    monkeypatch.setattr(object_reader, "RANGE_BYTES", 100_000)
    url, _ = head_object(address(store))
    reader, before = ObjectReader(url), request_counts()
    reader.expect_forwards(0, len(CONTENT))
    assert b"".join(reader.read_at(7_000, begin) for begin in range(0, len(CONTENT), 7_000)) == CONTENT
    asked = request_counts().since(before)
    assert (asked.gets, asked.received_bytes) == (10, len(CONTENT))


def test_small_object_is_read_by_one_request(store):
    before = request_counts()
    url, head = head_object(address(store, "d/x y#%.bin"))
    assert (head, ObjectReader(url).read_at(100, 0), head_object(url)[1]) == (b"other",) * 3
    assert request_counts().since(before).gets == 1


@pytest.mark.parametrize("fault", ["503", "500", "429", "reset", "truncate"])
def test_failures_that_pass_are_tried_again(store, fault):
    url, _ = head_object(address(store))
    before = request_counts()
    store.faults.append(Fault(kind=fault, times=2))
    assert ObjectReader(url).read_at(10**6, 0) == CONTENT
    assert request_counts().since(before).retries == 2


@pytest.mark.parametrize(
    ("fault", "words"), [("503", "503 SlowDown, again and again"), ("hang", "does not answer in time")]
)
def test_patience_ends_with_a_sentence_that_may_be_tried_again(store, fault, words):
    store.faults.append(Fault(kind=fault, times=99))
    backoff = Backoff(attempts=3, first_pause=0.001)
    url = address(store)

    def request():
        import obstore
        from obstore.store import S3Store

        options = {"allow_http": True, "timeout": "200ms"}
        target = S3Store("b", endpoint=store.url, client_options=options, retry_config={"max_retries": 0})
        return obstore.get(target, "a.bin").bytes()

    with pytest.raises(StoreError, match=rf"s3://b/a\.bin: .*{words}") as failed:
        retry(url, request, backoff=backoff)
    assert failed.value.transient
    assert len(store.requests) == 3


@pytest.mark.parametrize(("status", "code", "words"), [
    ("403", "AccessDenied", "403 AccessDenied.; check what this node's credentials may read"),
    ("403", "RequestTimeTooSkewed", "clock is wrong"),
    ("403", "ExpiredToken", "renew them"),
    ("404", "NoSuchBucket", "there is no such bucket"),
    ("404", "NoSuchKey", "no such object"),
    ("301", "PermanentRedirect", "name its region with --region"),
    ("400", "AuthorizationHeaderMalformed", "name its region with --region"),
    ("400", "InvalidRequest", "400 InvalidRequest"),
])  # fmt: skip
def test_refusals_are_sentences_at_once(store, status, code, words):
    store.faults.append(Fault(kind=status, code=code, times=99))
    with pytest.raises(InputError, match=words) as refused:
        head_object(address(store))
    assert str(refused.value).startswith("s3://b/a.bin: ")
    assert "\n" not in str(refused.value)
    assert len(store.requests) == 1


def test_replaced_object_is_noticed_by_every_request(store):
    url, _ = head_object(address(store))
    store.objects["b/a.bin"] = CONTENT[::-1]
    with pytest.raises(InputError, match="the object was replaced"):
        ObjectReader(url).read_at(10, 500_000)


def test_server_without_etags_is_watched_by_its_times_and_size(store):
    store.without_etag = True
    url, _ = head_object(parse_url(f"{store.url}/web/a.bin"))
    assert url.identity.version.startswith("modified 2023-11-14")
    store.objects["web/a.bin"] = CONTENT + b"more"
    with pytest.raises(InputError, match="the object was replaced"):
        ObjectReader(url).read_at(10, 500_000)


def test_server_without_ranges_is_refused(store):
    store.without_ranges = True
    with pytest.raises(InputError, match="expected a server that sends parts of files"):
        head_object(parse_url(f"{store.url}/web/a.bin"))


def test_unreachable_server_is_a_sentence():
    with pytest.raises(StoreError, match="the server cannot be reached"):
        head_object(parse_url("http://127.0.0.1:9/a.bin"))


def test_signature_is_in_no_message(store):
    store.signatures["web/a.bin"] = "sig=9f86d0"
    _, head = head_object(parse_url(f"{store.url}/web/a.bin?sig=9f86d0"))
    assert head == CONTENT[: len(head)]
    for fault in ("403", "404", "301", "400"):
        store.faults = [Fault(kind=fault, times=9)]
        with pytest.raises(InputError) as refused:
            head_object(parse_url(f"{store.url}/web/a.bin?sig=9f86d0"))
        assert "9f86d0" not in str(refused.value)
        assert refused.value.__cause__ is None


QUICK = Backoff(attempts=6, first_pause=0.0, unreachable_attempts=2)
UNREACHABLE = EndpointConnectionError(endpoint_url="http://a")
BROKEN = ConnectionClosedError(endpoint_url="http://a")


def failing(*errors):
    """Return a request that fails so, and then is answered."""
    left = list(errors)

    def request():
        if left:
            raise left.pop(0)
        return "answered"

    return request


def test_only_a_server_that_stays_unreachable_is_given_up_early():
    url = parse_url("s3://b/k")
    errors = (UNREACHABLE, BROKEN, UNREACHABLE, BROKEN, UNREACHABLE)
    assert persist(url, failing(*errors), backoff=QUICK) == "answered"
    with pytest.raises(StoreWriteError, match="the server cannot be reached") as failed:
        persist(url, failing(BROKEN, UNREACHABLE, UNREACHABLE), backoff=QUICK)
    assert failed.value.transient


def test_throttled_reads_and_writes_count_together(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with serving_objects(buckets={"b"}) as store:
        url = parse_url("s3://b/k", Access(endpoint_url=store.url))
        store.faults += [Fault(kind="503", operation="PutObject"), Fault(kind="503", operation="GetObject")]
        put_object(url, b"content")
        assert bytes(get_range(url, 0, 7)[0]) == b"content"
        assert gate_of(url).limit == MOST_REQUESTS // 4


DATA = np.random.default_rng(5).bytes(3000)
URL = ObjectUrl("s3://b/a", identity=ObjectIdentity(size_bytes=len(DATA), version='"1"'))


@pytest.fixture
def files(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving_objects(objects={f"b/{name}.idx": name.encode() * 5000 for name in "abc"}) as server:
        yield server


def address_of(files, key):
    return parse_url(f"s3://b/{key}", Access(endpoint_url=files.url))


@pytest.fixture
def asked(monkeypatch):
    """The requests for DATA, which is read without a server, in pieces so small that all limits are met."""
    made = []

    def read_range(url, begin, end, **__):
        if url == URL:  # and not a request that an earlier test no longer waits for
            made.append((begin, end))
        return DATA[begin:end]

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
def test_any_parts_are_read_as_they_are(batches, small):
    ranges.SMALL_BYTES = 5000 if small else 0
    reader = ObjectRanges(URL.with_key("any", identity=URL.identity))
    for wanted in batches:
        found = reader.read_many(wanted, later=[(0, 900)])
        assert found == [DATA[begin:end] for begin, end in wanted]
        reader.expect(wanted[::-1])
        for begin, end in wanted:
            assert reader.read(begin, end) == DATA[begin:end]
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
    array, plain = ObjectArray(URL, np.dtype("<u2"), offset=4), np.frombuffer(DATA, "<u2", offset=4)
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


def test_refusals_of_a_store_lower_its_limit_only(files):
    files.objects |= {"slow/a": b"1", "quick/a": b"2"}
    files.faults.append(Fault(kind="503", match="/slow/", times=2))
    slow, quick = (parse_url(f"s3://{bucket}/a", Access(endpoint_url=files.url)) for bucket in ("slow", "quick"))
    _, head = head_object(slow)
    head_object(quick)
    assert head == b"1"
    assert (gate_of(slow).limit, gate_of(quick).limit) == (16, 64)


def test_objects_are_kept_and_fetched_again_when_they_change(files):
    first = local_copy(address_of(files, "a.idx"))
    assert local_copy(address_of(files, "a.idx")) == first
    assert files.count("bytes=0-4999") == 1
    files.objects["b/a.idx"] = b"A" * 5000
    changed = local_copy(address_of(files, "a.idx"))
    assert changed != first
    assert Path(changed).read_bytes() == b"A" * 5000


def test_processes_that_ask_together_fetch_once(files):
    paths = []
    run_together(lambda _: paths.append(local_copy(address_of(files, "a.idx"))), 6)
    assert len(paths) == 6
    assert len(set(paths)) == 1
    assert files.count("bytes=0-4999") == 1


def test_only_own_files_are_removed_when_there_are_too_many(files, monkeypatch):
    monkeypatch.setenv(kept.CAP_VARIABLE, "0.00001")  # two of them
    first, second = (local_copy(address_of(files, key)) for key in ("a.idx", "b.idx"))
    folder = os.path.dirname(first)
    foreign = os.path.join(folder, "0123456789abcdef0123456789abcdef")
    with open(foreign, "wb") as file:
        file.write(bytes(50_000))
    for age, path in ((3000, foreign), (1000, second), (2000, first)):
        os.utime(path, (time.time() - age,) * 2)
    third = local_copy(address_of(files, "c.idx"))
    assert [os.path.exists(path) for path in (first, second, third, foreign)] == [False, True, True, True]


def test_folder_that_cannot_keep_is_one_sentence(files, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        local_copy(address_of(files, "a.idx"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(kept.CAP_VARIABLE, "much")
    with pytest.raises(InputError, match="expected a number of GB such as 50, got 'much'"):
        local_copy(address_of(files, "a.idx"))


PAGE = b'{"text": "a"}\n' * 100


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    target = ""
    """Where it redirects to; empty if it has the content."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Stay silent."""

    def do_GET(self):
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        body = b"" if self.server.target else PAGE
        if self.server.target:
            self.send_response(307)
            self.send_header("Location", self.server.target)
        else:
            begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            body = body[begin : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{len(PAGE)}")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def servers(monkeypatch):
    """One that redirects to another, which has the content; the other is another host by its name."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"planted-{name}")
    with serving(_Server()) as first, serving(_Server()) as other:
        first.target = f"http://localhost:{other.server_port}/there?sig=theirs"
        yield first, other
    redirects.clear()


@pytest.mark.parametrize("way", ["read", "list"])
def test_store_may_not_redirect_to_another_host(servers, way):
    first, other = servers
    url = parse_url("s3://b/k", Access(endpoint_url=f"http://127.0.0.1:{first.server_port}", region="us-east-1"))
    with pytest.raises(InputError, match=r"s3://b/k: expected .* got a redirect to another one"):
        head_object(url) if way == "read" else list_folder(url)
    assert len(first.asked) == 1
    assert not other.asked


def test_web_server_may_redirect_but_says_nothing_of_the_request(servers):
    first, other = servers
    url, head = head_object(parse_url(f"http://127.0.0.1:{first.server_port}/here?sig=planted-signature"))
    assert head == PAGE
    assert bytes(read_range(url, 5, 99)) == PAGE[5:99]
    assert {path for path, _ in other.asked} == {"/there?sig=theirs"}
    for _, headers in other.asked:
        assert not {"referer", "authorization", "cookie", "x-amz-security-token"} & headers.keys()
        assert "planted" not in str(headers)
    assert len(first.asked) == 2  # and not again for each range


def test_where_a_web_server_redirected_to_is_asked_again_once_it_ends(servers):
    first, other = servers
    url, _ = head_object(parse_url(f"http://127.0.0.1:{first.server_port}/here"))
    with serving(_Server()) as later:
        first.target = f"http://localhost:{later.server_port}/later"
        other.target = "http://127.0.0.1:1/gone"
        assert bytes(read_range(url, 5, 99)) == PAGE[5:99]
        assert [path for path, _ in later.asked][-1] == "/later"


MIB = 1 << 20
LARGE = random.Random(0).randbytes(3 * MIB)


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr(object_reader, "RANGE_BYTES", 200_000)
    with serving_objects(objects={"in/a": LARGE, "in/b": LARGE[::-1]}, public={"in"}) as server:
        yield server


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(4))
def test_readers_side_by_side_read_what_is_there(seed, pair):
    """Forwards, past ranges, back again and elsewhere."""
    pair.faults += [Fault(kind="reset", operation="GetObject", after=3, times=2)]
    chosen = random.Random(seed)
    contents = {"a": LARGE, "b": LARGE[::-1]}
    readers = {name: ObjectReader(parse_url(f"s3://in/{name}", Access(endpoint_url=pair.url))) for name in contents}
    positions = dict.fromkeys(contents, 0)
    for reader in readers.values():
        reader.expect_forwards(0, len(LARGE))
    for _ in range(120):
        name = chosen.choice(list(contents))
        size = chosen.choice([1, 4096, 70_000, 450_000])
        offset = positions[name] if chosen.random() < 0.8 else chosen.randrange(len(LARGE))
        buffer = bytearray(size)
        filled = readers[name].read_into(memoryview(buffer), offset)
        assert buffer[:filled] == contents[name][offset : offset + size], (name, offset, size)
        positions[name] = (offset + size) % len(LARGE)
        if chosen.random() < 0.05:  # some requests are still under way
            readers[name].close()
            readers[name] = ObjectReader(parse_url(f"s3://in/{name}", Access(endpoint_url=pair.url)))
            readers[name].expect_forwards(positions[name], len(LARGE))
    for reader in readers.values():
        reader.close()


def test_no_more_requests_pass_than_a_gate_allows():
    gate, running, most = Gate(most=3), [], []
    lock = threading.Lock()

    def request(_):
        with gate.passing():
            with lock:
                running.append(1)
                most.append(len(running))
            time.sleep(0.001)
            with lock:
                running.pop()

    run_together(request, 20)
    assert max(most) <= 3
