"""A server that speaks the Hugging Face Hub's API for datasets, and the storage to which it redirects.

Files of `inline` are served by the Hub itself, as small files in git are; all others by signed addresses, each of which
is served to whoever has it. A token sent to the storage is recorded in `leaks`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

TOKEN = "hf_PlantedTokenOfTheTests"
SIGNATURE = "planted-signature-of-the-storage"
PAGE = 3
"""Entries of a page of a tree, so that listings have several."""


@dataclass
class HubServer:
    """What it keeps, what it was asked, and what goes wrong."""

    url: str = ""
    storage: str = ""
    """The other server, with the content."""
    name: str = "org/name"
    commits: dict[str, dict[str, bytes | mmap.mmap]] = field(default_factory=dict)
    """Commit → path → content."""
    revisions: dict[str, str] = field(default_factory=dict)
    """Branch or tag → commit."""
    card: dict[str, Any] = field(default_factory=dict)
    inline: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False
    token: str = TOKEN
    """The token that may read."""
    faults: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    """Part of an address, status and headers: each is the answer to one request."""
    latency: float = 0.0
    requests: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)
    oids: dict[int, str] = field(default_factory=dict)
    ends_after: int = 0
    """Requests to the storage after which the signed addresses of before end; 0 for never."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, files, *, revision="main"):
        """Add a commit, to which a branch then leads."""
        digest = hashlib.sha1(
            repr((self.url, sorted(files.items()), len(self.commits))).encode(), usedforsecurity=False
        )
        self.commits[digest.hexdigest()] = dict(files)
        for content in files.values():
            self.oids[id(content)] = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.revisions[revision] = digest.hexdigest()
        return digest.hexdigest()

    @property
    def signature(self):
        """The signature that holds now."""
        has_ended = self.ends_after and self.counts["storage"] > self.ends_after
        return f"{SIGNATURE}-{'new' if has_ended else 'old'}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, as the kernel delays a second one
    disable_nagle_algorithm = True
    hub: HubServer
    is_storage = False

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        hub = self.hub
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = "storage" if self.is_storage else "hub"
        with hub.lock:
            hub.requests.append(f"{kind} {self.command} {self.path} {self.headers.get('Range', '-')}")
            hub.counts[kind] += 1
            fault = next((each for each in hub.faults if each[0] in f"{kind} {self.path}"), None)
            if fault is not None:
                hub.faults.remove(fault)
        time.sleep(hub.latency)
        with contextlib.suppress(ConnectionError):
            if fault is not None:
                self.send(fault[1], b"told to fail", fault[2])
            elif self.is_storage:
                self.answer_storage()
            else:
                self.answer_hub()

    def send(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value, headers=None):
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def refuse(self, status, code, message):
        self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def answer_storage(self):
        parts = urlsplit(self.path)
        if "Authorization" in self.headers:
            self.hub.leaks.append(self.headers["Authorization"])
        if "Referer" in self.headers:
            self.hub.leaks.append(self.headers["Referer"])
        if parse_qs(parts.query).get("Signature") != [self.hub.signature]:
            self.send(403, b"<Code>AccessDenied</Code>")
            return
        commit, _, path = unquote(parts.path).removeprefix("/blobs/").partition("/")
        self.send_ranges(self.hub.commits[commit][path])

    def send_ranges(self, content):
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content)), len(content) - 1)
        named = {"ETag": '"storage"', "Last-Modified": "Tue, 24 Nov 2026 12:00:00 GMT"}
        if begin > end:
            self.send(416, b"", {**named, "Content-Range": f"bytes */{len(content)}"})
        elif "Range" in self.headers:
            named["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
            self.send(206, memoryview(content)[begin : end + 1], named)
        else:
            self.send(200, content, named)

    def answer_hub(self):
        hub = self.hub
        words = [unquote(word) for word in urlsplit(self.path).path.strip("/").split("/")]
        is_api = words[0] == "api"
        [_, org, name, *rest] = words[1:] if is_api else words
        asked, given = f"{org}/{name}", self.headers.get("Authorization")
        if given not in {None, f"Bearer {hub.token}"}:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif asked in hub.renamed:
            self.send(307, b"", {"Location": self.path.replace(asked, hub.renamed[asked])})
        elif asked != hub.name or (hub.private and given is None):
            self.refuse(401 if given is None else 404, "RepoNotFound", "Repository not found")
        elif is_api and rest[:1] in ([], ["revision"]):
            self.answer_info(rest[1] if rest else "main")
        elif is_api:
            self.answer_paths(rest)
        elif hub.gated and given is None:
            self.refuse(401, "GatedRepo", "Access to this dataset is restricted")
        else:
            self.answer_file(rest[1], "/".join(rest[2:]))

    def find(self, revision):
        commit = self.hub.revisions.get(revision, revision)
        if commit in self.hub.commits:
            return commit
        self.refuse(404, "RevisionNotFound", "Invalid rev id")
        return None

    def answer_info(self, revision):
        commit = self.find(revision)
        if commit is not None:
            self.send_json({"id": self.hub.name, "sha": commit, "cardData": self.hub.card, "tags": [], "downloads": 0})

    def answer_paths(self, rest):
        commit = self.find(rest[1])
        if commit is None:
            return
        files = self.hub.commits[commit]
        if rest[0] == "paths-info":
            wanted = parse_qs(self.body.decode())["paths"]
            found = [entry for path in wanted if (entry := self.entry(commit, path)) is not None]
            self.send_json(found)
            return
        folder, query = "/".join(rest[2:]), parse_qs(urlsplit(self.path).query)
        below = f"{folder}/" if folder else ""
        depth = below.count("/") + 1
        every = {path for path in files if path.startswith(below)}
        parents = {"/".join(path.split("/")[:n]) for path in every for n in range(depth, path.count("/") + 1)}
        if query["recursive"][0] != "true" and query["recursive"][0] != "True":
            every = {path for path in every if path.count("/") < depth}
            parents = {path for path in parents if path.count("/") < depth}
        if not every and not parents:
            self.refuse(404, "EntryNotFound", "no such folder")
            return
        entries = [self.entry(commit, path) for path in sorted(every | parents)]
        at = int(query.get("cursor", ["0"])[0])
        following = f"{self.hub.url}{urlsplit(self.path).path}?recursive={query['recursive'][0]}&cursor={at + PAGE}"
        link = {"Link": f'<{following}>; rel="next"'} if at + PAGE < len(entries) else {}
        self.send_json(entries[at : at + PAGE], link)

    def entry(self, commit, path):
        files = self.hub.commits[commit]
        if path in files:
            content = files[path]
            return {"type": "file", "path": path, "size": len(content), "oid": self.hub.oids[id(content)]}
        if any(each.startswith(f"{path}/") for each in files):
            return {"type": "directory", "path": path, "oid": "0" * 40}
        return None

    def answer_file(self, revision, path):
        commit = self.find(revision)
        if commit is None:
            return
        content = self.hub.commits[commit].get(path)
        if content is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
        elif path in self.hub.inline:
            self.send_ranges(content)
        else:
            there = f"{self.hub.storage}/blobs/{commit}/{quote(path)}?Signature={self.hub.signature}"
            named = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(content)), "X-Linked-ETag": '"linked"'}
            self.send(302, b"", {"Location": there, **named})


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """A client that went away is no fault of the server."""


@contextlib.contextmanager
def serving_hub():
    """Serve a dataset without commits."""
    hub = HubServer()
    servers = [
        # Two names, as a token may go to one of them only.
        _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "is_storage": is_storage}))
        for is_storage in (False, True)
    ]
    hub.url = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.storage = f"http://localhost:{servers[1].server_address[1]}"
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def main(folder, latency):
    """Serve the files of a folder in this process until its standard input ends; print address and process id."""
    with serving_hub() as hub:
        files = {}
        for path in Path(folder).iterdir():
            with path.open("rb") as file:
                files[path.name] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        hub.commit(files)
        hub.latency = float(latency)
        sys.stdout.write(f"{hub.url}\n{os.getpid()}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
