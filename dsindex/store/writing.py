"""Conditional writes, heads and deletes of objects, retried until the outcome is known.

An answer may be lost after its request succeeded. So a repeated conditional request that is refused looks at what is
there: if that is what it wanted to write, it did write it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from dsindex.store.clients import (
    UNKNOWN_HEADER,
    Blocks,
    Bytes,
    Checksum,
    StoreWriteError,
    checksum_arguments,
    client_of,
    describe_writing,
    foreign_answer,
    known_checksum,
    learn_checksum,
    list_pages,
    persist,
    use_md5,
)
from dsindex.store.requests import count_requests
from dsindex.store.urls import ObjectUrl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


MOST_OBJECT_BYTES = 5 << 30
"""Maximum size of an object written in one request."""

TAG = "dsindex"
"""Metadata key that identifies the writer."""
_KEYS_AT_ONCE = 1000
_REFUSED = ("PreconditionFailed", "412")
_ABSENT = ("NoSuchKey", "404", "NotFound")
_UNMET = (*_REFUSED, *_ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """Metadata of an object."""

    size_bytes: int
    etag: str
    """ETag, or generation on Google, for conditional writes."""
    tag: str | None
    """The value of the metadata TAG."""
    age_seconds: float
    """Time since it was written, by the store's clock."""
    written_ns: int
    """Time at which it was written, in ns since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """An object in a listing."""

    url: ObjectUrl
    size_bytes: int


def new_tag() -> str:
    """Return a new value for the metadata TAG."""
    return uuid.uuid4().hex


def put_object(url: ObjectUrl, data: Bytes | Blocks, *, tag: str | None = None) -> None:
    """Write or overwrite an object.

    Raises:
        StoreWriteError: If the store refuses.
    """
    _put(url, data, {} if tag is None else {"Metadata": {TAG: tag}})


def put_if_absent(url: ObjectUrl, data: Bytes) -> str | None:
    """Write an object if absent; return its ETag, or None if another one exists.

    Raises:
        StoreWriteError: If the store refuses.
    """
    try:
        return _put(url, data, {"IfNoneMatch": "*"}, expected=_UNMET)
    except StoreWriteError as error:
        if error.code not in _UNMET:
            raise
    found = read_object(url, most_bytes=memoryview(data).nbytes + 1)
    return found[1].etag if found is not None and found[0] == bytes(data) else None  # the answer was lost


def put_if_same(url: ObjectUrl, data: Bytes, etag: str) -> str | None:
    """Overwrite an object if its ETag matches; return the new ETag, or None on a mismatch.

    Raises:
        StoreWriteError: If the store refuses.
    """
    for condition in dict.fromkeys((etag, etag.strip('"'))):
        try:
            return _put(url, data, {"IfMatch": condition}, expected=_UNMET)
        except StoreWriteError as error:
            if error.code not in _UNMET:
                raise
        found = read_object(url, most_bytes=memoryview(data).nbytes + 1)
        if found is None:
            return None
        if found[1].etag != etag:
            return found[1].etag if found[0] == bytes(data) else None  # the answer was lost, or it is another one's
        # It is the same object, and yet refused: Ceph's radosgw 16 compares with the ETag without quotation marks.
    return None


def _put(url: ObjectUrl, data: Bytes | Blocks, options: Mapping[str, Any], *, expected: tuple[str, ...] = ()) -> str:
    client = client_of(url)
    checksum = known_checksum(client)
    body = data if isinstance(data, Blocks) else Blocks.of(data)

    def send(kinds: Sequence[Checksum], expected: tuple[str, ...]) -> Any:  # noqa: ANN401 - boto3's answer
        checked = {name: value for kind in kinds for name, value in checksum_arguments(kind, body).items()}

        def request() -> Any:  # noqa: ANN401 - boto3's answer
            count_requests(puts=1, sent_bytes=len(body))
            return client.put_object(
                Bucket=url.bucket, Key=url.key, Body=body, ContentLength=len(body), **checked, **options
            )

        return persist(url, request, expected=expected)

    if checksum is not None:
        return _etag(url, send([checksum], expected))
    try:
        answer = send([*Checksum], (*expected, *UNKNOWN_HEADER))
    except StoreWriteError as error:
        if error.code not in UNKNOWN_HEADER:
            raise
        use_md5(client)
        answer = send([Checksum.MD5], expected)
    else:
        learn_checksum(client, answer)
    return _etag(url, answer)


def find_object(url: ObjectUrl) -> FoundObject | None:
    """Head an object; None if absent.

    Raises:
        StoreWriteError: If the store refuses.
    """
    client = client_of(url)

    def request() -> Any:  # noqa: ANN401 - boto3's answer
        count_requests(gets=1)
        return client.head_object(Bucket=url.bucket, Key=url.key)

    try:
        return _found(url, persist(url, request, expected=_ABSENT))
    except StoreWriteError as error:
        if error.code not in _ABSENT:
            raise
        return None


def read_object(url: ObjectUrl, *, most_bytes: int | None = None) -> tuple[bytes, FoundObject] | None:
    """Read a small object; None if absent.

    Args:
        url: Its address.
        most_bytes: Read no more than these.

    Raises:
        StoreWriteError: If the store refuses.
    """
    client = client_of(url)

    def request() -> tuple[bytes, FoundObject]:
        count_requests(gets=1)
        answer = client.get_object(Bucket=url.bucket, Key=url.key)
        content = answer["Body"].read(most_bytes)
        answer["Body"].close()
        count_requests(received_bytes=len(content))
        size_bytes = int(answer["ContentLength"])
        if len(content) < (size_bytes if most_bytes is None else min(size_bytes, most_bytes)):
            msg = "the answer was cut off"  # boto3 notices it only where all is read at once
            raise ConnectionError(msg)
        return content, _found(url, answer)

    try:
        return persist(url, request, expected=_ABSENT)
    except StoreWriteError as error:
        if error.code not in _ABSENT:
            raise
        return None


def _etag(url: ObjectUrl, answer: Any) -> str:  # noqa: ANN401 - boto3's answer
    if "ETag" not in answer:
        raise foreign_answer(url)
    return str(answer["ETag"])


def _found(url: ObjectUrl, answer: Any) -> FoundObject:  # noqa: ANN401 - boto3's answer
    etag, headers = _etag(url, answer), answer["ResponseMetadata"]["HTTPHeaders"]
    try:
        from email.utils import parsedate_to_datetime  # slow to import for readers

        written, now = (parsedate_to_datetime(headers[name]) for name in ("last-modified", "date"))
        age_seconds = (now - written).total_seconds()
    except (KeyError, ValueError, TypeError) as error:  # TypeError: a time without a zone
        raise foreign_answer(url) from error
    return FoundObject(
        size_bytes=int(answer["ContentLength"]),
        etag=etag,
        tag=answer.get("Metadata", {}).get(TAG),
        age_seconds=age_seconds,
        written_ns=int(written.timestamp()) * 10**9,
    )


def remove_objects(urls: Iterable[ObjectUrl]) -> None:
    """Delete objects of one bucket (idempotent).

    Raises:
        StoreWriteError: If the store refuses.
    """
    left = list(urls)
    while left:
        batch, left = left[:_KEYS_AT_ONCE], left[_KEYS_AT_ONCE:]
        first = batch[0]
        client = client_of(first)
        entries = [{"Key": url.key} for url in batch]

        def request(client: Any = client, first: ObjectUrl = first, entries: Any = entries) -> Any:  # noqa: ANN401 - boto3's client and answer
            count_requests(puts=1)
            return client.delete_objects(Bucket=first.bucket, Delete={"Objects": entries, "Quiet": True})

        for refused in persist(first, request).get("Errors", ()):
            url, code = first.with_key(refused.get("Key", first.key)), refused.get("Code", "")
            if code in _ABSENT:
                continue  # as some stores say
            raise StoreWriteError(f"{url}: cannot be removed ({code}); check what this node's credentials may remove")


def list_objects(folder: ObjectUrl, *, most: int | None = None) -> list[ListedObject]:
    """List the objects below a folder, 1,000 per request.

    Args:
        folder: The folder.
        most: End once there are so many.

    Raises:
        StoreWriteError: If the store refuses.
    """
    found: list[ListedObject] = []
    for page in list_pages(folder, describe=describe_writing()):
        found += [ListedObject(url=folder.with_key(entry["Key"]), size_bytes=int(entry["Size"])) for entry in page]
        if most is not None and len(found) >= most:
            break
    return found


# Objects that this process has written and will read again: held in memory, so that they need not be fetched.
#
# Only objects under names that are used once are held, since such a name never stands for other content. Whoever runs
# tasks in this process decides how much is held; in processes that run a task at a time, what one writes is seldom what
# it reads next, and nothing is held.

SMALL_BYTES = 1 << 20
"""Size below which objects have a cache of their own."""
_SHARE_OF_SMALL = 8
"""Share of the cache reserved for small objects."""


@dataclass(slots=True)
class _Shelf:
    """FIFO cache of written contents, which are read in about that order."""

    contents: dict[str, Blocks] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    """Unread bytes of each content."""
    most_bytes: int = 0
    held_bytes: int = 0

    def hold(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._make_room()

    def keep(self, name: str, content: Blocks) -> None:
        if len(content) <= self.most_bytes and name not in self.contents:
            self.contents[name], self.unread[name] = content, len(content)
            self.held_bytes += len(content)
            self._make_room()

    def note_read(self, name: str, num_bytes: int) -> None:
        if name in self.contents:
            self.unread[name] -= num_bytes
            if self.unread[name] <= 0:
                self._let_go(name)

    def _make_room(self) -> None:
        while self.held_bytes > self.most_bytes:
            self._let_go(next(iter(self.contents)))

    def _let_go(self, name: str) -> None:
        del self.unread[name]
        self.held_bytes -= len(self.contents.pop(name))


@dataclass(slots=True)
class _Recent:
    lock: threading.Lock = field(default_factory=threading.Lock)
    large: _Shelf = field(default_factory=_Shelf)
    small: _Shelf = field(default_factory=_Shelf)
    pinned: dict[str, Blocks] = field(default_factory=dict)
    """Contents pinned by a task, beyond the capacity."""


_recent = _Recent()


def _forget() -> None:
    """Reset after a fork, during which the lock may have been held."""
    global _recent
    _recent = _Recent()


os.register_at_fork(after_in_child=_forget)


def hold_recent(most_bytes: int) -> None:
    """Set the capacity; 0 empties the cache."""
    with _recent.lock:
        small_bytes = most_bytes // _SHARE_OF_SMALL
        _recent.small.hold(small_bytes)
        _recent.large.hold(most_bytes - small_bytes)


def keep_recent(url: ObjectUrl, content: Blocks) -> None:
    """Cache a written object, if it fits."""
    with _recent.lock:
        shelf = _recent.small if len(content) < SMALL_BYTES else _recent.large
        shelf.keep(str(url), content)


@contextlib.contextmanager
def holding(contents: Mapping[str, Blocks]) -> Iterator[None]:
    """Pin objects for the block, such as those that a task reads several times."""
    with _recent.lock:
        _recent.pinned.update(contents)
    try:
        yield
    finally:
        with _recent.lock:
            for name in contents:
                _recent.pinned.pop(name, None)  # a second attempt at the same task may have been here


def find_recent(path: str) -> Blocks | None:
    """Return the cached content of an object; None on a miss."""
    name = str(path)
    with _recent.lock:
        return _recent.large.contents.get(name) or _recent.small.contents.get(name) or _recent.pinned.get(name)


def let_go_read(path: str, num_bytes: int) -> None:
    """Count bytes as read for the last time; a fully read object is evicted."""
    with _recent.lock:
        _recent.large.note_read(str(path), num_bytes)


# By what a file or an object is recognised, also after a rename.

FileIdentity = tuple[int, int, int, int]
"""Device, inode, size in bytes and modification time in ns, which a rename keeps; of an object, a hash of its tag."""


def identify_file(status: os.stat_result) -> FileIdentity:
    """Return the identity by which a file is recognised after a rename."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def identify_tag(tag: str) -> FileIdentity:
    """Return the identity of an object that an upload of this tag made, or will make."""
    return 0, xxhash.xxh3_64_intdigest(tag.encode()), 0, 0


def is_tagged(identity: FileIdentity) -> bool:
    """Tell whether an identity is that of an object which an upload of a job made."""
    return identity[0] == identity[2] == identity[3] == 0


def identify(path: str) -> FileIdentity | None:
    """Return the identity of the file that a path leads to, of a link that leads nowhere, or of an object.

    That of an object without a tag has a time, as it may be newer than a manifest.

    Returns:
        None if there is nothing.

    Raises:
        OutputError: If a store refuses.
    """
    if not isinstance(path, ObjectUrl):
        with contextlib.suppress(OSError):
            return identify_file(os.stat(path) if os.path.exists(path) else os.lstat(path))
        return None
    found = find_object(path)
    if found is None or found.tag is not None:
        return None if found is None else identify_tag(found.tag or "")
    return 0, identify_tag(found.etag)[1], found.size_bytes, found.written_ns


def is_same_folder(recorded: str, folder: str) -> bool:
    """Whether a folder is the one of a recorded path or address."""
    if isinstance(folder, ObjectUrl):
        return recorded == str(folder)
    with contextlib.suppress(OSError):
        return os.path.samefile(recorded, folder)
    return False
