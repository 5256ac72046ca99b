"""An S3 server (moto) behind a proxy that records requests and makes chosen ones fail."""

import contextlib
import http.client
import logging
import random
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "planted-key", "planted-secret"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
HOP_BY_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}
CUT = "cut"
"""A fault: the connection is closed in the middle of the response's body."""
LOST = "lost"
"""A fault: the server executes the request, but the connection is closed without a response."""


@dataclass
class Fault:
    """A failure for the next `times` requests that match."""

    match: str
    """Regular expression that is searched for in a request's method, path and range."""
    kind: int | str
    """An HTTP status, CUT or LOST."""
    times: int = 1
    code: str = "SlowDown"
    """The error code in the body of the response."""
    taken: int = 0


@dataclass
class Buckets:
    """The buckets of one server, and the faults of its proxy."""

    url: str
    """Address of the proxy."""
    client: object
    """A boto3 client that bypasses the proxy."""
    faults: list[Fault] = field(default_factory=list)
    rate: float = 0.0
    """Share of requests that fail at random."""
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    requests: list[str] = field(default_factory=list)
    """Method, path and range of each request."""
    watch: object = None
    """Called with `arrived` or `done`, the method and the path of each request."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, match, kind, times=1, code="SlowDown"):
        """Make the next `times` requests that match fail."""
        self.faults.append(Fault(match=match, kind=kind, times=times, code=code))

    def fault_of(self, request):
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.taken < fault.times and re.search(fault.match, request):
                    fault.taken += 1
                    return fault
            if self.rng.random() < self.rate:
                return Fault(match="", kind=self.rng.choice([500, 503, CUT, LOST]))
        return None

    def put(self, place, source):
        """Upload bytes as one object, or all files below a folder."""
        bucket, _, prefix = place.partition("/")
        with contextlib.suppress(self.client.exceptions.BucketAlreadyOwnedByYou):
            self.client.create_bucket(Bucket=bucket)
        if isinstance(source, bytes):
            self.client.put_object(Bucket=bucket, Key=prefix, Body=source)
            return
        for path in sorted(Path(source).rglob("*")):
            if path.is_file():
                key = "/".join(filter(None, [prefix, path.relative_to(source).as_posix()]))
                self.client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())

    def content(self, place):
        bucket, _, key = place.partition("/")
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def names(self, bucket, prefix=""):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [stored["Key"] for page in pages for stored in page.get("Contents", ())]


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets: Buckets
    upstream: tuple[str, int]

    def log_message(self, *_):
        pass

    def handle_request(self):
        store, request = self.buckets, f"{self.command} {self.path} {self.headers.get('Range') or ''}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = store.fault_of(request)
        if store.watch is not None:
            store.watch("arrived", self.command, self.path)
        if fault is not None and isinstance(fault.kind, int):
            content = f"<Error><Code>{fault.code}</Code></Error>".encode()
            self.reply(fault.kind, {}, content)
            return
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        connection.request(self.command, self.path, body or None, dict(self.headers))
        with connection.getresponse() as response:
            status, content = response.status, response.read()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP}
            size = response.headers.get("Content-Length")
        connection.close()
        if store.watch is not None:
            store.watch("done", self.command, self.path)
        if fault is not None and fault.kind == LOST:
            self.close_connection = True
            return
        self.reply(status, headers, content, size=size, is_cut=fault is not None)

    def reply(self, status, headers, content, *, size=None, is_cut=False):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", size if self.command == "HEAD" and size else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content[: len(content) // 2] if is_cut else content)
        self.close_connection = self.close_connection or is_cut

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request


@contextlib.contextmanager
def serving_buckets(*names):
    """Serve empty buckets while the block runs."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    moto.start()
    handler = type("Handler", (Proxy,), {"upstream": moto.get_host_and_port()})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    host, port = moto.get_host_and_port()
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
    )  # fmt: skip
    handler.buckets = Buckets(url=f"http://127.0.0.1:{proxy.server_port}", client=client)
    try:
        with contextlib.closing(http.client.HTTPConnection(host, port)) as connection:
            connection.request("POST", "/moto-api/reset")  # moto keeps the buckets of earlier servers in this process
            connection.getresponse().read()
        for name in names:
            client.create_bucket(Bucket=name)
        yield handler.buckets
    finally:
        proxy.shutdown()
        proxy.server_close()
        client.close()
        moto.stop()
