"""Write, look at and remove objects by conditional requests, each of which is repeated until its outcome is known.

An answer may be lost after its request succeeded. So a repeated conditional request that is refused looks at what is
there: if that is what it wanted to write, it did write it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from dsindex.objects.blocks import Blocks, Bytes
from dsindex.objects.checksums import (
    UNKNOWN_HEADER,
    Checksum,
    checksum_arguments,
    known_checksum,
    learn_checksum,
    use_md5,
)
from dsindex.objects.clients import StoreWriteError, client_of, foreign_answer, persist
from dsindex.objects.requests import count_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsindex.objects.urls import ObjectUrl

MOST_OBJECT_BYTES = 5 << 30
"""Size of the largest object that can be written by one request."""

TAG = "dsindex"
"""Name of the metadata by which an object is recognised as written by a job."""
_KEYS_AT_ONCE = 1000
_REFUSED = ("PreconditionFailed", "412")
_ABSENT = ("NoSuchKey", "404", "NotFound")
_UNMET = (*_REFUSED, *_ABSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """An object as its store describes it."""

    size_bytes: int
    etag: str
    """What conditional writes compare: its ETag, or its generation in Google's stores."""
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
    """Write an object, replacing one of this name.

    Raises:
        StoreWriteError: If the store refuses.
    """
    _put(url, data, {} if tag is None else {"Metadata": {TAG: tag}})


def put_if_absent(url: ObjectUrl, data: Bytes) -> str | None:
    """Write an object unless there is one of this name; return its ETag, or None if there is another one.

    Raises:
        StoreWriteError: If the store refuses.
    """
    try:
        return _put(url, data, {"IfNoneMatch": "*"}, expected=_UNMET)
    except StoreWriteError as error:
        if error.code not in _UNMET:
            raise
    found = read_object(url)
    return found[1].etag if found is not None and found[0] == bytes(data) else None  # the answer was lost


def put_if_same(url: ObjectUrl, data: Bytes, etag: str) -> str | None:
    """Replace an object if it has this ETag; return the new one's, or None if there is another one, or none.

    Raises:
        StoreWriteError: If the store refuses.
    """
    for condition in dict.fromkeys((etag, etag.strip('"'))):
        try:
            return _put(url, data, {"IfMatch": condition}, expected=_UNMET)
        except StoreWriteError as error:
            if error.code not in _UNMET:
                raise
        found = read_object(url)
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
    """Look at an object; return None if there is none.

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
    """Read a small object; return None if there is none.

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
        written, now = (parsedate_to_datetime(headers[name]) for name in ("last-modified", "date"))
    except (KeyError, ValueError) as error:
        raise foreign_answer(url) from error
    return FoundObject(
        size_bytes=int(answer["ContentLength"]),
        etag=etag,
        tag=answer.get("Metadata", {}).get(TAG),
        age_seconds=(now - written).total_seconds(),
        written_ns=int(written.timestamp()) * 10**9,
    )


def remove_objects(urls: Iterable[ObjectUrl]) -> None:
    """Remove objects of one bucket by their names; those that are absent already are no matter.

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
            url, code = first.with_key(refused["Key"]), refused.get("Code", "")
            if code in _ABSENT:
                continue  # as some stores say
            msg = f"{url}: cannot be removed ({code}); check what this node's credentials may remove"
            raise StoreWriteError(msg)


def list_objects(folder: ObjectUrl, *, most: int | None = None) -> list[ListedObject]:
    """Return the objects whose names begin with that of a folder and a slash, by a request per 1,000.

    Args:
        folder: The folder.
        most: End once there are so many.

    Raises:
        StoreWriteError: If the store refuses.
    """
    client, found, token = client_of(folder), [], None
    while True:
        more: dict[str, Any] = {} if token is None else {"ContinuationToken": token}

        def request(more: dict[str, Any] = more) -> Any:  # noqa: ANN401 - boto3's answer
            count_requests(lists=1)
            return client.list_objects_v2(Bucket=folder.bucket, Prefix=f"{folder.key}/", **more)

        answer = persist(folder, request)
        found += [
            ListedObject(url=folder.with_key(entry["Key"]), size_bytes=int(entry["Size"]))
            for entry in answer.get("Contents", ())
        ]
        token = answer.get("NextContinuationToken")
        if not answer.get("IsTruncated") or token is None or (most is not None and len(found) >= most):
            return found
