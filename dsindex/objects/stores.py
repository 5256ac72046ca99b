"""The stores behind addresses, and the requests that readers make: look at an object, read a range, list a folder.

Credentials are found by obstore on the machine that makes a request, and are neither sent nor stored.
"""

from __future__ import annotations

import functools
import os
import re
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.objects.google_store import token_for_readers
from dsindex.objects.relay import get_by_relay, list_by_relay
from dsindex.objects.requests import EmptyRangeError, MissingObjectError, changed_object, count_requests, insist
from dsindex.objects.urls import OWN_VERSION, ObjectIdentity, ObjectUrl

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.objects.urls import Access

CHUNK_BYTES = 64 << 10
"""Bytes of an answer that are copied at once into memory that is there."""
HEAD_BYTES = 4096
"""Bytes that are read of an object to look at it."""
REQUEST_SECONDS = 30
CONNECT_SECONDS = 5
_PAGE_ENTRIES = 1000
_PLAIN_WEB_PATH = re.compile(r"[A-Za-z0-9._/-]*")
"""Paths that are the same in any encoding."""
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
"""Beginnings of the variables by which obstore finds credentials and servers."""
_REMEMBERED_HEADS = 4096
_heads: OrderedDict[tuple[str, ObjectIdentity], bytes] = OrderedDict()
"""The first bytes of the objects that were looked at last: small ones are read once."""


def look_at_object(url: ObjectUrl) -> tuple[ObjectUrl, bytes]:
    """Return the address with the object's identity, and the object's first HEAD_BYTES bytes, by one request.

    Raises:
        InputError: If it cannot be read, or its server does not say by what a change is noticed.
    """
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
    into: memoryview[int] | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
) -> Any:  # noqa: ANN401 - obstore's bytes
    """Return the bytes [begin, end) of an object that was looked at, as a buffer.

    Args:
        url: The object.
        begin: First byte.
        end: One past the last byte.
        into: Memory of this size for them, which is returned unless it was not needed; None for new memory.
        is_given_up: Tells whether nobody waits for the answer any more.

    Raises:
        InputError: If it cannot be read, or is another object by now.
    """
    identity = url.identity
    if identity is None:
        msg = f"expected an object that was looked at, got {url}"
        raise ValueError(msg)
    is_own = identity.version.startswith(OWN_VERSION)
    try:
        content, meta = get_range(url, begin, end, if_match=identity.version, into=into, is_given_up=is_given_up)
    except MissingObjectError as error:
        if not is_own:
            raise
        msg = f"{url}: cannot be read (it was removed meanwhile); run the same command again to rebuild it"
        raise MissingObjectError(msg) from error
    is_same = int(meta["size"]) == identity.size_bytes
    if not is_own:
        is_same = _identity(url, meta) == identity
    if not is_same or len(content) != end - begin:
        raise changed_object(url)
    return content


def list_folder(url: ObjectUrl, *, recursive: bool = True) -> list[ObjectUrl]:
    """Return the objects below a folder, with their identities, sorted by the bytes of their keys.

    Args:
        url: The folder.
        recursive: Whether to list its subfolders, too.

    Raises:
        InputError: If it cannot be listed.
    """
    objects = [
        url.with_key(entry["path"], identity=_identity(url.with_key(entry["path"]), entry))
        for entry in list_entries(url, recursive=recursive)
    ]
    return sorted(objects, key=os.fsencode)


def list_entries(url: ObjectUrl, *, recursive: bool) -> list[Any]:
    """Return what a store says of each object below a folder: `path`, `size`, `e_tag` and `last_modified`.

    Raises:
        InputError: If it cannot be listed.
    """
    if _is_forked():
        return list_by_relay(url, recursive=recursive)
    import obstore

    store = _bucket_store(url.scheme, url.bucket, url.access)

    def request() -> list[Any]:
        if not recursive:
            found = list(obstore.list_with_delimiter(store, url.key.strip("/"))["objects"])
            count_requests(lists=max(1, -(-len(found) // _PAGE_ENTRIES)))
            return found
        pages = list(obstore.list(store, url.key.strip("/"), chunk_size=_PAGE_ENTRIES))
        count_requests(lists=max(1, len(pages)))
        return [entry for page in pages for entry in page]

    return insist(url, request)


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
    into: memoryview[int] | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
) -> tuple[Any, Any]:
    """Return the bytes [begin, end) of an object as a buffer, and what its store says of it.

    Args:
        url: The object.
        begin: First byte, which must exist.
        end: One past the last byte; may lie behind the object's end.
        if_match: The version that is expected; None for any.
        into: As for `read_range`.
        is_given_up: Tells whether nobody waits for the answer any more.

    Raises:
        InputError: If it cannot be read.
    """
    if _is_forked():
        return get_by_relay(url, begin, end, if_match)
    import_obstore(url)
    import obstore

    store, path = _store_of(url)
    options: dict[str, Any] = {"range": (begin, end)}
    if if_match is not None and if_match.startswith('"'):  # a weak ETag never matches
        options["if_match"] = if_match

    def request() -> tuple[Any, Any]:
        count_requests(gets=1)
        answer = obstore.get(store, path, options=options)
        content = answer.bytes() if into is None else _receive(url, answer, into)
        count_requests(received_bytes=len(content))
        return content, answer.meta

    return insist(url, request, is_given_up=is_given_up)


def _receive(url: ObjectUrl, answer: Any, into: memoryview[int]) -> memoryview[int]:  # noqa: ANN401 - obstore's
    """Copy an answer's content as it arrives; return what was filled."""
    filled = 0
    for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
        if filled + len(chunk) > len(into):
            raise changed_object(url)
        into[filled : filled + len(chunk)] = memoryview(chunk)
        filled += len(chunk)
    return into[:filled]


def _identity(url: ObjectUrl, meta: Any) -> ObjectIdentity:  # noqa: ANN401 - obstore's ObjectMeta
    version, modified = meta["e_tag"], meta["last_modified"]
    if version is not None and not version.startswith(('"', "W/")):
        version = f'"{version}"'  # listings of Azure have them without quotes
    if version is None and modified is not None and modified.timestamp() > 0:
        version = f"modified {modified.isoformat()}"
    if version is None:
        msg = (
            f"{url}: expected a server that says when a file changes, by ETag or Last-Modified, got one that does not; "
            f"download the file"
        )
        raise InputError(msg)
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


def _store_of(url: ObjectUrl) -> tuple[Any, str]:
    """Return the store, and the object's path in it."""
    if not url.is_web:
        return _bucket_store(url.scheme, url.bucket, url.access), url.key
    if not url.query and _PLAIN_WEB_PATH.fullmatch(url.key):
        return _web_store(f"{url.scheme}://{url.bucket}", ""), url.key
    return _web_store(str(url), url.query), ""


_CLIENT: dict[str, Any] = {
    "timeout": timedelta(seconds=REQUEST_SECONDS),
    "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
}
_NO_RETRIES: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)}


def _client(variable: str) -> dict[str, Any]:
    """Return the client's options, which allow servers without encryption if an environment variable says so."""
    return {**_CLIENT, "allow_http": os.environ.get(variable, "").lower() == "true"}


@functools.lru_cache(64)
def _web_store(base: str, query: str) -> Any:  # noqa: ANN401 - obstore's store
    from obstore.store import HTTPStore

    return HTTPStore.from_url(
        f"{base}?{query}" if query else base,
        client_options={**_CLIENT, "allow_http": base.startswith("http:")},
        retry_config=_NO_RETRIES,
    )


_first_process: list[int] = []
"""The process in which requests were made first; its forked children have its memory, but not its threads."""


def _is_forked() -> bool:
    if not _first_process:
        _first_process.append(os.getpid())
    return _first_process[0] != os.getpid()


def _bucket_store(scheme: str, bucket: str, access: Access) -> Any:  # noqa: ANN401 - obstore's store
    """Return the store of a bucket, another one if the environment has changed, as it may in a notebook."""
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
            return GCSStore(bucket, client_options=_client("GOOGLE_ALLOW_HTTP"), retry_config=_NO_RETRIES, **google)
        except BaseError as error:
            msg = f"gs://{bucket}: expected credentials of Google, got others; check what GOOGLE_… variables name"
            raise InputError(msg) from error
    if scheme == "az":
        return AzureStore(bucket, client_options=_client("AZURE_ALLOW_HTTP"), retry_config=_NO_RETRIES)
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
    return S3Store(bucket, client_options={**_CLIENT, "allow_http": is_open}, retry_config=_NO_RETRIES, **options)


def _google_credentials(bucket: str) -> dict[str, Any]:
    """Return what finds those credentials of Google that obstore itself does not know.

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
    """Return what finds the credentials of the profile that AWS_PROFILE names, which obstore itself does not read.

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
