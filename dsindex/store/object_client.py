"""Objects in buckets (`s3:// gs:// az://`), files on web servers, and datasets on the Hub, by obstore.

Endpoints, regions and credentials are those of obstore's environment variables on the machine that makes a request. An
error of obstore may hold a signed address, so nothing of it is shown but its kind and the store's name of the error.

Requests run on one event loop in a thread: many at once, and a main thread that waits for one still hears Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from dsindex.errors import DsindexError, InputError, MissingObjectError, OutputError, StoreError
from dsindex.locations import Location
from dsindex.store import huggingface as hub
from dsindex.store.types import InputStatus
from dsindex.store.urls import is_web, split_address

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from concurrent.futures import Future

Answer = TypeVar("Answer")

REQUESTS_AT_ONCE = 64
"""Requests of a process that are in flight."""
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "HF_")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")
"""Web paths without characters to escape."""
_CLIENT = {"timeout": timedelta(seconds=300), "read_timeout": timedelta(seconds=30), "connect_timeout": "5s"}
_RETRIES = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
}


# One event loop per process.

_loop: asyncio.AbstractEventLoop | None = None
_process = 0
_starting = threading.Lock()
_slots = asyncio.Semaphore(REQUESTS_AT_ONCE)


def start(request: Coroutine[Any, Any, Answer]) -> Future[Answer]:
    """Begin a request.

    Raises:
        StoreError: In a process that was forked after the first request: obstore's threads are not in it.
    """
    global _loop, _process
    if _loop is not None and _process != os.getpid():
        request.close()
        raise StoreError(
            "objects cannot be read in a process that was forked after the first of them was; start workers with "
            "spawn, as by DataLoader(…, multiprocessing_context='spawn')"
        )
    with _starting:
        if _loop is None:
            _loop, _process = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="dsindex-store", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(_in_turn(request), _loop)


async def _in_turn(request: Coroutine[Any, Any, Answer]) -> Answer:
    async with _slots:
        return await request


def wait_for(request: Coroutine[Any, Any, Answer]) -> Answer:
    """Make a request and wait for its answer."""
    return start(request).result()


# Errors: one table for all of obstore's.

_NOT_ALLOWED = "the store does not allow it; check what this node's credentials may do"
_NOT_ACCEPTED = (
    "the store does not accept the credentials of this node; renew them, or set AWS_SKIP_SIGNATURE=true (GOOGLE_…, "
    "AZURE_…) for public data"
)
_REMEDIES = {
    **dict.fromkeys(("PermissionDeniedError", "AccessDenied"), _NOT_ALLOWED),
    **dict.fromkeys(
        ("UnauthenticatedError", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"), _NOT_ACCEPTED
    ),
    "FileNotFoundError": "there is no such object, and a folder ends in a slash; check the address",
    "NoSuchBucket": "there is no such bucket; check its name and AWS_ENDPOINT_URL",
    "NotSupportedError": "the server does not send parts of files; download it",
    "InvalidPathError": "a key has an empty part, `.` or `..` between slashes; rename the object",
    "UnknownConfigurationKeyError": "a variable of the environment has another value than the store's library takes",
}
"""Name of obstore's exception, or the store's of the error → what it means, and what to do."""
_TRANSIENT = (
    "the store cannot be reached, or refuses again and again; check credentials, AWS_ENDPOINT_URL, AWS_REGION and the "
    "network, then run the same command again"
)
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")


def described(url: str, error: Exception, *, writes: bool = False) -> DsindexError:
    """Return an error of obstore as a sentence."""
    kind = type(error).__name__
    if kind == "PreconditionError" and not writes:
        return InputError(
            f"{url}: expected the object that was looked at, got another; it was replaced meanwhile, run the job again "
            f"from the start once nothing writes to it"
        )
    code = match[1] if (match := _CODE.search(str(error))) else ""
    remedy = _REMEDIES.get(code) or _REMEDIES.get(kind)
    reason = ": ".join(filter(None, [code, remedy or _TRANSIENT]))
    if writes:
        failure: DsindexError = OutputError(f"{url}: cannot be written ({reason})")
    else:
        failure = (MissingObjectError if kind == "FileNotFoundError" else StoreError)(
            f"{url}: cannot be read ({reason})"
        )
    failure.transient = remedy is None
    return failure


@contextlib.contextmanager
def errors_described(url: str, *, writes: bool = False) -> Iterator[None]:
    """Put the block's errors of obstore into sentences.

    Raises:
        DsindexError: In their place.
    """
    try:
        yield
    except (BaseError, OSError) as error:  # a writer raises OSError
        raise described(url, error, writes=writes) from None


# Clients.


def client_of(url: str) -> tuple[Any, str]:
    """Return obstore's client for an address, and the key in it.

    Raises:
        BaseError: If obstore does not take what the environment has.
    """
    scheme, bucket, key = split_address(url)
    environment = hash(frozenset(each for each in os.environ.items() if each[0].startswith(_PREFIXES)))
    if scheme == "hf":
        base, key = hub.web_address(url)
        return _web_client(base, hub.token(), environment), key
    if not is_web(url):
        return _bucket_client(scheme, bucket, environment), key
    raw = url.raw if isinstance(url, Location) else url
    if raw == url and _PLAIN_PATH.fullmatch(key):
        return _web_client(f"{scheme}://{bucket}", None, environment), key
    return _web_client(raw, None, environment), ""


@functools.lru_cache(256)
def _web_client(base: str, token: str | None, _environment: int) -> Any:  # noqa: ANN401 - obstore's store
    headers = {} if token is None else {"default_headers": {"Authorization": f"Bearer {token}"}}
    options = {**_CLIENT, **headers, "allow_http": base.startswith("http:")}
    return HTTPStore.from_url(base, client_options=options, retry_config=_RETRIES)


@functools.lru_cache(64)
def _bucket_client(scheme: str, bucket: str, _environment: int) -> Any:  # noqa: ANN401 - obstore's store
    environment = os.environ
    if scheme in {"gs", "az"}:
        kind, prefix = {"gs": (GCSStore, "GOOGLE_"), "az": (AzureStore, "AZURE_")}[scheme]
        is_open = environment.get(f"{prefix}ALLOW_HTTP", "").lower() == "true"
        return kind(bucket, client_options={**_CLIENT, "allow_http": is_open}, retry_config=_RETRIES)
    if environment.get("AWS_PROFILE") and not environment.get("AWS_ACCESS_KEY_ID"):
        raise InputError(
            f"s3://{bucket}: expected credentials in the environment, got AWS_PROFILE, which is not read; run "
            f'eval "$(aws configure export-credentials --format env)" on every node'
        )
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    return S3Store(
        bucket,
        client_options={**_CLIENT, "allow_http": endpoint.startswith("http:")},
        retry_config=_RETRIES,
        **({"endpoint": endpoint} if endpoint else {}),
    )


def status_of(url: str, meta: Any) -> InputStatus:  # noqa: ANN401 - obstore's ObjectMeta
    """Return size and version by an object's metadata.

    Raises:
        InputError: If the server does not say by what a change is noticed.
    """
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
    modified_ns = 0 if modified is None else int(modified.timestamp()) * 10**9
    return InputStatus(path=url, size_bytes=int(meta["size"]), version=version, modified_ns=modified_ns)


# Reading.


async def get(url: str, begin: int, end: int, version: str = "") -> tuple[Any, Any]:
    """Return bytes [begin, end) and the object's metadata; the first must exist."""
    client, key = client_of(url)
    options: dict[str, Any] = {"range": (begin, end)}
    if version.startswith('"'):  # a weak ETag never matches
        options["if_match"] = version
    answer = await obstore.get_async(client, key, options=options)
    return await answer.bytes_async(), answer.meta


async def read_range(url: str, begin: int, end: int, version: str = "") -> Any:  # noqa: ANN401 - obstore's bytes
    """Return bytes [begin, end) of an object.

    Args:
        url: Its address.
        begin: First byte.
        end: One past the last byte.
        version: The version that is expected; empty for an object that is never overwritten.

    Raises:
        InputError: If it cannot be read, or is another object by now.
    """
    with errors_described(url):
        content, _ = await get(url, begin, end, version)
    if len(content) != end - begin:
        raise InputError(f"{url}: expected {end} bytes, got an object that ends before; run the same command again")
    return content
