"""Objects in buckets (`s3:// gs:// az://`), on web servers and on the Hub as a store, by obstore.

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
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from dsindex.errors import DsindexError, InputError, MissingObjectError, OutputError, StoreError
from dsindex.locations import Location
from dsindex.store import huggingface as hub
from dsindex.store.storage import DigestingWriter, InputStatus, Readable
from dsindex.store.urls import is_web, names_folder, split_address

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray
    from obstore import GetOptions, ObjectMeta, PutMode, PutResult, UpdateVersion, WritableFile
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as AnyStore

    from dsindex.store.storage import Bytes

Answer = TypeVar("Answer")

# One event loop per process.

REQUESTS_AT_ONCE = 64
"""Requests of a process that are in flight."""

_loop: asyncio.AbstractEventLoop | None = None
_process = 0
_starting = threading.Lock()
_slots = asyncio.Semaphore(REQUESTS_AT_ONCE)


def _start(request: Coroutine[Any, Any, Answer]) -> Future[Answer]:
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


def _wait_for(request: Coroutine[Any, Any, Answer]) -> Answer:
    return _start(request).result()


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


@contextlib.contextmanager
def _errors_described(url: str, *, writes: bool = False) -> Iterator[None]:
    """Put the block's errors of obstore into sentences.

    Raises:
        DsindexError: In their place.
    """
    try:
        yield
    except (BaseError, OSError) as error:  # a writer raises OSError
        raise _described(url, error, writes=writes) from None


def _described(url: str, error: Exception, *, writes: bool) -> DsindexError:
    kind = type(error).__name__
    if kind == "PreconditionError" and not writes:
        return InputError(
            f"{url}: expected the object that was looked at, got another; it was replaced meanwhile, run the job again "
            f"from the start once nothing writes to it"
        )
    code = match[1] if (match := _CODE.search(str(error))) else ""
    remedy = _REMEDIES.get(code) or _REMEDIES.get(kind)
    reason = ": ".join(filter(None, [code, remedy or _TRANSIENT]))
    failure: DsindexError
    if writes:
        failure = OutputError(f"{url}: cannot be written ({reason})")
    elif kind == "FileNotFoundError" and code != "NoSuchBucket":
        failure = MissingObjectError(f"{url}: cannot be read ({reason})")
    else:
        failure = StoreError(f"{url}: cannot be read ({reason})")
    failure.transient = remedy is None
    return failure


# Clients.

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "HF_")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")
"""Web paths without characters to escape."""
_CLIENT: ClientConfig = {
    "timeout": timedelta(seconds=300),
    "read_timeout": timedelta(seconds=30),
    "connect_timeout": "5s",
}
_RETRIES: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
}


def _client_of(url: str) -> tuple[AnyStore, str]:
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
def _web_client(base: str, token: str | None, _environment: int) -> HTTPStore:
    options: ClientConfig = {**_CLIENT, "allow_http": base.startswith("http:")}
    if token is not None:
        options["default_headers"] = {"Authorization": f"Bearer {token}"}
    return HTTPStore.from_url(base, client_options=options, retry_config=_RETRIES)


@functools.lru_cache(64)
def _bucket_client(scheme: str, bucket: str, _environment: int) -> AnyStore:
    environment = os.environ
    if scheme in {"gs", "az"}:
        is_open = environment.get(f"{'GOOGLE' if scheme == 'gs' else 'AZURE'}_ALLOW_HTTP", "").lower() == "true"
        kind: type[GCSStore | AzureStore] = GCSStore if scheme == "gs" else AzureStore
        return kind(bucket, client_options={**_CLIENT, "allow_http": is_open}, retry_config=_RETRIES)
    if environment.get("AWS_PROFILE") and not environment.get("AWS_ACCESS_KEY_ID"):
        raise InputError(
            f"s3://{bucket}: expected credentials in the environment, got AWS_PROFILE, which is not read; run "
            f'eval "$(aws configure export-credentials --format env)" on every node'
        )
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    own: S3Config = {"endpoint": endpoint} if endpoint else {}
    client: ClientConfig = {**_CLIENT, "allow_http": endpoint.startswith("http:")}
    return S3Store(bucket, config=own, client_options=client, retry_config=_RETRIES)


# Reading.

RANGE_BYTES = 8 << 20
"""About the bytes of a request where an object is read forwards: requests cost the same for every size."""
RANGES_AHEAD = 3
FIRST_BYTES = 64 << 10
"""Bytes of a request elsewhere, at first; one that continues another is twice as large."""
TAIL_BYTES = 256 << 10
"""Bytes that are read of an object's end, where most footers fit."""
HELD_RANGES = 48
WINDOWS = 24
"""Parts of an object that may be read forwards at a time."""


def _status_of(url: str, meta: ObjectMeta) -> InputStatus:
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


async def _get(url: str, begin: int, end: int, version: str = "") -> tuple[obstore.Bytes, ObjectMeta]:
    """Return bytes [begin, end) and the object's metadata; the first must exist."""
    client, key = _client_of(url)
    options: GetOptions = {"range": (begin, end)}
    if version.startswith('"'):  # a weak ETag never matches
        options["if_match"] = version
    answer = await obstore.get_async(client, key, options=options)
    return await answer.bytes_async(), answer.meta


async def _head(url: str) -> InputStatus:
    """Look at an object by GET: signed addresses refuse HEAD, whose answer does not tell a bucket that is not there."""
    with contextlib.suppress(GenericError):  # of an empty file
        return _status_of(url, (await _get(url, 0, 1))[1])
    client, key = _client_of(url)
    return _status_of(url, await obstore.head_async(client, key))


async def _read_range(status: InputStatus, begin: int, end: int) -> obstore.Bytes:
    """Return bytes [begin, end) of an object as it was looked at; of any version, if its status has none."""
    with _errors_described(status.path):
        content, _ = await _get(status.path, begin, end, status.version)
    if len(content) != end - begin:
        msg = f"{status.path}: expected {end} bytes, got an object that ends before; run the same command again"
        raise InputError(msg)
    return content


@dataclass(frozen=True, slots=True)
class _Range:
    begin: int
    end: int
    future: Future[Any]


class ObjectReader(Readable):
    """An object that is open for reading, as it was looked at.

    What will be read forwards is requested ahead in ranges of RANGE_BYTES. Elsewhere a range is requested when it is
    needed. A handful of ranges is held at a time.

    Args:
        status: The object; all reads raise InputError if it was replaced, unless its version is empty.
    """

    def __init__(self, status: InputStatus) -> None:
        self._status = status
        # The Hub counts requests, and each is two: it redirects to its storage.
        self._step = 2 * RANGE_BYTES if status.path.startswith("hf://") else RANGE_BYTES
        self.size_bytes, self.version = status.size_bytes, status.version
        self._expected: list[tuple[int, int]] = []
        self._held: OrderedDict[int, _Range] = OrderedDict()
        self._lock = threading.RLock()

    def expect_forwards(self, begin: int, end: int) -> None:
        """Say that the bytes [begin, end) will be read forwards; requests for them begin at once."""
        begin, end = max(0, begin), min(end, self.size_bytes)
        if begin < end:
            with self._lock:
                self._expected = [*self._expected[1 - WINDOWS :], (begin, end)]
                self._request_ahead(begin, begin, end)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Fill a buffer with the bytes from an offset on; return their number, smaller only at the object's end."""
        wanted = max(0, min(len(view), self.size_bytes - offset))
        done = 0
        while done < wanted:
            position = offset + done
            with self._lock:
                found = self._range_with(position, wanted - done)
            content = memoryview(found.future.result()).cast("B")
            piece = content[position - found.begin : position - found.begin + wanted - done]
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def close(self) -> None:
        """Give up what was requested ahead."""
        if not self.closed:
            with self._lock:
                for each in self._held.values():
                    each.future.cancel()
                self._held.clear()
        super().close()

    def _range_with(self, position: int, num_bytes: int) -> _Range:
        for begin, end in reversed(self._expected):
            if begin <= position < end:
                return self._request_ahead(begin, position, end)
        found = self._find(position)
        if found is not None:
            return found
        if num_bytes >= RANGE_BYTES:
            return self._request_ahead(position, position, position + num_bytes)
        size = next((2 * (each.end - each.begin) for each in self._held.values() if each.end == position), FIRST_BYTES)
        end = min(position + min(max(size, num_bytes), RANGE_BYTES), self.size_bytes)
        return self._request(min(position, max(0, self.size_bytes - TAIL_BYTES)), end)  # footers are read backwards

    def _find(self, position: int) -> _Range | None:
        return next((each for each in reversed(self._held.values()) if each.begin <= position < each.end), None)

    def _request_ahead(self, begin: int, position: int, end: int) -> _Range:
        """Return the range at a position of bytes [begin, end) that are read forwards, and request those after it."""
        for passed in [each for each in self._held.values() if begin <= each.begin and each.end <= position]:
            del self._held[passed.begin]
        first = found = self._find(position) or self._request(position, min(position + self._step, end))
        for _ in range(RANGES_AHEAD):
            if found.end >= end:
                break
            found = self._find(found.end) or self._request(found.end, min(found.end + self._step, end))
        return first

    def _request(self, begin: int, end: int) -> _Range:
        requested = self._held[begin] = _Range(begin, end, _start(_read_range(self._status, begin, end)))
        self._held.move_to_end(begin)
        while len(self._held) > HELD_RANGES:
            self._held.popitem(last=False)
        return requested


class ObjectArray:
    """A one-dimensional, read-only array of an object's bytes; its items are requested when they are asked for.

    `array[a:b]`, `array[i]` and `array[numbers]` are copies, as numpy arrays and scalars. For parts here and there,
    `read_many` asks for all at once.

    Args:
        status: The object.
        dtype: Type of the items.
        offset: First byte of the first item.
        count: Number of items; None for as many as there are.

    Raises:
        InputError: If the object cannot be read; as do all methods, also if it was replaced.
    """

    ndim = 1

    def __init__(self, status: InputStatus, dtype: np.dtype[Any], *, offset: int = 0, count: int | None = None) -> None:
        room = max(0, status.size_bytes - offset) // dtype.itemsize
        self.url = status.path
        self.dtype = dtype
        self.size_bytes = status.size_bytes
        """Size of the object."""
        self.size = room if count is None else count
        """The number of items."""
        self._status = status
        self._offset = offset
        if self.size > room:
            raise ValueError(f"{self.url}: expected {count} items of {dtype} from byte {offset} on, got {room}")

    def __len__(self) -> int:
        """Return the number of items."""
        return self.size

    @property
    def shape(self) -> tuple[int]:
        """The number of items, as numpy has it."""
        return (self.size,)

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as numpy's
        """Return an item, a slice, or the items with the numbers in an array."""
        if isinstance(key, slice):
            begin, end, step = key.indices(self.size)
            return self.read_many([(begin, max(begin, end))])[0] if step == 1 else self[np.arange(begin, end, step)]
        if not isinstance(key, np.ndarray):
            return self[np.array([key])][0]
        numbers = np.flatnonzero(key) if key.dtype.kind == "b" else key
        ids = np.where(numbers < 0, numbers + self.size, numbers)
        known, places = np.unique(ids, return_inverse=True)
        found = self.read_many([(number, number + 1) for number in known.tolist()])
        return np.concatenate([np.empty(0, self.dtype), *found])[places]

    def read_many(self, parts: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        """Return items [begin, end) of many parts, which are requested at once.

        Raises:
            IndexError: If there are no such items.
        """
        for begin, end in parts:
            if not 0 <= begin <= end <= self.size:
                raise IndexError(f"{self.url}: expected items within {self.size}, got {begin} to {end}")
        futures = [self._request(begin, end) if end > begin else None for begin, end in parts]
        return [np.frombuffer(b"" if each is None else each.result(), self.dtype) for each in futures]

    def _request(self, begin: int, end: int) -> Future[Any]:
        first, past = (self._offset + number * self.dtype.itemsize for number in (begin, end))
        return _start(_read_range(self._status, first, past))


# The store.

PART_BYTES = 16 << 20
"""Size of an upload's parts, unless there would be too many."""
MOST_PARTS = 10_000
PARTS_AT_ONCE = 8
PAGE_ENTRIES = 1000
LISTINGS = 3
"""Attempts at a listing: obstore does not ask again for a page that was cut off."""
_UNMET = (AlreadyExistsError, PreconditionError, FileNotFoundError)
"""Errors of a write whose condition does not hold."""


class ObjectStore:
    """Objects, wherever they are."""

    def head(self, path: str) -> InputStatus:
        """Return size and ETag.

        Raises:
            MissingObjectError: If there is no such object.
            InputError: If it cannot be looked at.
        """
        if path.startswith("hf://"):
            return hub.head(path)
        if names_folder(path):
            raise MissingObjectError(f"{path}: expected a file, got a folder; name one of its files")
        with _errors_described(path):
            return _wait_for(_head(path))

    def open(self, path: str, known: InputStatus | None = None) -> ObjectReader:
        """Open an object for reading, as it is now or as it was looked at."""
        return ObjectReader(known or self.head(path))

    def read(self, path: str, *, most_bytes: int | None = None) -> tuple[bytes, str] | None:
        """Return a small object and its version; None if absent."""

        async def request() -> tuple[bytes, str]:
            client, key = _client_of(path)
            answer = await obstore.get_async(client, key)
            if most_bytes is not None and answer.meta["size"] > most_bytes:
                return bytes((await _get(path, 0, most_bytes))[0]), _token(answer.meta)
            return bytes(await answer.bytes_async()), _token(answer.meta)

        with contextlib.suppress(MissingObjectError), _errors_described(path):
            return _wait_for(request())
        return None

    def put(self, path: str, data: Bytes) -> None:
        """Write or replace an object."""
        self._put(path, data, "overwrite")

    def put_if_absent(self, path: str, data: Bytes) -> str | None:
        """Write an object; return its version, or None if there is another one."""
        return self._put(path, data, "create") or self._mine(path, data)

    def put_if_match(self, path: str, data: Bytes, version: str) -> str | None:
        """Replace a version of an object; return the new one, or None if another is there, or nothing."""
        e_tag, _, generation = version.partition(" ")
        for tag in dict.fromkeys((e_tag, e_tag.strip('"'))):  # Ceph's radosgw 16 compares without quotation marks
            condition: UpdateVersion = {"e_tag": tag}
            if generation:
                condition["version"] = generation
            put = self._put(path, data, condition) or self._mine(path, data)
            if put is not None:
                return put
        return None

    def _put(self, path: str, data: Bytes, mode: PutMode) -> str | None:
        """Write an object; None if a condition is not met."""

        async def request() -> str:
            client, key = _client_of(path)
            return _token(await obstore.put_async(client, key, bytes(data), mode=mode, chunk_size=PART_BYTES))

        with _errors_described(path, writes=True):
            try:
                return _wait_for(request())
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
            client, _ = _client_of(folder)
            if not recursive:
                return list((await obstore.list_with_delimiter_async(client, key.rstrip("/")))["objects"])
            pages = obstore.list(client, key.rstrip("/"), chunk_size=PAGE_ENTRIES)
            return [entry async for page in pages for entry in page]

        for attempt in range(LISTINGS):
            try:
                with _errors_described(folder):
                    found = _wait_for(request())
                break
            except StoreError as error:
                if not error.transient or attempt == LISTINGS - 1:
                    raise
        return sorted(
            (_status_of(f"{scheme}://{bucket}/{entry['path']}", entry) for entry in found),
            key=lambda each: os.fsencode(each.path),
        )

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete objects of one bucket; return those that are refused."""

        async def request(some: Sequence[str]) -> None:
            client, _ = _client_of(some[0])
            await obstore.delete_async(client, [split_address(path).key for path in some])

        wanted = list(paths)
        if not wanted:
            return []
        with contextlib.suppress(BaseError, OSError):  # of one key, or of all
            _wait_for(request(wanted))
            return []
        left = []
        for path in wanted:
            try:
                _wait_for(request([path]))
            except FileNotFoundError:
                pass
            except (BaseError, OSError):
                left.append(path)
        return left

    @contextlib.contextmanager
    def writer(self, path: str, *, size_bytes: int | None = None) -> Iterator[DigestingWriter]:
        """Open an object for writing by parts; a killed writer leaves an upload for the bucket's lifecycle rule."""
        part_bytes = max(PART_BYTES, -(-(size_bytes or 0) // (MOST_PARTS - 1000)))
        with _errors_described(path, writes=True):
            client, key = _client_of(path)
            sink = obstore.open_writer(client, key, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
        yield DigestingWriter(_Sink(path, sink))
        with _errors_described(path, writes=True):
            sink.close()


class _Sink:
    """A writer of obstore, whose errors name the object."""

    def __init__(self, path: str, sink: WritableFile) -> None:
        self._path, self._sink = path, sink

    def write(self, data: Bytes) -> int:
        with _errors_described(self._path, writes=True):
            self._sink.write(bytes(data))  # obstore keeps what it is given, and callers fill their buffers again
        return len(data)


def _token(result: PutResult) -> str:
    """Return what identifies a version for a conditional write: ETag, and Google's generation."""
    return f"{result['e_tag'] or ''} {result.get('version') or ''}"


OBJECTS = ObjectStore()
