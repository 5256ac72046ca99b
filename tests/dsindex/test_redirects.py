"""Redirects to another host: refused by stores, and followed on the web without credentials and Referer."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("obstore")


from dsindex.errors import InputError
from dsindex.store.redirects import redirects
from dsindex.store.stores import head_object, list_folder, read_range
from dsindex.store.urls import Access, parse_url

CONTENT = b'{"text": "a"}\n' * 100


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
        body = b"" if self.server.target else CONTENT
        if self.server.target:
            self.send_response(307)
            self.send_header("Location", self.server.target)
        else:
            begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            body = body[begin : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{len(CONTENT)}")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serving():
    with _Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def servers(monkeypatch):
    """One that redirects to another, which has the content; the other is another host by its name."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"planted-{name}")
    with serving() as first, serving() as other:
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
    assert head == CONTENT
    assert bytes(read_range(url, 5, 99)) == CONTENT[5:99]
    assert {path for path, _ in other.asked} == {"/there?sig=theirs"}
    for _, headers in other.asked:
        assert not {"referer", "authorization", "cookie", "x-amz-security-token"} & headers.keys()
        assert "planted" not in str(headers)
    assert len(first.asked) == 2  # and not again for each range


def test_where_a_web_server_redirected_to_is_asked_again_once_it_ends(servers):
    first, other = servers
    url, _ = head_object(parse_url(f"http://127.0.0.1:{first.server_port}/here"))
    with serving() as later:
        first.target = f"http://localhost:{later.server_port}/later"
        other.target = "http://127.0.0.1:1/gone"
        assert bytes(read_range(url, 5, 99)) == CONTENT[5:99]
        assert [path for path, _ in later.asked][-1] == "/later"
