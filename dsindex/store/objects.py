"""Read and write objects in buckets (`s3:// gs:// az://`), on web servers and on the Hub, with obstore.

obstore takes endpoints, regions and credentials from the environment of the machine that makes a request. Its error
messages may contain signed addresses, so only the error's type and the store's error code are shown.

Requests run in threads: many run at once, and Ctrl-C still interrupts the main thread while it waits for one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from dsindex.errors import InputError, MissingObjectError, StoreError
from dsindex.store import huggingface as hub
from dsindex.store.errors import describe_refusal
from dsindex.store.local import DigestingWriter, InputStatus, Readable, retry, sort_by_path
from dsindex.store.urls import Location, is_web, names_folder, split_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from obstore import GetOptions, ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as AnyStore

    from dsindex.store.local import Bytes

Answer = TypeVar("Answer")

# Requests.

_threads = ThreadPoolExecutor(64, thread_name_prefix="dsindex-store")
_process: int | None = None
"""Id of the process that made the first request."""


def _start_request(request: Callable[..., Answer], *arguments: Any) -> Future[Answer]:  # noqa: ANN401 - of any request
    """Begin a request in a thread.

    Raises:
        StoreError: In a process that was forked after the first request, since a fork has no threads of obstore.
    """
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise StoreError(
            "objects cannot be read in a process that was forked after the first of them was read",
            hint="start workers with spawn, as by DataLoader(…, multiprocessing_context='spawn')",
        )
    return _threads.submit(request, *arguments)


@contextlib.contextmanager
def _describe_errors(url: str, *, writes: bool = False) -> Iterator[None]:
    """Turn obstore's errors in the block into errors with a reason and a hint.

    Raises:
        DsindexError: If obstore raises an error; see `describe_refusal`.
    """
    try:
        yield
    except (BaseError, OSError) as error:  # obstore's writer raises OSError
        raise describe_refusal(url, error, writes=writes) from None


def _make_request(url: str, request: Callable[..., Answer], *arguments: Any) -> Answer:  # noqa: ANN401 - of any request
    """Make a read request and wait for its result; raises like `_describe_errors`."""
    with _describe_errors(url):
        return _start_request(request, *arguments).result()


# Clients.

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "HF_")
_CLIENT: ClientConfig = {
    "timeout": timedelta(seconds=300),
    "read_timeout": timedelta(seconds=30),
    "connect_timeout": "5s",
    "allow_http": True,
}
_RETRIES: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
}
_BUCKETS: dict[str, type[S3Store | GCSStore | AzureStore]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


def _client_of(url: str) -> tuple[AnyStore, str]:
    """Return obstore's client for an address, and the object's key.

    Raises:
        BaseError: If obstore refuses a setting in the environment.
    """
    scheme, bucket, key = split_address(url)
    # A client reads the environment only once, so each environment needs its own.
    environment = hash(frozenset(variable for variable in os.environ.items() if variable[0].startswith(_PREFIXES)))
    if scheme == "hf":
        base, key = hub.web_address(url)
        return _web_client(base, hub.token(), environment), key
    if is_web(url):
        return _web_client(url.raw if isinstance(url, Location) else url, None, environment), ""
    return _bucket_client(scheme, bucket, environment), key


@functools.lru_cache(256)
def _web_client(base: str, token: str | None, _environment: int) -> HTTPStore:
    headers: ClientConfig = {} if token is None else {"default_headers": {"Authorization": f"Bearer {token}"}}
    return HTTPStore.from_url(base, client_options={**_CLIENT, **headers}, retry_config=_RETRIES)


@functools.lru_cache(64)
def _bucket_client(scheme: str, bucket: str, _environment: int) -> AnyStore:
    if scheme == "s3" and os.environ.get("AWS_PROFILE") and not os.environ.get("AWS_ACCESS_KEY_ID"):
        hint = 'run eval "$(aws configure export-credentials --format env)" on every node'
        raise InputError(f"s3://{bucket}: AWS_PROFILE is not read: credentials must be in the environment", hint=hint)
    return _BUCKETS[scheme](bucket, client_options=_CLIENT, retry_config=_RETRIES)


# Reading.

RANGE_BYTES = 8 << 20
"""Bytes per request of a sequential read: a request costs the same whatever its size."""
RANGES_AHEAD = 3
FIRST_BYTES = 64 << 10
"""Bytes of the first request at a random position; a request that continues another is twice as large."""
HELD_RANGES = 48


def _status_of(url: str, meta: ObjectMeta) -> InputStatus:
    """Return size and version from an object's metadata.

    Raises:
        InputError: If the server sends neither ETag nor Last-Modified, so that a change would go unnoticed.
    """
    version, modified = meta["e_tag"], meta["last_modified"]
    if version is not None and not version.startswith(('"', "W/")):
        version = f'"{version}"'  # Azure's listings omit the quotation marks
    if version is None and modified is not None and modified.timestamp() > 0:
        version = f"modified {modified.isoformat()}"
    if version is None:
        problem = "the server does not say when a file changes, by ETag or Last-Modified"
        raise InputError(f"{url}: {problem}", hint="download the file")
    modified_ns = 0 if modified is None else int(modified.timestamp()) * 10**9
    return InputStatus(path=url, size_bytes=int(meta["size"]), version=version, modified_ns=modified_ns)


def _get(url: str, begin: int, end: int, version: str = "") -> tuple[obstore.Bytes, ObjectMeta]:
    """Return bytes [begin, end) and the object's metadata; byte `begin` must exist."""
    client, key = _client_of(url)
    options: GetOptions = {"range": (begin, end)}
    if version.startswith('"'):  # a weak ETag never matches
        options["if_match"] = version
    response = obstore.get(client, key, options=options)
    return response.bytes(), response.meta


def _head(url: str) -> InputStatus:
    """Read an object's status by GET: signed addresses refuse HEAD, and HEAD does not report a missing bucket."""
    with contextlib.suppress(GenericError):  # an empty object has no first byte
        return _status_of(url, _get(url, 0, 1)[1])
    client, key = _client_of(url)
    return _status_of(url, obstore.head(client, key))


def _read_range(status: InputStatus, begin: int, end: int) -> obstore.Bytes:
    """Return bytes [begin, end) of an object, of the version in its status if that is a strong ETag."""
    with _describe_errors(status.path):
        content, _ = _get(status.path, begin, end, status.version)
    if len(content) != end - begin:
        raise InputError(f"{status.path}: the object ends before byte {end}", hint="rerun the command")
    return content


@dataclass(frozen=True, slots=True)
class _Range:
    begin: int
    end: int
    content: Future[obstore.Bytes]


class ObjectReader(Readable):
    """An object that is open for reading.

    Sequential reads are prefetched in ranges of RANGE_BYTES. Any other range is requested when it is needed. At most
    HELD_RANGES ranges are held.

    Args:
        status: The object. If its version is a strong ETag, every read raises InputError once the object is replaced.
    """

    def __init__(self, status: InputStatus) -> None:
        self._status = status
        self.path, self.size_bytes, self.version = status.path, status.size_bytes, status.version
        self._forwards = range(0)
        """The bytes that are read sequentially."""
        self._held_ranges: deque[_Range] = deque(maxlen=HELD_RANGES)
        self._lock = threading.Lock()

    def expect_forwards(self, begin: int, end: int) -> None:
        """Announce a sequential read of the bytes [begin, end), and begin to prefetch them."""
        with self._lock:
            self._forwards = range(begin, min(end, self.size_bytes))
            if self._forwards:
                self._request_ahead(begin)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read bytes at an offset into a buffer; return their number, 0 at the end."""
        if offset >= self.size_bytes:
            return 0
        with self._lock:
            if len(view) > RANGE_BYTES and offset not in self._forwards:
                self._forwards = range(offset, min(offset + len(view), self.size_bytes))
            held_range = self._request_ahead(offset) if offset in self._forwards else self._range_at(offset, len(view))
        content = memoryview(held_range.content.result()).cast("B")[offset - held_range.begin :][: len(view)]
        view[: len(content)] = content
        return len(content)

    def size_if_changed(self) -> int | None:
        """Return the current size if the object was replaced; None otherwise.

        Strong ETags are checked by every read, and a commit on the Hub never changes, so neither needs a request.
        """
        if self.version.startswith('"') or self.path.startswith("hf://"):
            return None
        status = OBJECTS.head(self.path)
        return None if status.version == self.version else status.size_bytes

    def close(self) -> None:
        """Cancel the prefetches that have not begun."""
        for held_range in () if self.closed else self._held_ranges:
            held_range.content.cancel()
        super().close()

    def _request_ahead(self, offset: int) -> _Range:
        """Return the range that holds the byte at an offset of a sequential read, and prefetch the next ranges."""
        for passed in [span for span in self._held_ranges if self._forwards.start <= span.begin and span.end <= offset]:
            self._held_ranges.remove(passed)
        first = last = self._range_at(offset, RANGE_BYTES)
        for _ in range(RANGES_AHEAD):
            if last.end < self._forwards.stop:
                last = self._range_at(last.end, RANGE_BYTES)
        return first

    def _range_at(self, offset: int, num_bytes: int) -> _Range:
        """Return the range that holds the byte at an offset, and request it unless it is held."""
        held_range = next((span for span in self._held_ranges if span.begin <= offset < span.end), None)
        if held_range is None:
            size = next((2 * (span.end - span.begin) for span in self._held_ranges if span.end == offset), FIRST_BYTES)
            end = min(offset + min(max(size, num_bytes), RANGE_BYTES), self.size_bytes)
            held_range = _Range(offset, end, _start_request(_read_range, self._status, offset, end))
            self._held_ranges.append(held_range)
        return held_range


# The store.

PART_BYTES = 16 << 20
"""Size of an upload's parts; larger if the upload would have too many."""
MAX_PARTS = 10_000
PARTS_AT_ONCE = 8
PAGE_ENTRIES = 1000
LISTING_PAUSES = (0.0, 0.0)
"""Seconds before each retry of a listing; obstore itself does not retry a truncated page."""
_UNMET = (AlreadyExistsError, PreconditionError, FileNotFoundError)
"""Errors of a write whose condition does not hold."""


class ObjectStore:
    """All object stores: buckets, web servers and the Hub."""

    largest_file_bytes = 48 << 40  # below 10,000 upload parts of 5 GiB

    def head(self, path: str) -> InputStatus:
        """Return size and ETag.

        Raises:
            MissingObjectError: If there is no such object.
            InputError: If its status cannot be read.
        """
        if path.startswith("hf://"):
            return hub.head(path)
        if names_folder(path):
            raise MissingObjectError(f"{path}: this is a folder", hint="name one of its files")
        return _make_request(path, _head, path)

    def open(self, path: str, status: InputStatus | None = None) -> ObjectReader:
        """Open an object for reading, in its known version or else the current one."""
        return ObjectReader(status or self.head(path))

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Return a small object and its version; None if absent."""

        def request() -> tuple[bytes, str]:
            response = obstore.get(*_client_of(path))
            return bytes(response.bytes()), _version_of(response.meta)

        with contextlib.suppress(MissingObjectError):
            return _make_request(path, request)
        return None

    def put(self, path: str, data: Bytes) -> None:
        """Write or replace an object."""
        self._put(path, data, "overwrite")

    def put_if(self, path: str, data: Bytes, version: str | None = None) -> str | None:
        """Create an object, or replace it if it still has a version; return its new version, or None on a conflict."""
        modes: list[PutMode] = ["create"]
        if version is not None:
            e_tag, _, generation = version.partition(" ")
            condition: UpdateVersion = {"version": generation} if generation else {}
            # Ceph's radosgw 16 compares ETags without quotation marks.
            modes = [{**condition, "e_tag": tag} for tag in dict.fromkeys((e_tag, e_tag.strip('"')))]
        new_versions = (self._put(path, data, mode) or self._find_written_version(path, data) for mode in modes)
        return next(filter(None, new_versions), None)

    def _put(self, path: str, data: Bytes, mode: PutMode) -> str | None:
        """Write an object and return its version; None if the condition of `mode` is not met."""

        def request() -> str:
            client, key = _client_of(path)
            return _version_of(obstore.put(client, key, bytes(data), mode=mode, chunk_size=PART_BYTES))

        with _describe_errors(path, writes=True):
            try:
                return _start_request(request).result()
            except _UNMET:
                if mode == "overwrite":
                    raise
                return None

    def _find_written_version(self, path: str, data: Bytes) -> str | None:
        """Return an object's version if it has this content: an earlier attempt wrote it, and its answer was lost."""
        content, version = self.read(path) or (None, None)
        return version if content == bytes(data) else None

    def list(self, folder: str, *, recursive: bool = True) -> Sequence[InputStatus]:
        """Return the objects directly in a folder, or all below it if recursive."""
        if folder.startswith("hf://"):
            return hub.list_files(folder, recursive=recursive)
        scheme, bucket, key = split_address(folder)

        def request() -> list[Any]:
            client, _ = _client_of(folder)
            if not recursive:
                return list(obstore.list_with_delimiter(client, key.rstrip("/"))["objects"])
            return [entry for page in obstore.list(client, key.rstrip("/"), chunk_size=PAGE_ENTRIES) for entry in page]

        entries = retry(lambda: _make_request(folder, request), LISTING_PAUSES)
        return sort_by_path(_status_of(f"{scheme}://{bucket}/{entry['path']}", entry) for entry in entries)

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete objects of one bucket; return those that cannot be deleted."""

        def request(batch: Sequence[str]) -> None:
            client, _ = _client_of(batch[0])
            obstore.delete(client, [split_address(path).key for path in batch])

        path_list = list(paths)
        try:
            _start_request(request, path_list).result() if path_list else None
        except (BaseError, OSError) as error:  # about one key or all, so try them one by one
            if len(path_list) > 1:
                return [failed_path for path in path_list for failed_path in self.delete([path])]
            return [] if isinstance(error, FileNotFoundError) else path_list
        return []

    def paths_in(self, folder: str) -> Sequence[str]:
        """Return the addresses of the objects in a folder."""
        return [status.path for status in self.list(folder, recursive=False)]

    def unfinished_path(self, path: str, suffix: str) -> str:  # noqa: ARG002 - for files
        """Return the object's own address, at which it appears only when it is complete."""
        return path

    @contextlib.contextmanager
    def writer(self, path: str, *, size_bytes: int | None = None) -> Iterator[DigestingWriter]:
        """Open an object for a multipart upload; a lifecycle rule of the bucket removes the parts of killed writers."""
        part_bytes = max(PART_BYTES, -(-(size_bytes or 0) // (MAX_PARTS - 1000)))
        errors = functools.partial(_describe_errors, path, writes=True)
        with errors():
            client, key = _client_of(path)
            sink = obstore.open_writer(client, key, buffer_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
        # Copy the data: obstore keeps a reference to it, and callers reuse their buffers.
        yield DigestingWriter(lambda data: sink.write(bytes(data)), errors=errors)
        with errors():
            sink.close()


def _version_of(result: PutResult) -> str:
    """Return the version that a conditional write compares: the ETag, and on Google Cloud the generation."""
    return f"{result['e_tag'] or ''} {result.get('version') or ''}"


OBJECTS = ObjectStore()
