"""A server with the Hugging Face Hub's API for datasets, which is also the storage that the Hub redirects to.

The Hub itself serves the files in `inline`, like small files in git; it redirects requests for all other files to a
signed address in the storage. The storage has a different host name, so a client must not send its token there: the
server records such tokens in `leaks`.
"""

import contextlib
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

TOKEN = "hf_PlantedTokenOfTheTests"
SIGNATURE = "planted-signature-of-the-storage"


@dataclass
class Hub:
    """The state of the server: its files, the requests that it received, and the faults to inject."""

    url: str = ""
    storage: str = ""
    name: str = "org/name"
    commits: dict = field(default_factory=dict)
    """Commit → path → content."""
    revisions: dict = field(default_factory=dict)
    card: dict = field(default_factory=dict)
    inline: set = field(default_factory=set)
    private: bool = False
    gated: bool = False
    faults: list = field(default_factory=list)
    """(part of an address, HTTP status): the next request with that part in its address gets this status."""
    requests: list = field(default_factory=list)
    leaks: list = field(default_factory=list)

    def commit(self, files):
        """Add a commit, and move the branch main to it."""
        sha = hashlib.sha1(repr((sorted(files), len(self.commits))).encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(files)
        self.revisions["main"] = sha


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def handle_request(self):
        hub = self.hub
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_storage = self.path.startswith("/blobs/")
        place = f"{'storage' if is_storage else 'hub'} {self.path}"
        hub.requests.append(place)
        fault = next((planned for planned in hub.faults if planned[0] in place), None)
        if fault is not None:
            hub.faults.remove(fault)
            self.send(fault[1])
        elif is_storage:
            self.answer_storage()
        else:
            self.answer_hub()

    do_GET = do_HEAD = do_POST = handle_request

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value):
        self.send(200, json.dumps(value).encode())

    def answer_storage(self):
        parts = urlsplit(self.path)
        if "Authorization" in self.headers:
            self.hub.leaks.append(self.headers["Authorization"])
        if parse_qs(parts.query).get("Signature") != [SIGNATURE]:
            self.send(403, b"<Code>AccessDenied</Code>")
            return
        commit, _, path = unquote(parts.path).removeprefix("/blobs/").partition("/")
        self.send_range(self.hub.commits[commit][path])

    def send_range(self, content):
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content)), len(content) - 1)
        named = {"ETag": '"storage"', "Content_Range": f"bytes {begin}-{end}/{len(content)}"}
        self.send(206 if "Range" in self.headers else 200, content[begin : end + 1], **named)

    def answer_hub(self):
        hub, authorization = self.hub, self.headers.get("Authorization")
        words = [unquote(word) for word in urlsplit(self.path).path.strip("/").split("/")]
        is_api = words[0] == "api"
        [_, org, name, *parts] = words[1:] if is_api else words
        revision = parts[1] if len(parts) > 1 else "main"
        commit = hub.revisions.get(revision, revision)
        if authorization not in {None, f"Bearer {TOKEN}"}:
            self.send(401, X_Error_Message="Invalid credentials in Authorization header")
        elif f"{org}/{name}" != hub.name or (hub.private and authorization is None):
            self.send(401 if authorization is None else 404, X_Error_Code="RepoNotFound")
        elif commit not in hub.commits:
            self.send(404, X_Error_Code="RevisionNotFound")
        elif is_api and parts[:1] in ([], ["revision"]):
            self.send_json({"id": hub.name, "sha": commit, "cardData": hub.card, "tags": [], "downloads": 0})
        elif is_api:
            self.answer_paths(hub.commits[commit], parts)
        elif hub.gated and authorization is None:
            self.send(401, X_Error_Code="GatedRepo")
        else:
            self.answer_file(commit, "/".join(parts[2:]))

    def answer_paths(self, files, parts):
        folder = "/".join([*parts[2:], ""])
        if parts[0] == "paths-info":
            paths = [path for path in parse_qs(self.body.decode())["paths"] if path in files]
        else:
            paths = sorted(path for path in files if path.startswith(folder.lstrip("/")))
            if "recursive=true" not in self.path.lower():
                paths = [path for path in paths if "/" not in path.removeprefix(folder)]
            if not paths:
                self.send(404, X_Error_Code="EntryNotFound")
                return
        self.send_json([{"type": "file", "path": path, "size": len(files[path]), "oid": path} for path in paths])

    def answer_file(self, commit, path):
        content = self.hub.commits[commit].get(path)
        if content is None:
            self.send(404, X_Error_Code="EntryNotFound")
        elif path in self.hub.inline:
            self.send_range(content)
        else:
            self.send(302, Location=f"{self.hub.storage}/blobs/{commit}/{quote(path)}?Signature={SIGNATURE}")


@contextlib.contextmanager
def serving_hub():
    """Run a server whose dataset has no commits yet."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub}))
    hub.url, hub.storage = (f"http://{name}:{server.server_port}" for name in ("127.0.0.1", "localhost"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
