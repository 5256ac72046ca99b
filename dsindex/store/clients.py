"""The client that writes to S3, to compatible servers, and to Google's, and how its failures are described.

boto3 makes the requests that obstore cannot make: the parts of an upload that several machines make together, and
conditional writes. Credentials are found by boto3 on the machine that makes a request, and are neither sent nor stored.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import threading
import weakref
import zlib
from bisect import bisect_right
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from dsindex.errors import OutputError, StoreError
from dsindex.store import google_store
from dsindex.store.requests import (
    NODE_REMEDIES,
    REGION_CODES,
    WRONG_SERVER,
    count_requests,
    describe_answer,
    no_credentials,
    retry,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dsindex.errors import InputError
    from dsindex.store.requests import Backoff, Describe, RetryClass
    from dsindex.store.urls import Access, ObjectUrl


# Content in blocks, which is sent and read without being joined.

Bytes = bytes | bytearray | memoryview
"""Content to write."""

BLOCK_BYTES = 1 << 20


class Blocks:
    """Immutable content in blocks."""

    def __init__(self, blocks: Sequence[bytes | memoryview]) -> None:
        self._blocks = blocks
        self._ends = list(accumulate(map(len, blocks)))

    @classmethod
    def of(cls, content: bytes | bytearray | mmap.mmap | memoryview) -> Blocks:
        """Wrap contiguous content."""
        view = memoryview(content)
        return cls([view[begin : begin + BLOCK_BYTES] for begin in range(0, len(view), BLOCK_BYTES)])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._blocks)

    def read(self, _: int = -1) -> bytes:
        """Return all content; boto3 requires the method and never calls it."""
        return b"".join(self._blocks)

    def part(self, begin: int, end: int) -> list[memoryview]:
        """Return the blocks of bytes [begin, end), zero-copy."""
        number, blocks = bisect_right(self._ends, begin), []
        while begin < end:
            block = memoryview(self._blocks[number])
            skipped = begin - (self._ends[number] - len(block))
            blocks.append(block[skipped : skipped + end - begin])
            number, begin = number + 1, begin + len(blocks[-1])
        return blocks

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from an offset."""
        done = 0
        for block in self.part(offset, offset + len(buffer)):
            buffer[done : done + len(block)] = block
            done += len(block)


class BodyOfBlocks:
    """A request body that urllib3 sends block by block, rewindable for a redirect to another region."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._blocks)

    def seek(self, position: int) -> None:
        """No-op: iteration always starts at the first block."""


REQUEST_SECONDS = 60
CONNECT_SECONDS = 5
MOST_CONNECTIONS = 64
_PREFIXES = ("AWS_",)
_THROTTLE_CODES = {"SlowDown", "503", "429", "TooManyRequests", "ServiceUnavailable"}
"""Error codes that throttle the limiter."""
_PASSING_CODES = {
    *("RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "SlowDown"),
    *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"),
}
"""Error codes below 500 that are worth a retry."""

MOST_ANSWER_BYTES = 32 << 20
"""Maximum size of a response other than an object; a page of 1,000 entries has a few MiB."""
MOST_EMPTY_PAGES = 1000
"""Maximum consecutive empty pages of a listing; some stores return a few, for deleted objects."""

_FIELDS = {"Contents": {"Key", "Size"}, "Uploads": {"Key", "UploadId"}, "Parts": {"PartNumber", "ETag", "Size"}}
"""Kind of the entries of a listing → what each has."""
_PAGES = (b"<!doctype html", b"<html")

Answer = TypeVar("Answer")


class _ForeignAnswerError(Exception):
    """The response is not a store's; the argument says what it is."""


class StoreWriteError(OutputError):
    """An object store refuses to write, or cannot be reached."""

    code: str = ""
    """The store's name of the error."""


def client_of(url: ObjectUrl) -> Any:  # noqa: ANN401 - boto3's client
    """Return the client for an address, another one if the environment has changed, as it may in a notebook.

    Raises:
        StoreWriteError: If a library is not installed, or the client would send secrets without encryption.
    """
    make, prefixes = (_make_google_client, google_store.VARIABLES) if url.scheme == "gs" else (_make_client, _PREFIXES)
    settings = frozenset((name, value) for name, value in os.environ.items() if name.startswith(prefixes))
    with _making:  # boto3 makes clients one at a time
        try:
            return make(url.access, hash(settings))
        except ImportError as error:
            needed, extra = ("boto3 package", "objects")
            if url.scheme == "gs":
                needed, extra = "boto3 and google-auth packages", "google"
            msg = f"{url}: outputs in object stores need the {needed}; pip install 'dsindex[{extra}]' on every node"
            raise StoreWriteError(msg) from error
        except google_store.CredentialsError as error:
            raise _describe(url, error, expected=())[0] from error


_making = threading.Lock()


@functools.lru_cache(16)
def _make_client(access: Access, _environment: int) -> Any:  # noqa: ANN401 - boto3's client
    import boto3
    from botocore import UNSIGNED

    environment = os.environ
    endpoint = access.endpoint_url or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    session = boto3.session.Session()
    region = access.region or environment.get("AWS_REGION") or session.region_name or "us-east-1"
    options: dict[str, Any] = {
        "s3": {"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": False}
    }
    if environment.get("AWS_SKIP_SIGNATURE", "").lower() == "true":
        options["signature_version"] = UNSIGNED
    return _finish(session, region_name=region, endpoint_url=endpoint or None, options=options)


@functools.lru_cache(16)
def _make_google_client(_access: Access, _environment: int) -> Any:  # noqa: ANN401 - boto3's client
    import boto3
    from botocore import UNSIGNED

    endpoint = google_store.find_endpoint()
    session = boto3.session.Session("unused", "unused")  # without these, it would look for credentials of AWS
    options = {"s3": {"addressing_style": "path"}, "signature_version": UNSIGNED}
    client = _finish(session, region_name="auto", endpoint_url=endpoint, options=options)
    google_store.speak_google(client)
    return client


def _finish(session: Any, *, region_name: str, endpoint_url: str | None, options: dict[str, Any]) -> Any:  # noqa: ANN401
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=REQUEST_SECONDS,
        retries={"total_max_attempts": 1, "mode": "standard"},  # requests are tried again by `persist`
        max_pool_connections=MOST_CONNECTIONS,
        request_checksum_calculation="when_required",  # some servers know no other checksum than Content-MD5
        response_checksum_validation="when_required",
        **options,
    )
    client = session.client("s3", region_name=region_name, endpoint_url=endpoint_url, config=config)
    for operation in ("PutObject", "UploadPart"):
        client.meta.events.register(f"before-send.s3.{operation}", _send_blocks)
    session = client._endpoint.http_session

    def send(request: Any, **_: object) -> Any:  # noqa: ANN401 - botocore's request and answer
        is_object, request.stream_output = request.stream_output, True
        answer = session.send(request)
        if not is_object or answer.status_code >= 300:
            answer.raw = _Bounded(answer.raw)
            _require_store(request.url, answer)
        return answer

    client.meta.events.register_last("before-send.s3", send)
    return client


def _require_store(asked: str, answer: Any) -> None:  # noqa: ANN401 - botocore's answer
    """Reject responses that botocore would retry: an HTML page, or a redirect to another server.

    Raises:
        _ForeignAnswerError: If it is either.
    """
    content, headers = answer.content.lstrip()[:20].lower(), answer.headers
    if answer.status_code < 300 and content and (not content.startswith(b"<") or content.startswith(_PAGES)):
        raise _ForeignAnswerError("another server")
    there = urlsplit(headers.get("Location") or "").hostname
    is_redirect = 300 <= answer.status_code < 400 and "x-amz-bucket-region" not in headers
    if is_redirect and there not in {None, urlsplit(asked).hostname}:
        raise _ForeignAnswerError("a redirect to another one")


class _Bounded:
    """A response body with a size limit."""

    def __init__(self, raw: Any) -> None:  # noqa: ANN401 - urllib3's answer
        self._raw = raw

    def stream(self) -> Iterator[bytes]:
        """Yield the body in chunks.

        Raises:
            _ForeignAnswerError: If it is too long.
            HTTPClientError: If the connection breaks, or nothing comes for too long.
        """
        from botocore.exceptions import HTTPClientError, ReadTimeoutError
        from urllib3 import exceptions

        num_bytes = 0
        try:
            for chunk in self._raw.stream(64 << 10):
                num_bytes += len(chunk)
                if num_bytes > MOST_ANSWER_BYTES:
                    self._raw.close()
                    raise _ForeignAnswerError(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")
                yield chunk
        except exceptions.ReadTimeoutError as error:  # as botocore tells them
            raise ReadTimeoutError(endpoint_url="", error=error) from error
        except exceptions.HTTPError as error:
            raise HTTPClientError(error=error) from error


def read_pages(
    url: ObjectUrl,
    request: Callable[[dict[str, Any]], Any],
    *,
    entries: str,
    markers: Mapping[str, str],
    describe: Describe,
) -> Iterator[list[Any]]:
    """Yield the entries of a paginated listing, which must end and never repeat a page.

    Args:
        url: What is listed, for messages.
        request: Requests a page; the argument says where it begins, by names of boto3's parameters.
        entries: The field of an answer that has the entries.
        markers: Parameter → the field of an answer that has its value for the next page.
        describe: As for `retry`.

    Raises:
        DsindexError: If the store refuses, or its answers are no listing.
    """
    begin: dict[str, Any] = {}
    seen: set[tuple[Any, ...]] = set()
    num_empty = 0
    while True:
        page = functools.partial(_request_page, request, begin, entries)
        answer = retry(url, page, describe=describe)
        found = answer.get(entries, [])
        yield found
        if not answer["IsTruncated"]:
            return
        begin = {parameter: answer[field] for parameter, field in markers.items() if field in answer}
        place = tuple(begin.values())
        num_empty = 0 if found or answer.get("CommonPrefixes") else num_empty + 1
        if not place or place in seen:
            raise describe(url, _ForeignAnswerError("a listing that comes to the same page again"))[0]
        if num_empty > MOST_EMPTY_PAGES:
            raise describe(url, _ForeignAnswerError(f"{num_empty:,} pages of a listing without an entry"))[0]
        seen.add(place)


def list_pages(folder: ObjectUrl, *, describe: Describe, recursive: bool = True) -> Iterator[list[Any]]:
    """Yield the objects below a folder, page by page.

    Args:
        folder: The folder, with or without a slash at its end.
        describe: As for `retry`.
        recursive: Whether to list its subfolders, too.

    Raises:
        DsindexError: If the store refuses, or its answers are no listing of this folder.
    """
    client, key = client_of(folder), folder.key.strip("/")
    prefix, more = f"{key}/" if key else "", {} if recursive else {"Delimiter": "/"}

    def request(begin: dict[str, Any]) -> Any:  # noqa: ANN401 - boto3's answer
        count_requests(lists=1)
        answer = client.list_objects_v2(Bucket=folder.bucket, Prefix=prefix, **more, **begin)
        if not all(entry.get("Key", prefix).startswith(prefix) for entry in answer.get("Contents", ())):
            raise _ForeignAnswerError("objects of another folder")
        return answer

    markers = {"ContinuationToken": "NextContinuationToken"}
    return read_pages(folder, request, entries="Contents", markers=markers, describe=describe)


def _request_page(request: Callable[[dict[str, Any]], Any], begin: dict[str, Any], entries: str) -> Any:  # noqa: ANN401
    """Request and validate a page of a listing."""
    answer = request(begin)
    for entry in answer.get(entries, ()):
        if entry.get("Size", 0) < 0:
            raise _ForeignAnswerError("an object of less than 0 bytes")
    if "IsTruncated" not in answer or not all(_FIELDS[entries] <= entry.keys() for entry in answer.get(entries, ())):
        raise _ForeignAnswerError("another server")
    return answer


def _send_blocks(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore's prepared request
    """Send the body block by block; botocore would copy bytes and send files in small chunks."""
    if isinstance(request.body, Blocks):
        request.body = BodyOfBlocks(request.body)


def persist(
    url: ObjectUrl,
    request: Callable[[], Answer],
    *,
    expected: Collection[str] = (),
    backoff: Backoff | None = None,
) -> Answer:
    """Make a request, retrying with backoff while the failure is not fatal.

    Args:
        url: What is written, for messages.
        request: Makes the request; errors are those of boto3.
        expected: Names of errors that the caller deals with: they are raised at once, as StoreWriteError with `code`.
        backoff: How long to go on.

    Raises:
        StoreWriteError: If the request is refused, or fails for too long; the latter is transient.
    """
    return retry(url, request, describe=describe_writing(*expected), backoff=backoff)


def _describe(url: ObjectUrl, error: Exception, *, expected: Collection[str]) -> tuple[StoreWriteError, RetryClass]:
    """Describe a failed write of boto3, with its retry class."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        return _describe_answer(url, error, expected)
    if isinstance(error, google_store.CredentialsError):
        what, remedy = error.args
        return StoreWriteError(f"{url}: cannot be written ({what}); {remedy}"), "fatal"
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        remedy = "set them on every node"
        return StoreWriteError(f"{url}: cannot be written (this node has no credentials); {remedy}"), "fatal"
    if isinstance(error, exceptions.HTTPClientError | exceptions.EndpointConnectionError | OSError):
        is_silent = isinstance(error, exceptions.ReadTimeoutError | exceptions.ConnectTimeoutError)
        is_unreachable = is_silent or isinstance(error, exceptions.EndpointConnectionError)
        what = "a broken connection, again and again"
        what = "the server does not answer in time" if is_silent else what
        what = "the server cannot be reached" if isinstance(error, exceptions.EndpointConnectionError) else what
        failure = StoreWriteError(
            f"{url}: cannot be written ({what}); run the same command again later, or check the network: it continues"
        )
        failure.transient = True
        return failure, "unreachable" if is_unreachable else "transient"
    if isinstance(error, ResponseParserError | ValueError):  # a header or a field that is not of its type
        return foreign_answer(url), "fatal"
    if isinstance(error, _ForeignAnswerError):
        return foreign_answer(url, str(error)), "fatal"
    if isinstance(error, exceptions.BotoCoreError):
        kind = type(error).__name__
        return StoreWriteError(f"{url}: cannot be written ({kind}); check the credentials and settings of AWS"), "fatal"
    raise error


def foreign_answer(url: ObjectUrl, got: str = "another server") -> StoreWriteError:
    """Return the error for a response that is not a store's, such as the page of a web console."""
    return StoreWriteError(f"{url}: expected a store that answers as S3 does, got {got}; {WRONG_SERVER}")


def describe_reading(url: ObjectUrl, error: Exception) -> tuple[InputError, RetryClass]:
    """Describe a failed read of boto3, with its retry class."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return describe_answer(url, status, str(error.response.get("Error", {}).get("Code", "")))
    if isinstance(error, exceptions.NoCredentialsError):
        return no_credentials(url), "fatal"
    failure, retry_class = _describe(url, error, expected=())
    told = StoreError(str(failure).replace("cannot be written", "cannot be read").removesuffix(": it continues"))
    told.transient = failure.transient
    return told, retry_class


def describe_writing(*expected: str) -> Describe:
    """Return the function that describes failed writes, except the expected codes."""
    return functools.partial(_describe, expected=expected)


def _describe_answer(
    url: ObjectUrl,
    error: Any,  # noqa: ANN401 - botocore's ClientError
    expected: Collection[str],
) -> tuple[StoreWriteError, RetryClass]:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = f"{status} {code}".strip() if code != str(status) else code
    retry_class: RetryClass = "fatal"
    if code in expected:
        failure = StoreWriteError(f"{url}: cannot be written ({said})")
    elif status >= 500 or status in {408, 429} or code in _PASSING_CODES:
        if status == 501:
            msg = f"{url}: cannot be written ({said}); this store lacks what a build needs, write to another one"
            failure = StoreWriteError(msg)
        else:
            failure = StoreWriteError(
                f"{url}: cannot be written (the store answers with {said}, again and again); run the same command "
                f"again later: it continues"
            )
            failure.transient = True
            retry_class = "throttled" if status in {429, 503} or code in _THROTTLE_CODES else "transient"
    elif status in {301, 307} or code in REGION_CODES:
        region = url.access.region
        got = "the default one" if region is None else repr(region)
        msg = f"{url}: expected the region of the bucket, got {got}; name it with --region"
        failure = StoreWriteError(msg)
    else:
        remedy = NODE_REMEDIES.get(code) or (
            "check what this node's credentials may write" if status in {401, 403} else "check the address"
        )
        failure = StoreWriteError(f"{url}: cannot be written ({said}); {remedy}")
    failure.code = code
    return failure, retry_class


# By what a store checks the content that it is sent: CRC-32 where it does, otherwise MD5.
#
# MD5 takes ten times as long, but every store has checked it from the first. So the first object that a client writes
# carries both; from then on it sends the CRC-32 alone if the store's answer shows that it has computed it.


class Checksum(StrEnum):
    """How a store verifies content."""

    CRC32 = "crc32"
    MD5 = "md5"


UNKNOWN_HEADER = ("NotImplemented", "InvalidArgument", "InvalidRequest", "InvalidHeader")
"""Error codes for an unknown header."""

_known: weakref.WeakKeyDictionary[Any, Checksum] = weakref.WeakKeyDictionary()
"""Client → the checksum that its store verifies."""


class Sum:
    """An incremental checksum."""

    def __init__(self, kind: Checksum) -> None:
        self._kind = kind
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: Bytes) -> None:
        """Add the next bytes."""
        if self._kind is Checksum.CRC32:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._md5.update(data)

    def arguments(self) -> dict[str, str]:
        """Return the checksum as arguments of boto3."""
        is_crc = self._kind is Checksum.CRC32
        digest = self._crc.to_bytes(4, "big") if is_crc else self._md5.digest()
        return {"ChecksumCRC32" if is_crc else "ContentMD5": base64.b64encode(digest).decode()}


def checksum_arguments(kind: Checksum, content: Blocks) -> dict[str, str]:
    """Return the checksum of content as arguments of boto3."""
    whole = Sum(kind)
    for block in content:
        whole.update(block)
    return whole.arguments()


def known_checksum(client: Any) -> Checksum | None:  # noqa: ANN401 - boto3's client
    """Return the checksum that the store verifies; None before the first write."""
    return _known.get(client)


def learn_checksum(client: Any, answer: Mapping[str, object]) -> None:  # noqa: ANN401 - boto3's client
    """Record which checksum the store verified of an object sent with both."""
    _known[client] = Checksum.CRC32 if answer.get("ChecksumCRC32") else Checksum.MD5


def use_md5(client: Any) -> None:  # noqa: ANN401 - boto3's client
    """Stop sending CRC-32 to a store that rejects it."""
    _known[client] = Checksum.MD5
