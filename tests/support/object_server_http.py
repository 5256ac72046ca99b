"""One request and its answer: content in and out, without copies, and with what goes wrong on the way."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import socket
import time
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.object_server_rules import Piece, Refusal

if TYPE_CHECKING:
    from tests.support.object_server_faults import Fault
    from tests.support.object_server_state import ObjectServer

BLOCK_BYTES = 256 << 10
SLOW_STEPS = 8
CHECKSUMS = ("x-amz-checksum-crc32", "x-amz-checksum-sha1", "x-amz-checksum-sha256")


class Exchange(BaseHTTPRequestHandler):
    """A request while it is answered."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: ObjectServer
    fault: Fault | None = None
    unread_bytes = 0
    """Content of the request that has not been read."""
    operation = ""
    """S3's name of what is wanted."""
    is_awaited = False
    """The client sends its content after `100 Continue` only."""

    def log_message(self, *_):
        """Stay silent."""

    def handle_expect_100(self):
        self.is_awaited = True
        return True

    @property
    def name(self):
        """`bucket/key` of the request."""
        return unquote(urlsplit(self.path).path).lstrip("/")

    @property
    def query(self):
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def number(self, name, default):
        """Return a number of the query.

        Raises:
            Refusal: It is none.
        """
        try:
            return int(self.query.get(name, default))
        except ValueError:
            raise Refusal(400, "InvalidArgument", ArgumentName=name) from None

    def done(self):
        """Tell that the request was carried out."""
        self.tell("done")

    def tell(self, moment):
        """Tell who watches how far the request is."""
        if self.store.watch is not None:
            self.store.watch(moment, self.operation, self.path)

    def fault_is(self, *kinds):
        return self.fault is not None and self.fault.kind in kinds

    def prepare(self, fault):
        """Begin with a request."""
        self.fault = fault
        self.unread_bytes = int(self.headers.get("Content-Length") or 0)
        if self.fault_is("hang"):
            time.sleep(fault.seconds if fault else 0)

    # --- the request's content

    def receive(self):
        """Store the request's content.

        Raises:
            Refusal: It is not what its checksums say.
            ConnectionError: The connection broke, or was told to break.
        """
        told = [name for name in CHECKSUMS if name in self.headers]
        if told and self.store.crc32 == "refused":
            raise Refusal(501, "NotImplemented", Header=told[0])
        if self.store.crc32 == "ignored":
            for name in told:
                del self.headers[name]
        size, path = self.unread_bytes, self.store.new_file()
        target = bytearray(0 if path else size)
        checks = _Checks(self.headers, fast=self.store.fast)
        digest = self.store.new_digest()
        with path.open("wb") if path else contextlib.nullcontext() as file:
            for block in self.blocks(memoryview(target) if not path else None):
                if self.fault_is("corrupt") and self.unread_bytes == size - len(block):
                    block[len(block) // 2] ^= 1
                digest.update(block)
                checks.update(block)
                if file is not None:
                    file.write(block)
        with self.store.lock:
            self.store.received_bytes += size
        try:
            checks.compare()
        except Refusal:
            if path:
                path.unlink()
            raise
        kept = {name: self.headers[name] for name in CHECKSUMS if name in self.headers}
        return Piece(content=path or target, size=size, digest=digest.hexdigest(), checksums=kept, modified=time.time())

    def blocks(self, target=None):
        """Read the request's content into a target, or into one block again and again."""
        self.tell("reading")
        if self.is_awaited:
            self.send_response_only(100)
            self.end_headers()
            self.is_awaited = False
        size = self.unread_bytes
        again = memoryview(bytearray(min(size, BLOCK_BYTES))) if target is None else None
        breaks_at = size // 2 if self.fault_is("reset") else -1
        while self.unread_bytes:
            begin = size - self.unread_bytes
            room = min(BLOCK_BYTES, self.unread_bytes)
            if self.fault_is("slow"):
                room = min(room, -(-size // SLOW_STEPS))
                time.sleep(self.fault.seconds / SLOW_STEPS if self.fault else 0)
            block = target[begin : begin + room] if target is not None else again[:room]
            got = self.rfile.readinto(block)
            if not got or begin + got > breaks_at >= 0:
                self.break_off()
                raise ConnectionAbortedError
            self.unread_bytes -= got
            yield block[:got]

    def receive_text(self):
        """Return a small request's content, checked.

        Raises:
            Refusal: It is not what its checksums say.
        """
        checks, text = _Checks(self.headers, fast=False), b""
        for block in self.blocks():
            checks.update(block)
            text += block
        checks.compare()
        return text

    # --- the answer

    def describe(self, stored):
        """Return the headers that tell an object from an earlier one of its name."""
        return {"ETag": stored.etag}

    def answer(self, status, body=b"", headers=None):
        """Send a whole answer, or lose it."""
        if self.begin_answer(status, len(body), headers) and self.command != "HEAD":
            self.wfile.write(body)

    def answer_xml(self, root, content, headers=None):
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        self.answer(200, f"{body}{content}</{root}>".encode(), {"Content-Type": "application/xml", **(headers or {})})

    def refuse(self, refusal):
        details = {"Code": refusal.code, "Message": f"no, {self.path}", **refusal.details}
        content = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in details.items())
        body = f"<Error>{content}</Error>".encode() if refusal.status != 304 else b""
        headers = {"Content-Type": "application/xml"}
        if "Region" in details:
            headers["x-amz-bucket-region"] = details["Region"]
        self.answer(refusal.status, body, headers)

    def begin_answer(self, status, size, headers):
        """Send all before the content; return whether it was sent."""
        if self.fault_is("lost"):
            self.break_off()
            return False
        if self.is_awaited:
            self.close_connection = True  # content that was never asked for may come or not
        elif self.unread_bytes:
            for _ in self.blocks():
                pass
        self.send_response(status)
        if status not in {204, 304}:
            self.send_header("Content-Length", str(size))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        return True

    def send_content(self, stored, begin, end):
        """Send a range of an object."""
        length = end - begin
        if self.fault_is("reset", "truncate"):
            end = begin + length // 2
        steps = SLOW_STEPS if self.fault_is("slow") else 1
        with contextlib.ExitStack() as files:
            ranges = []
            for piece in stored.pieces:
                if begin < piece.size and end > 0:
                    content = piece.content
                    opened = files.enter_context(content.open("rb")) if isinstance(content, Path) else content
                    ranges.append((opened, max(0, begin), min(piece.size, end)))
                begin, end = begin - piece.size, end - piece.size
            for opened, first, last in ranges:
                step = -(-(last - first) // steps)
                for position in range(first, last, step):
                    if steps > 1:
                        time.sleep(self.fault.seconds / steps if self.fault else 0)
                    self._send_range(opened, position, min(last, position + step))
                    with self.store.lock:
                        self.store.sent_bytes += min(last, position + step) - position
        if self.fault_is("reset"):
            self.break_off()
        elif self.fault_is("truncate"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send_range(self, opened, begin, end):
        if isinstance(opened, bytes | bytearray):
            self.wfile.write(memoryview(opened)[begin:end])
            return
        while begin < end:
            begin += os.sendfile(self.wfile.fileno(), opened.fileno(), begin, min(4 << 20, end - begin))

    def break_off(self):
        """Reset the connection."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()


class _Checks:
    """The checksums that a request has told of its content."""

    def __init__(self, headers, *, fast):
        self.headers = headers
        self.crc = 0 if CHECKSUMS[0] in headers else None
        wanted = {"Content-MD5": "md5", "x-amz-checksum-sha1": "sha1", "x-amz-checksum-sha256": "sha256"}
        self.hashes = {
            name: hashlib.new(kind, usedforsecurity=False) for name, kind in wanted.items() if name in headers
        }
        signed = headers.get("x-amz-content-sha256", "")
        self.signed = hashlib.sha256() if len(signed) == 64 and not fast else None

    def update(self, block):
        if self.crc is not None:
            self.crc = zlib.crc32(block, self.crc)
        for one in self.hashes.values():
            one.update(block)
        if self.signed:
            self.signed.update(block)

    def compare(self):
        """Compare them with the content.

        Raises:
            Refusal: They differ.
        """
        found = {name: one.digest() for name, one in self.hashes.items()}
        if self.crc is not None:
            found[CHECKSUMS[0]] = self.crc.to_bytes(4, "big")
        for name, digest in found.items():
            try:
                told = base64.b64decode(self.headers[name], validate=True)
            except binascii.Error:
                told = b""
            if len(told) != len(digest):
                raise Refusal(400, "InvalidDigest" if name == "Content-MD5" else "InvalidRequest")
            if told != digest:
                raise Refusal(400, "BadDigest")
        if self.signed and self.signed.hexdigest() != self.headers["x-amz-content-sha256"]:
            raise Refusal(400, "XAmzContentSHA256Mismatch")
