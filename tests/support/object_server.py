"""A server that speaks as much of S3's and of plain HTTP's language as readers need, and fails when it is told to.

`/BUCKET/KEY` is S3's path style; a key is served to signed requests only, unless its bucket is public. Run as a
program it serves a folder, so that its CPU time can be told from a build's:

    python -m tests.support.object_server FOLDER
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCESS_KEY = "AKTESTACCESSKEY"
SECRET_KEY = "planted-secret-3d4f5a"
PIECE_BYTES = 256 << 10


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next requests whose target contains `match`."""

    kind: str
    """`503`, `403` or another status; `reset` or `truncate` in the middle of the body; `hang`; `wrong-length`."""
    match: str = ""
    times: int = 1
    method: str = "GET"
    code: str = "SlowDown"
    """S3's name of the error."""


@dataclass(slots=True, kw_only=True)
class ObjectServer:
    """The objects, and what was asked for."""

    objects: dict[str, bytes | Path] = field(default_factory=dict)
    """`bucket/key` → content."""
    public: set[str] = field(default_factory=set)
    """Buckets that need no signature."""
    signatures: dict[str, str] = field(default_factory=dict)
    """`bucket/key` → the query without which it is refused."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """`METHOD target range`, in order of arrival."""
    without_etag: bool = False
    without_ranges: bool = False
    url: str = ""
    page_size: int = 1000
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, bucket: str, folder: Path) -> None:
        """Add all files below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.objects[f"{bucket}/{path.relative_to(folder)}"] = path

    def etag(self, name: str) -> str:
        content = self.objects[name]
        if isinstance(content, Path):
            status = content.stat()
            return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'

    def take_fault(self, method: str, target: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.match in target and fault.method == method:
                    fault.times -= 1
                    return fault
        return None

    def count(self, word: str) -> int:
        return sum(word in request for request in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # type: ignore[assignment]

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        store = self.server.store
        with store.lock:
            store.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '-')}")
        fault = store.take_fault(self.command, self.path)
        if fault is not None and fault.kind.isdigit():
            return self.fail(int(fault.kind), fault.code)
        if fault is not None and fault.kind == "hang":
            time.sleep(3)
        parts = urlsplit(self.path)
        name = unquote(parts.path).lstrip("/")
        bucket = name.split("/")[0]
        query = parse_qs(parts.query)
        is_signed = ACCESS_KEY in self.headers.get("Authorization", "")
        if name in store.signatures:
            if parts.query != store.signatures[name]:
                return self.fail(403, "AccessDenied")
        elif not is_signed and bucket not in store.public:
            return self.fail(403, "AccessDenied")
        if not any(key.startswith(f"{bucket}/") for key in store.objects):
            return self.fail(404, "NoSuchBucket")
        if "list-type" in query:
            return self.list_objects(bucket, query)
        if name not in store.objects:
            return self.fail(404, "NoSuchKey")
        return self.send_object(name, fault)

    def fail(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>no, {self.path}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_object(self, name: str, fault: Fault | None) -> None:
        store = self.server.store
        content, etag = store.objects[name], store.etag(name)
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        if self.headers.get("If-Match", etag) != etag:
            return self.fail(412, "PreconditionFailed")
        begin, end, status = 0, size, 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match and not store.without_ranges:
            begin, end, status = int(match[1]), min(size, int(match[2] or size) + 1), 206
            if begin >= size:
                return self.fail(416, "InvalidRange")
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        if not store.without_etag:
            self.send_header("ETag", etag)
        self.send_header("Last-Modified", formatdate(1.7e9, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            self.send_body(content, begin, end, fault)
        return None

    def send_body(self, content: bytes | Path, begin: int, end: int, fault: Fault | None) -> None:
        if fault is not None and fault.kind in {"reset", "truncate"}:
            end = begin + (end - begin) // 2
        with contextlib.suppress(ConnectionError):
            if isinstance(content, Path):
                with content.open("rb") as file:
                    while begin < end:
                        begin += os.sendfile(self.wfile.fileno(), file.fileno(), begin, min(4 << 20, end - begin))
            else:
                self.wfile.write(content[begin:end])
        if fault is not None and fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if fault is not None and fault.kind in {"reset", "truncate"}:
            self.close_connection = True
            self.connection.close()

    def list_objects(self, bucket: str, query: dict[str, list[str]]) -> None:
        store = self.server.store
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        keys = sorted(name.partition("/")[2] for name in store.objects if name.startswith(f"{bucket}/"))
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        page, rest = keys[: store.page_size], keys[store.page_size :]
        entries = []
        for key in page:
            content = store.objects[f"{bucket}/{key}"]
            size = content.stat().st_size if isinstance(content, Path) else len(content)
            shown = quote(key) if query.get("encoding-type") else escape(key)
            entries.append(
                f"<Contents><Key>{shown}</Key><Size>{size}</Size><ETag>{escape(store.etag(f'{bucket}/{key}'))}</ETag>"
                "<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
            )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        truncated = "true" if rest else "false"
        body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{''.join(entries)}</ListBucketResult>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, store: ObjectServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store

    def handle_error(self, *_: object) -> None:
        """A client that goes away is none."""


@contextlib.contextmanager
def serving_objects(**content: object) -> Iterator[ObjectServer]:
    """Serve objects from a thread while the block runs; the arguments are those of ObjectServer."""
    store = ObjectServer(**content)  # type: ignore[arg-type]
    with _Server(store) as server:
        store.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    served = ObjectServer(public={"http"})
    served.put("bucket", Path(sys.argv[1]))
    served.put("http", Path(sys.argv[1]))
    with _Server(served) as program:
        sys.stdout.write(f"http://127.0.0.1:{program.server_address[1]}\n")
        sys.stdout.flush()
        program.serve_forever()
