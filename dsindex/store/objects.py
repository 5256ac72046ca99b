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
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from dsindex.errors import DsindexError, InputError, MissingObjectError, OutputError, StoreError
from dsindex.locations import Location
from dsindex.store import huggingface as hub
from dsindex.store.object_file import ObjectReader
from dsindex.store.storage import DigestingWriter
from dsindex.store.store import Bytes, InputStatus
from dsindex.store.urls import is_web, names_folder, split_address

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence
    from concurrent.futures import Future

Answer = TypeVar("Answer")

PART_BYTES = 16 << 20
"""Size of an upload's parts, unless there would be too many."""
MOST_PARTS = 10_000
PARTS_AT_ONCE = 8
REQUESTS_AT_ONCE = 64
"""Requests of a process that are in flight."""
PAGE_ENTRIES = 1000
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

_REMEDIES = {
    "FileNotFoundError": "there is no such object or bucket, and a folder ends in a slash; check the address",
    "PermissionDeniedError": "the store does not allow it; check what this node's credentials may do",
    "UnauthenticatedError": "the store does not accept the credentials of this node; renew them, or set "
    "AWS_SKIP_SIGNATURE=true (GOOGLE_…, AZURE_…) for public data",
    "NotSupportedError": "the server does not send parts of files; download it",
    "InvalidPathError": "a key has an empty part, `.` or `..` between slashes; rename the object",
    "UnknownConfigurationKeyError": "a variable of the environment has another value than the store's library takes",
}
"""Name of obstore's exception → what it means, and what to do."""
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
    reason = ": ".join(filter(None, [code, _REMEDIES.get(kind, _TRANSIENT)]))
    if writes:
        failure: DsindexError = OutputError(f"{url}: cannot be written ({reason})")
    else:
        failure = (MissingObjectError if kind == "FileNotFoundError" else StoreError)(
            f"{url}: cannot be read ({reason})"
        )
    failure.transient = kind not in _REMEDIES and code != "NoSuchBucket"
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
    if scheme == "gs":
        return GCSStore(bucket, client_options=_CLIENT, retry_config=_RETRIES)
    if scheme == "az":
        return AzureStore(bucket, client_options=_CLIENT, retry_config=_RETRIES)
    environment = os.environ
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


def _status(url: str, meta: Any) -> InputStatus:  # noqa: ANN401 - obstore's ObjectMeta
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


def _token(result: Any) -> str:  # noqa: ANN401 - obstore's metadata
    """Return what identifies a version for a conditional write: ETag, and Google's generation."""
    return f"{result['e_tag'] or ''} {result.get('version') or ''}"


# Reading.


async def _get(url: str, begin: int, end: int, version: str = "") -> tuple[Any, Any]:
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
        content, _ = await _get(url, begin, end, version)
    if len(content) != end - begin:
        raise InputError(f"{url}: expected {end} bytes, got an object that ends before; run the same command again")
    return content


async def _head(url: str) -> InputStatus:
    client, key = client_of(url)
    if is_web(url) or url.startswith("hf://"):  # signed addresses and some servers refuse HEAD
        with contextlib.suppress(GenericError):  # of an empty file
            return _status(url, (await _get(url, 0, 1))[1])
    return _status(url, await obstore.head_async(client, key))


class ObjectStore:
    """Objects, wherever they are."""

    def head(self, path: str) -> InputStatus:
        """Return size and ETag.

        Raises:
            MissingObjectError: If there is no such object.
            InputError: If it cannot be looked at.
        """
        return hub.head(path) if path.startswith("hf://") else self._looked_at(path)

    def _looked_at(self, path: str) -> InputStatus:
        if names_folder(path):
            raise MissingObjectError(f"{path}: expected a file, got a folder; name one of its files")
        with errors_described(path):
            return wait_for(_head(path))

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[ObjectReader]:
        """Open an object for reading, as it is now."""
        reader = ObjectReader(self._looked_at(path))
        try:
            yield reader
        finally:
            reader.close()

    def read(self, path: str, *, most_bytes: int | None = None) -> tuple[bytes, str] | None:
        """Return a small object and its version; None if absent."""

        async def request() -> tuple[bytes, str]:
            client, key = client_of(path)
            answer = await obstore.get_async(client, key)
            if most_bytes is not None and answer.meta["size"] > most_bytes:
                return bytes((await _get(path, 0, most_bytes))[0]), _token(answer.meta)
            return bytes(await answer.bytes_async()), _token(answer.meta)

        with contextlib.suppress(MissingObjectError), errors_described(path):
            return wait_for(request())
        return None

    def put(self, path: str, data: Bytes) -> str:
        """Write or replace an object."""
        version = self._put(path, data, "overwrite")
        if version is None:
            raise OutputError(f"{path}: cannot be written (the store refuses); check it")
        return version

    def put_if_absent(self, path: str, data: Bytes) -> str | None:
        """Write an object if there is none."""
        version = self._put(path, data, "create")
        return self._mine(path, data) if version is None else version

    def put_if_match(self, path: str, data: Bytes, version: str) -> str | None:
        """Replace a version of an object."""
        e_tag, _, generation = version.partition(" ")
        for tag in dict.fromkeys((e_tag, e_tag.strip('"'))):  # Ceph's radosgw 16 compares without quotation marks
            put = self._put(path, data, {"e_tag": tag, **({"version": generation} if generation else {})})
            if put is None:
                put = self._mine(path, data)
            if put is not None:
                return put
        return None

    def _put(self, path: str, data: Bytes, mode: Any) -> str | None:  # noqa: ANN401 - obstore's PutMode
        """Write an object; None if a condition is not met."""

        async def request() -> str:
            client, key = client_of(path)
            return _token(await obstore.put_async(client, key, bytes(data), mode=mode, chunk_size=PART_BYTES))

        with errors_described(path, writes=True):
            try:
                return wait_for(request())
            except _UNMET:
                if mode == "overwrite":
                    raise
                return None

    def _mine(self, path: str, data: Bytes) -> str | None:
        """Return the version of an object that has this content: it was written, and the answer was lost."""
        found = self.read(path, most_bytes=len(data) + 1)
        return found[1] if found is not None and found[0] == bytes(data) else None

    def list(self, folder: str, *, recursive: bool = True) -> Sequence[InputStatus]:
        """Return the objects in a folder, or below it."""
        if folder.startswith("hf://"):
            return hub.list_files(folder, recursive=recursive)
        scheme, bucket, key = split_address(folder)

        async def request() -> list[Any]:
            client, _ = client_of(folder)
            if not recursive:
                return list((await obstore.list_with_delimiter_async(client, key.rstrip("/")))["objects"])
            pages = obstore.list(client, key.rstrip("/"), chunk_size=PAGE_ENTRIES)
            return [entry async for page in pages for entry in page]

        with errors_described(folder):
            found = wait_for(request())
        return sorted(
            (_status(f"{scheme}://{bucket}/{entry['path']}", entry) for entry in found),
            key=lambda each: os.fsencode(each.path),
        )

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete objects of one bucket; return those that are refused."""
        wanted = list(paths)
        if not wanted:
            return []

        async def request(some: Sequence[str]) -> None:
            client, _ = client_of(wanted[0])
            await obstore.delete_async(client, [split_address(path).key for path in some])

        with contextlib.suppress(BaseError, OSError):  # of one key, or of all
            wait_for(request(wanted))
            return []
        left = []
        for path in wanted:
            try:
                wait_for(request([path]))
            except FileNotFoundError:
                pass
            except (BaseError, OSError):
                left.append(path)
        return left

    @contextlib.contextmanager
    def writer(self, path: str, *, size_bytes: int | None = None) -> Iterator[DigestingWriter]:
        """Open an object for writing by parts; a killed writer leaves an upload for the bucket's lifecycle rule."""
        part_bytes = max(PART_BYTES, -(-(size_bytes or 0) // (MOST_PARTS - 1000)))
        with errors_described(path, writes=True):
            client, key = client_of(path)
            sink = obstore.open_writer(client, key, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
        yield DigestingWriter(_Sink(path, sink))
        with errors_described(path, writes=True):
            sink.close()


class _Sink:
    """A writer of obstore, whose errors name the object."""

    def __init__(self, path: str, sink: Any) -> None:  # noqa: ANN401 - obstore's writer
        self._path, self._sink = path, sink

    def write(self, data: Bytes) -> int:
        with errors_described(self._path, writes=True):
            self._sink.write(data)
        return len(data)


_UNMET = (AlreadyExistsError, PreconditionError, FileNotFoundError)
OBJECTS = ObjectStore()
