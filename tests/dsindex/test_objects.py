"""Addresses, ranged reads and failures of object stores, against a small server that fails when it is told to."""

import copy
import random

import pytest

pytest.importorskip("obstore")

from dsindex.errors import InputError
from dsindex.json_text import encode_json
from dsindex.store import reading
from dsindex.store.reading import ObjectReader
from dsindex.store.requests import Backoff, StoreError, request_counts, retry
from dsindex.store.stores import head_object
from dsindex.store.urls import Access, parse_url
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault, serving_objects

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


@pytest.mark.parametrize(
    ("url", "message"),
    [
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
    ],
)
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
    monkeypatch.setattr(reading, "RANGE_BYTES", 50_000)
    monkeypatch.setattr(reading, "FIRST_BYTES", 5_000)
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
    monkeypatch.setattr(reading, "RANGE_BYTES", 100_000)
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


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ("403", "AccessDenied", "403 AccessDenied.; check what this node's credentials may read"),
        ("403", "RequestTimeTooSkewed", "clock is wrong"),
        ("403", "ExpiredToken", "renew them"),
        ("404", "NoSuchBucket", "there is no such bucket"),
        ("404", "NoSuchKey", "no such object"),
        ("301", "PermanentRedirect", "name its region with --region"),
        ("400", "AuthorizationHeaderMalformed", "name its region with --region"),
        ("400", "InvalidRequest", "400 InvalidRequest"),
    ],
)
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
