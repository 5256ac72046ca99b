"""Listings by servers that are no stores, or hostile ones: one sentence at once, and no end of time or memory."""

from __future__ import annotations

import contextlib
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("obstore")
pytest.importorskip("boto3")

from dsindex.errors import DsindexError
from dsindex.store import clients, stores
from dsindex.store.stores import list_folder
from dsindex.store.uploads import Upload, begin_upload, find_parts, list_uploads
from dsindex.store.urls import Access, parse_url
from dsindex.store.writing import find_object, list_objects
from tests.support.threads import serving

NOT_A_STORE = "expected a store that answers as S3 does, got "
ENDED = b"<IsTruncated>false</IsTruncated>"


def entry(key, size=5):
    return (
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;1&quot;</ETag>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
    ).encode()


def page(content=b"", *, token=None):
    more = ENDED if token is None else b"<IsTruncated>true</IsTruncated>"
    for name in ("NextContinuationToken", "NextKeyMarker", "NextUploadIdMarker", "NextPartNumberMarker"):
        more += b"" if token is None else f"<{name}>{token}</{name}>".encode()
    return b'<?xml version="1.0"?><Result><Name>b</Name>' + more + content + b"</Result>"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = iter(())
        self.asked = []
        self.sent = 0

    def handle_error(self, *_):
        """A client that goes away is none."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Stay silent."""

    def do_GET(self):
        self.server.asked.append(self.path)
        content = next(self.server.answers)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) or 1 << 40))
        self.end_headers()
        self.wfile.write(content)
        while not content:  # a page that does not end
            self.wfile.write(entry("p/a") * 1000)
            self.server.sent += 1000 * len(entry("p/a"))

    do_POST = do_GET

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", next(self.server.answers).decode())
        self.send_header("Content-Length", "5")
        self.end_headers()


@pytest.fixture(scope="module")
def one_server():
    """One for all tests, so that boto3 makes one client."""
    with serving(_Server()) as server:
        yield server


@pytest.fixture
def server(one_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(clients, "MOST_EMPTY_PAGES", 5)
    monkeypatch.setattr(clients, "MOST_ANSWER_BYTES", 1 << 20)
    one_server.asked.clear()
    one_server.sent = 0
    return one_server


def folder_of(server):
    return parse_url("s3://b/p/", Access(endpoint_url=f"http://127.0.0.1:{server.server_port}", region="us-east-1"))


WAYS = {
    "inputs": list_folder,
    "outputs": lambda url: list_objects(url.with_key("p")),
    "uploads": lambda url: list_uploads(url.with_key("p")),
    "parts": lambda url: find_parts(Upload(url=url.with_key("p"), upload_id="u", tag="t")),
}
OBJECTS = ("inputs", "outputs")
HOSTILE = {
    "page": (lambda: iter([b"<!doctype html><html><body>hello</body></html>"]), "another server", (*WAYS,), 1),
    "page that is XML": (lambda: iter([b"<html><body>hello</body></html>"]), "another server", (*WAYS,), 1),
    "JSON": (lambda: iter([b'{"a": 1}']), "another server", (*WAYS,), 1),
    "another XML": (lambda: iter([b"<Feed><Title>news</Title></Feed>"]), "another server", (*WAYS,), 1),
    "entries without a name": (
        lambda: iter([page(b"".join(b"<%s><x/></%s>" % (kind, kind) for kind in (b"Contents", b"Upload", b"Part")))]),
        "another server",
        (*WAYS,),
        1,
    ),
    "entities": (
        lambda: iter([b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aa">]><Result><Name>&a;</Name></Result>']),
        "another server",
        (*WAYS,),
        1,
    ),
    "same page": (
        lambda: itertools.repeat(page(entry("p/a"), token=7)),
        "a listing that comes to the same page again",
        (*WAYS,),
        2,
    ),
    "no entries": (
        lambda: (page(token=number) for number in itertools.count(1)),
        "6 pages of a listing without an entry",
        (*WAYS,),
        6,
    ),
    "no end": (lambda: itertools.repeat(b""), "an answer of more than 1 MiB", (*WAYS,), 1),
    "negative size": (lambda: iter([page(entry("p/a", -5))]), "an object of less than 0 bytes", OBJECTS, 1),
    "another folder": (lambda: iter([page(entry("q/a"))]), "objects of another folder", OBJECTS, 1),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize(("name", "way"), [(name, way) for name, case in HOSTILE.items() for way in case[2]])
def test_hostile_listing_is_refused_at_once(server, name, way):
    answers, got, _, num_requests = HOSTILE[name]
    server.answers = answers()
    with pytest.raises(DsindexError) as refused:
        WAYS[way](folder_of(server))
    assert f"{NOT_A_STORE}{got}" in str(refused.value)
    assert len(server.asked) == num_requests
    assert server.sent < 1 << 26


@pytest.mark.parametrize("recursive", [True, False])
def test_listing_of_google_without_an_entry_is_refused(monkeypatch, recursive):
    """By a server of its own, since obstore goes on asking."""
    is_over = threading.Event()
    with serving(_Server()) as server:
        server.answers = (page() if is_over.is_set() else page(token=number) for number in itertools.count(1))
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
        monkeypatch.setattr(stores, "_PAGE_SECONDS", 0.5)
        with pytest.raises(
            DsindexError, match=r"gs://b/p/: expected a listing that ends, got no entry for 0\.5 seconds"
        ):
            list_folder(parse_url("gs://b/p/"), recursive=recursive)
        assert len(server.asked) > 1
        is_over.set()


def test_listing_has_pages_some_of_them_empty_and_says_how_far_it_is(server, monkeypatch):
    monkeypatch.setattr(stores, "_LISTING_SECONDS", 0.0)
    contents = [entry("p/b") + entry("p/a b"), b"", b"", entry("p/d/c"), b""]
    server.answers = iter([*(page(each, token=number) for number, each in enumerate(contents)), page(entry("p/z"))])
    said = []
    found = list_folder(folder_of(server), say=said.append)
    assert [(url.key, url.identity.size_bytes) for url in found if url.identity is not None] == [
        *(("p/a b", 5), ("p/b", 5), ("p/d/c", 5), ("p/z", 5))
    ]
    assert said[0] == "s3://b/p/: 2 objects listed so far"
    tokens = [parse_qs(urlsplit(path).query).get("continuation-token") for path in server.asked]
    assert tokens == [None, *([str(number)] for number in range(5))]


def test_listing_of_keys_that_nobody_can_name_is_refused(server):
    server.answers = iter([page(entry("p/a//b"))])
    with pytest.raises(DsindexError, match="expected keys without empty parts"):
        list_folder(folder_of(server))
    with contextlib.suppress(StopIteration):
        next(server.answers)


@pytest.mark.parametrize("content", [b"<Result><UploadId></UploadId></Result>", b"<Result><Bucket>b</Bucket></Result>"])
def test_upload_that_has_no_id_is_refused(server, content):
    server.answers = iter([content])
    with pytest.raises(DsindexError, match=NOT_A_STORE):
        begin_upload(folder_of(server).with_key("p"))


@pytest.mark.parametrize("time", [b"yesterday", b"Mon, 01 Jan 2024 00:00:00 -0000", b""])
def test_object_that_was_never_written_is_refused(server, time):
    server.answers = iter([time])
    with pytest.raises(DsindexError, match=NOT_A_STORE):
        find_object(folder_of(server).with_key("p"))
