"""Read requests to object stores: head, range, list.

Credentials are found by obstore on the machine that makes a request, and are neither sent nor stored.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, wait
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.errors import InputError, MissingObjectError, StoreError
from dsindex.store import requests
from dsindex.store.clients import describe_reading, list_pages
from dsindex.store.google_store import token_for_readers
from dsindex.store.hub import list_files, locate_file, pin, token_for
from dsindex.store.redirects import (
    amazon_hosts,
    azure_hosts,
    find_redirect,
    google_hosts,
    is_redirect,
    only_hosts,
    redirects,
)
from dsindex.store.requests import (
    EmptyRangeError,
    RefusedRedirectError,
    changed_object,
    count_requests,
    fetch_later,
    retry,
    status_of,
    unusable_key,
)
from dsindex.store.urls import OWN_VERSION, ObjectIdentity, ObjectUrl, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dsindex.store.urls import Access


# Requests of forked processes, made by a fresh process.
#
# obstore runs threads, which a forked process does not have: there, its requests would never end, and would disturb
# those of the parent. torch's DataLoader forks its workers, so each of them starts a process of its own
# (`relay_process.py`) when it first needs an object, and the two talk through pipes.

_ERRORS: dict[str, type[InputError]] = {
    kind.__name__: kind for kind in (InputError, StoreError, MissingObjectError, requests.EmptyRangeError)
} | {requests.ChangedObjectError.__name__: requests.ChangedObjectError}

_PROCESSES = 3
"""Maximum restarts per request: what ended one process, such as a lack of memory, may end the next."""


class _LostError(Exception):
    """The process ended before it answered."""


class _Relay:
    """A process that makes requests, and its pending answers."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "dsindex.store.relay_process"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._lock = threading.Lock()
        self._owed: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._number = 0
        self.has_ended = False
        """Whether the process is gone."""
        threading.Thread(target=self._receive, name="dsindex-relay", daemon=True).start()

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the header and the content of an answer.

        Raises:
            _LostError: If there is none.
            InputError: If the object cannot be read.
        """
        future: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._lock:
            if self.has_ended:
                raise _LostError
            self._number += 1
            self._owed[self._number] = future
            line = json.dumps({**request, "id": self._number}).encode() + b"\n"
            stdin = self._process.stdin
            with contextlib.suppress(BrokenPipeError):  # then the receiver ends what is owed
                if stdin is not None:
                    stdin.write(line)
                    stdin.flush()
        head, content = future.result()
        if "lost" in head:
            raise _LostError
        if "error" in head:
            error = _ERRORS.get(head["error"], InputError)(head["message"])
            error.transient = head["transient"]
            raise error
        return head, content

    def _receive(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError):  # what cannot be understood ends it, too
            while self._receive_answer():
                pass
        self._process.kill()  # before anyone is told: this process may end as soon as a request has failed
        self._process.wait()
        with self._lock:
            self.has_ended = True
            owed, self._owed = self._owed, {}
        for future in owed.values():
            future.set_result(({"lost": True}, b""))

    def _receive_answer(self) -> bool:
        """Resolve the future of the next answer; False at the end of the stream."""
        stdout = self._process.stdout
        line = b"" if stdout is None else stdout.readline()
        if stdout is None or not line.endswith(b"\n"):
            return False
        head = json.loads(line)
        content = stdout.read(head["size"])
        if len(content) < head["size"]:
            return False
        with self._lock:
            future = self._owed.pop(head["id"])
        future.set_result((head, content))
        return True


_relay: _Relay | None = None
_lock = threading.Lock()


def _forget() -> None:
    """Reset after a fork: the relay belongs to the parent."""
    global _relay, _lock
    _relay, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def get_by_relay(url: ObjectUrl, begin: int, end: int, if_match: str | None) -> tuple[bytes, dict[str, Any]]:
    """Return bytes [begin, end) of an object and its metadata, as obstore does.

    Raises:
        InputError: If it cannot be read.
    """
    head, content = _ask({**_address(url), "begin": begin, "end": end, "if_match": if_match})
    requests.count_requests(gets=1, received_bytes=len(content))
    return content, _parse_entry(head["meta"])


def list_by_relay(url: ObjectUrl, *, recursive: bool) -> list[dict[str, Any]]:
    """Return the objects below a folder, as obstore does.

    Raises:
        InputError: If it cannot be listed.
    """
    _, content = _ask({**_address(url), "recursive": recursive})
    requests.count_requests(lists=1)
    return [_parse_entry(entry) for entry in json.loads(content)]


def _ask(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    global _relay
    for _ in range(_PROCESSES):
        with _lock:
            if _relay is None or _relay.has_ended:
                _relay = _Relay()
            relay = _relay
        with contextlib.suppress(_LostError):
            return relay.ask(request)
    error = InputError(f"{request['url']}: cannot be read (the process that reads for a forked one ends); try again")
    error.transient = True
    raise error


def _address(url: ObjectUrl) -> dict[str, Any]:
    return {"url": str(url), "query": url.query, "endpoint_url": url.access.endpoint_url, "region": url.access.region}


def _parse_entry(entry: dict[str, Any]) -> dict[str, Any]:
    modified = entry["last_modified"]
    return {**entry, "last_modified": None if modified is None else datetime.fromisoformat(modified)}


HEAD_BYTES = 4096
"""Bytes read along with the metadata."""
REQUEST_SECONDS = 30
CONNECT_SECONDS = 5
_PAGE_ENTRIES = 1000
_PLAIN_WEB_PATH = re.compile(r"[A-Za-z0-9._/-]*")
"""Paths without characters to escape."""
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
"""Prefixes of obstore's environment variables."""
_REMEMBERED_HEADS = 4096
_LISTING_SECONDS = 10.0
"""Interval of the listing's progress message."""
_STATUSES_OF_OBJECTS = {408, 412, 416, 429}
"""Refusals that have nothing to do with the address of a redirect."""
_PAGE_SECONDS = 600.0
"""Maximum time without an entry in a listing."""
_heads: OrderedDict[tuple[str, ObjectIdentity], bytes] = OrderedDict()
"""The first bytes of recently headed objects, so that small ones take one request."""


Say: TypeAlias = "Callable[[str], None]"
"""Callback for progress messages."""


def ignore(_: str) -> None:
    """Discard a message."""


def head_object(url: ObjectUrl) -> tuple[ObjectUrl, bytes]:
    """Return the URL pinned to the object's identity, and its first HEAD_BYTES bytes, in one request.

    Raises:
        InputError: If it cannot be read, or its server does not say by what a change is noticed.
    """
    url = parse_url(pin(url))
    if url.is_folder:
        raise MissingObjectError(f"{url}: expected a file, got a folder; name one of its files")
    if url.identity is not None:
        key = (str(url), url.identity)
        head = _heads.get(key)
        if head is None:
            end = min(HEAD_BYTES, url.identity.size_bytes)
            head = bytes(read_range(url, 0, end)) if end else b""
            _remember(key, head)
        return url, head
    try:
        content, meta = get_range(url, 0, HEAD_BYTES)
    except EmptyRangeError:
        return url.identified(ObjectIdentity(size_bytes=0, version="empty")), b""
    identity = _identity(url, meta)
    head = bytes(content)
    _remember((str(url), identity), head)
    return url.identified(identity), head


def read_range(
    url: ObjectUrl,
    begin: int,
    end: int,
    *,
    is_given_up: Callable[[], bool] = lambda: False,
) -> Any:  # noqa: ANN401 - obstore's bytes
    """Return bytes [begin, end) of a pinned object.

    Args:
        url: The object.
        begin: First byte.
        end: One past the last byte.
        is_given_up: Tells whether nobody waits for the answer any more.

    Raises:
        InputError: If it cannot be read, or is another object by now.
    """
    identity = url.identity
    if identity is None:
        raise ValueError(f"expected an object that was looked at, got {url}")
    is_own = identity.version.startswith(OWN_VERSION)
    try:
        content, meta = get_range(url, begin, end, if_match=identity.version, is_given_up=is_given_up)
    except MissingObjectError as error:
        if not is_own:
            raise
        msg = f"{url}: cannot be read (it was removed meanwhile); run the same command again to rebuild it"
        raise MissingObjectError(msg) from error
    is_same = int(meta["size"]) == identity.size_bytes
    if not is_own and url.scheme != "hf":  # an address with a commit has one content
        is_same = _identity(url, meta) == identity
    if not is_same or len(content) != end - begin:
        raise changed_object(url)
    return content


def list_folder(url: ObjectUrl, *, recursive: bool = True, say: Say = ignore) -> list[ObjectUrl]:
    """Return the objects below a folder, pinned, sorted by the bytes of their keys.

    Args:
        url: The folder.
        recursive: Whether to list its subfolders, too.
        say: Shows how many there are so far, from time to time.

    Raises:
        InputError: If it cannot be listed.
    """
    if url.scheme == "hf":
        return list_files(url, recursive=recursive)
    objects = [
        url.with_key(entry["path"], identity=_identity(url.with_key(entry["path"]), entry))
        for entry in list_entries(url, recursive=recursive, say=say)
    ]
    return sorted(objects, key=os.fsencode)


def find_stored(beginning: str) -> list[str]:
    """Return the paths of files, or the addresses of objects, that begin so and are in the same folder.

    Raises:
        InputError: If a bucket cannot be listed.
    """
    if not isinstance(beginning, ObjectUrl):
        return sorted(glob.glob(f"{glob.escape(beginning)}*"))
    found = list_folder(beginning.with_key(os.path.dirname(beginning.key)), recursive=False)
    return [str(url) for url in found if url.startswith(beginning)]


def list_entries(url: ObjectUrl, *, recursive: bool, say: Say = ignore) -> list[Any]:
    """Return the metadata of each object below a folder: `path`, `size`, `e_tag` and `last_modified`.

    Raises:
        InputError: If it cannot be listed.
    """
    if _is_forked():
        return list_by_relay(url, recursive=recursive)
    # With boto3, each page is a request of ours; obstore follows a listing to its end, and none may be there.
    pages = _pages_by_boto3(url, recursive) if url.scheme == "s3" else _pages_by_obstore(url, recursive)
    entries: list[Any] = []
    due = time.monotonic() + _LISTING_SECONDS
    for page in pages:
        entries += page
        if time.monotonic() >= due:
            say(f"{url}: {len(entries):,} objects listed so far")
            due += _LISTING_SECONDS
    return entries


def _pages_by_boto3(url: ObjectUrl, recursive: bool) -> Iterator[list[Any]]:
    for page in list_pages(url, describe=describe_reading, recursive=recursive):
        for entry in page:
            if {"", ".", ".."} & set(entry["Key"].removesuffix("/").split("/")):
                raise unusable_key(url)
        yield [
            {
                "path": entry["Key"],
                "size": entry["Size"],
                "e_tag": entry.get("ETag"),
                "last_modified": entry.get("LastModified"),
            }
            for entry in page
        ]


def _pages_by_obstore(url: ObjectUrl, recursive: bool) -> Iterator[list[Any]]:
    import obstore

    store = _bucket_store(url.scheme, url.bucket, url.access)

    found: list[Any] = []
    num_pages = 0

    def request() -> None:
        nonlocal num_pages
        found.clear()
        if not recursive:
            found.extend(obstore.list_with_delimiter(store, url.key.strip("/"))["objects"])
            count_requests(lists=max(1, -(-len(found) // _PAGE_ENTRIES)))
            return
        seen: set[str] = set()
        for page in obstore.list(store, url.key.strip("/"), chunk_size=_PAGE_ENTRIES):
            count_requests(lists=1)
            if page[0]["path"] in seen:
                raise StoreError(f"{url}: expected a listing that ends, got one that comes to the same page again")
            seen.update(entry["path"] for entry in page)
            found.extend(page)
            num_pages += 1

    # obstore reads pages without an entry for as long as the store sends them, and returns for no signal.
    pages: Future[None] = fetch_later(lambda: retry(url, request))
    before = -1
    while not pages.done() and num_pages > before:
        before = num_pages
        wait([pages], timeout=_PAGE_SECONDS)
    if not pages.done():
        msg = f"{url}: expected a listing that ends, got no entry for {_PAGE_SECONDS:g} seconds; check the store"
        raise StoreError(msg)
    pages.result()
    yield found


def _await(request: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
    """Run a request of obstore off the main thread: obstore does not return on signals."""
    is_main = threading.current_thread() is threading.main_thread()
    return fetch_later(request).result() if is_main else request()


def _remember(key: tuple[str, ObjectIdentity], head: bytes) -> None:
    _heads[key] = head
    while len(_heads) > _REMEMBERED_HEADS:
        _heads.popitem(last=False)


def get_range(
    url: ObjectUrl,
    begin: int,
    end: int,
    *,
    if_match: str | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
) -> tuple[Any, Any]:
    """Return bytes [begin, end) of an object, and its metadata.

    Args:
        url: The object.
        begin: First byte, which must exist.
        end: One past the last byte; may lie behind the object's end.
        if_match: The version that is expected; None for any.
        is_given_up: Tells whether nobody waits for the answer any more.

    Raises:
        InputError: If it cannot be read.
    """
    if _is_forked():
        return get_by_relay(url, begin, end, if_match)
    import_obstore(url)
    options: dict[str, Any] = {"range": (begin, end)}
    if if_match is not None and if_match.startswith('"'):  # a weak ETag never matches
        options["if_match"] = if_match

    def request() -> tuple[Any, Any]:
        count_requests(gets=1)
        answer = _get(url, options)
        content = answer.bytes()
        count_requests(received_bytes=len(content))
        return content, answer.meta

    answer: tuple[Any, Any] = _await(lambda: retry(url, request, is_given_up=is_given_up))
    return answer


def _get(url: ObjectUrl, options: dict[str, Any]) -> Any:  # noqa: ANN401 - obstore's answer
    """Request an object, following a web server's or the Hub's redirect."""
    import obstore
    from obstore.exceptions import BaseError

    if not url.is_web and url.scheme != "hf":
        return obstore.get(_bucket_store(url.scheme, url.bucket, url.access), url.key, options=options)
    there = redirects.get(url.raw)
    if there is None and url.is_web:
        try:
            return obstore.get(*_web_file(url), options=options)
        except BaseError as error:
            if not is_redirect(error):
                raise
    if there is None:
        there = redirects[url.raw] = parse_url(find_redirect(url)) if url.is_web else locate_file(url)
    try:
        return obstore.get(*_web_file(there, url), options=options)
    except Exception as error:
        status = status_of(error)
        if status is not None and (status >= 500 or status in _STATUSES_OF_OBJECTS):
            raise
        if redirects.get(url.raw) is there:
            redirects.pop(url.raw, None)  # signed addresses end after a while: the next attempt asks for another
        if status is None and not is_redirect(error):
            raise
        raise RefusedRedirectError(there.bucket, status or "another redirect") from None


def _identity(url: ObjectUrl, meta: Any) -> ObjectIdentity:  # noqa: ANN401 - obstore's ObjectMeta
    version, modified = meta["e_tag"], meta["last_modified"]
    if version is not None and not version.startswith(('"', "W/")):
        version = f'"{version}"'  # listings of Azure have them without quotes
    if version is None and modified is not None and modified.timestamp() > 0:
        version = f"modified {modified.isoformat()}"
    if version is None:
        raise InputError(
            f"{url}: expected a server that says when a file changes, by ETag or Last-Modified, got one that does not; "
            f"download the file"
        )
    return ObjectIdentity(size_bytes=int(meta["size"]), version=version)


def import_obstore(url: str) -> None:
    """Check that the library is installed.

    Raises:
        InputError: If it is not.
    """
    try:
        import obstore  # noqa: F401 - only whether it is there
    except ImportError as error:
        msg = f"{url}: inputs in object stores need the obstore package; pip install 'dsindex[objects]' on every node"
        raise InputError(msg) from error


def _web_file(url: ObjectUrl, asked: ObjectUrl | None = None) -> tuple[Any, str]:
    """Return the store of a web server, and the path of the file in it.

    Args:
        url: Its address.
        asked: The address that was redirected there; the Hub gets the user's token for files that it serves itself.
    """
    token = token_for(url, asked) if asked is not None and asked.scheme == "hf" else None
    if not url.query and _PLAIN_WEB_PATH.fullmatch(url.key):
        return _web_store(f"{url.scheme}://{url.bucket}", "", token), url.key
    return _web_store(str(url), url.query, token), ""


_CLIENT: dict[str, Any] = {
    "timeout": timedelta(seconds=REQUEST_SECONDS),
    "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
}
_NO_RETRIES: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)}


def _client(prefix: str, hosts: Iterable[str]) -> dict[str, Any]:
    """Return the client options; an environment variable allows plain HTTP."""
    is_open = os.environ.get(f"{prefix}ALLOW_HTTP", "").lower() == "true"
    return {**_CLIENT, "allow_http": is_open, **only_hosts(hosts, prefix=prefix)}


@functools.lru_cache(64)
def _web_store(base: str, query: str, token: str | None) -> Any:  # noqa: ANN401 - obstore's store
    from obstore.store import HTTPStore

    headers = {} if token is None else {"default_headers": {"Authorization": f"Bearer {token}"}}
    return HTTPStore.from_url(
        f"{base}?{query}" if query else base,
        client_options={**_CLIENT, **headers, "allow_http": base.startswith("http:"), **only_hosts([base])},
        retry_config=_NO_RETRIES,
    )


_first_process: list[int] = []
"""The process of the first request: its forks inherit the memory, not the threads."""


def _is_forked() -> bool:
    if not _first_process:
        _first_process.append(os.getpid())
    return _first_process[0] != os.getpid()


def _bucket_store(scheme: str, bucket: str, access: Access) -> Any:  # noqa: ANN401 - obstore's store
    """Return the store of a bucket, cached per environment, which may change in a notebook."""
    settings = frozenset((name, value) for name, value in os.environ.items() if name.startswith(_PREFIXES))
    return _make_bucket_store(scheme, bucket, access, hash(settings))


@functools.lru_cache(64)
def _make_bucket_store(scheme: str, bucket: str, access: Access, _environment: int) -> Any:  # noqa: ANN401 - obstore's store
    import_obstore(f"{scheme}://{bucket}")
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    if scheme == "gs":
        google = _google_credentials(bucket)
        try:
            client = _client("GOOGLE_", google_hosts())
            return GCSStore(bucket, client_options=client, retry_config=_NO_RETRIES, **google)
        except BaseError as error:
            msg = f"gs://{bucket}: expected credentials of Google, got others; check what GOOGLE_… variables name"
            raise InputError(msg) from error
    if scheme == "az":
        return AzureStore(bucket, client_options=_client("AZURE_", azure_hosts()), retry_config=_NO_RETRIES)
    environment = os.environ
    endpoint = (
        access.endpoint_url or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
    )
    options: dict[str, Any] = {}
    if endpoint is not None:
        # The variable would come before an endpoint that is given under the general name.
        options["aws_endpoint_url_s3" if environment.get("AWS_ENDPOINT_URL_S3") else "endpoint"] = endpoint
    if access.region is not None:
        options["region"] = access.region
    if environment.get("AWS_PROFILE"):
        options["credential_provider"] = _profile_credentials(f"{scheme}://{bucket}")
    is_open = endpoint is not None and endpoint.startswith("http:")
    client = {**_CLIENT, "allow_http": is_open, **only_hosts(amazon_hosts(endpoint, access.region), prefix="AWS_")}
    return S3Store(bucket, client_options=client, retry_config=_NO_RETRIES, **options)


def _google_credentials(bucket: str) -> dict[str, Any]:
    """Return the provider of Google credentials that obstore does not support.

    Raises:
        InputError: If google-auth, which knows them, is not installed.
    """
    try:
        token = token_for_readers()
    except ImportError as error:
        msg = f"gs://{bucket}: google-auth reads credentials of this kind; pip install 'dsindex[google]' on every node"
        raise InputError(msg) from error
    return {} if token is None else {"credential_provider": token}


def _profile_credentials(shown: str) -> Any:  # noqa: ANN401 - obstore's provider
    """Return the provider for AWS_PROFILE, which obstore does not read.

    Raises:
        InputError: If boto3, which reads it, is not installed, or there is no such profile.
    """
    try:
        from boto3.session import Session
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        msg = f"{shown}: a profile (AWS_PROFILE) is read by boto3; pip install 'dsindex[objects]' on every node"
        raise InputError(msg) from error
    try:
        return Boto3CredentialProvider(Session())
    except (BotoCoreError, ValueError) as error:
        msg = f"{shown}: the profile that AWS_PROFILE names has no credentials on this node; check ~/.aws there"
        raise InputError(msg) from error
