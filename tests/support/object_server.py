"""A server that speaks as much of S3's and of plain HTTP's language as the project needs, and fails when it is told to.

`/BUCKET/KEY` is S3's path style; a key is served to signed requests only, unless its bucket is public. What it keeps is
in `object_server_state`, what can go wrong in `object_server_faults`. Run as a program it serves the folders in a
folder as buckets, so that its CPU time can be told from a build's, and keeps what clients put in files:

    python -m tests.support.object_server --port 9000 --folder FOLDER --bucket out --fast
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.support import object_server_reads as reads
from tests.support import object_server_writes as writes
from tests.support.object_server_faults import Fault, RandomFaults, name_operation
from tests.support.object_server_http import Exchange
from tests.support.object_server_rules import Refusal
from tests.support.object_server_state import ObjectServer

__all__ = ["ACCESS_KEY", "SECRET_KEY", "Fault", "ObjectServer", "RandomFaults", "serving_objects"]

ACCESS_KEY = "AKTESTACCESSKEY"
SECRET_KEY = "planted-secret-3d4f5a"

ANSWERS = {
    "GetObject": reads.send_object,
    "HeadObject": reads.send_object,
    "ListObjectsV2": reads.list_objects,
    "ListBlobs": reads.list_blobs,
    "HeadBucket": reads.answer_bucket,
    "GetBucketLocation": reads.answer_bucket,
    "PutObject": writes.put_object,
    "DeleteObject": writes.delete_object,
    "DeleteObjects": writes.delete_objects,
    "CreateMultipartUpload": writes.create_upload,
    "UploadPart": writes.upload_part,
    "CompleteMultipartUpload": writes.complete_upload,
    "AbortMultipartUpload": writes.abort_upload,
    "ListMultipartUploads": writes.list_uploads,
    "ListParts": writes.list_parts,
    "CreateBucket": writes.create_bucket,
}


class Handler(Exchange):
    """Answers from what is kept."""

    server: _Server

    def setup(self):
        super().setup()
        self.store = self.server.store

    def respond(self):
        """Answer a request."""
        store = self.store
        _, _, key = self.name.partition("/")
        self.operation = name_operation(self.command, self.path, has_key=bool(key))
        with store.lock:
            store.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '-')}")
            store.operations[self.operation] += 1
        self.tell("arrived")
        self.prepare(store.take_fault(self.operation, self.command, self.path))
        with contextlib.suppress(ConnectionError):
            try:
                self.carry_out()
            except Refusal as refusal:
                self.refuse(refusal)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond

    def carry_out(self):
        if self.fault is not None and self.fault.kind.isdigit():
            raise Refusal(int(self.fault.kind), self.fault.code)
        if self.fault_is("reset") and self.operation != "GetObject" and not self.unread_bytes:
            return self.break_off()
        self.check_access()
        return self.answer_operation()

    def answer_operation(self):
        answer = ANSWERS.get(self.operation)
        if answer is None:
            raise Refusal(501, "NotImplemented")
        answer(self)

    def check_access(self):
        """Compare signature, region and bucket with what is there.

        Raises:
            Refusal: The request may not go on.
        """
        store, bucket = self.store, self.name.split("/")[0]
        signed = re.search(r"Credential=([^/]*)/\d+/([^/]*)/", self.headers.get("Authorization", ""))
        if self.name in store.signatures:
            if self.path.partition("?")[2] != store.signatures[self.name]:
                raise Refusal(403, "AccessDenied")
        elif (signed is None or signed[1] != ACCESS_KEY) and bucket not in store.public:
            raise Refusal(403, "AccessDenied")
        if signed is not None and store.region not in {"", signed[2]}:
            raise Refusal(400, "AuthorizationHeaderMalformed", Region=store.region)
        if self.operation != "CreateBucket" and not store.has_bucket(bucket):
            raise Refusal(404, "NoSuchBucket", BucketName=bucket)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store, *, host="127.0.0.1", port=0, handler=Handler):
        super().__init__((host, port), handler)
        self.store = store
        store.url = f"http://{host}:{self.server_address[1]}"

    def handle_error(self, *_):
        """A client that goes away is none."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*_)


@contextlib.contextmanager
def serving_objects(*, handler=Handler, kind=ObjectServer, **content):
    """Serve objects from a thread while the block runs; the other arguments are those of ObjectServer."""
    store = kind(**content)
    with _Server(store, handler=handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


def serve():
    """Serve until ended; the address is the first line that is printed, the process id is the second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="its folders are buckets; without, all is kept in memory")
    parser.add_argument("--bucket", action="append", default=[], help="one that exists without objects")
    parser.add_argument("--public", action="append", default=[], help="a bucket that needs no signature")
    parser.add_argument("--region", default="")
    parser.add_argument("--min-part-bytes", type=int, default=5 << 20)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each GET of an object is answered")
    parser.add_argument("--fast", action="store_true", help="ETags by a quick hash, no SHA-256 of contents")
    options = parser.parse_args()
    with contextlib.ExitStack() as kept:
        store = ObjectServer(
            buckets={*options.bucket},
            public={*options.public},
            region=options.region,
            min_part_bytes=options.min_part_bytes,
            fast=options.fast,
        )
        if options.delay:
            store.faults.append(Fault(kind="hang", operation="GetObject", times=sys.maxsize, seconds=options.delay))
        if options.folder:
            for folder in sorted(path for path in options.folder.iterdir() if path.is_dir()):
                store.put(folder.name, folder)
            name = kept.enter_context(tempfile.TemporaryDirectory(prefix=".pieces-", dir=options.folder))
            store.folder = Path(name)
        server = kept.enter_context(_Server(store, host=options.host, port=options.port))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the files of pieces are removed
        sys.stdout.write(f"{store.url}\n{os.getpid()}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    serve()
