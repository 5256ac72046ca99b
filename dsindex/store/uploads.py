"""Multipart uploads: several machines write the parts, and the object appears on completion.

Parts have numbers from 1 on, and a part that is written again replaces the former. An object that an upload made
carries the upload's tag, so that a completion whose answer was lost, or whose driver was killed, is recognised.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.store.clients import (
    UNKNOWN_HEADER,
    Blocks,
    Bytes,
    Checksum,
    StoreWriteError,
    Sum,
    checksum_arguments,
    client_of,
    describe_writing,
    foreign_answer,
    known_checksum,
    persist,
    read_pages,
)
from dsindex.store.requests import count_requests, fetch_later
from dsindex.store.storage import DigestingWriter, append_all, atomic_writer
from dsindex.store.writing import TAG, find_object, new_tag, put_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from dsindex.store.urls import ObjectUrl

PART_BYTES = 64 << 20
"""Part size, except for the ranges of a merge."""
MOST_PARTS = 10_000
MEMORY_BYTES = 128 << 20
"""Maximum size of a part assembled in memory; `write_part_of_chunks` writes larger ones."""
_GONE = ("NoSuchUpload", "NoSuchKey", "404")
"""Error codes of a completed or aborted upload; Ceph returns NoSuchKey when its parts are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A multipart upload."""

    url: ObjectUrl
    """URL of the object."""
    upload_id: str
    """Upload id."""
    tag: str
    """Value of the object's metadata TAG."""
    checksum: Checksum = Checksum.MD5
    """Checksum of the parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPart:
    """An uploaded part."""

    etag: str
    size_bytes: int
    crc32: str | None
    """The checksum by which the part was checked, in the form of the header; None if there is none."""


def begin_upload(url: ObjectUrl) -> Upload:
    """Begin an upload; the object appears with `complete_upload`.

    Raises:
        StoreWriteError: If the store refuses.
    """
    client, tag = client_of(url), new_tag()
    options: dict[str, Any] = {"Bucket": url.bucket, "Key": url.key, "Metadata": {TAG: tag}}

    def request() -> Any:  # noqa: ANN401 - boto3's answer
        count_requests(puts=1)
        return client.create_multipart_upload(**options)

    answer = None
    if known_checksum(client) is Checksum.CRC32:
        options["ChecksumAlgorithm"] = "CRC32"
        try:
            answer = persist(url, request, expected=UNKNOWN_HEADER)
        except StoreWriteError as error:
            if error.code not in UNKNOWN_HEADER:
                raise
            del options["ChecksumAlgorithm"]
    if answer is None:
        answer = persist(url, request)
    if not answer.get("UploadId"):
        raise foreign_answer(url)
    checksum = Checksum.CRC32 if answer.get("ChecksumAlgorithm") == "CRC32" else Checksum.MD5
    return Upload(url=url, upload_id=str(answer["UploadId"]), tag=tag, checksum=checksum)


def write_part(upload: Upload, number: int, data: Blocks, *, checked: Mapping[str, str]) -> None:
    """Write or overwrite a part.

    Args:
        upload: The upload.
        number: 1-based number of the part.
        data: Its content.
        checked: The content's checksum of the upload's kind, by which the store notices damage; the part is then sent
            again.

    Raises:
        StoreWriteError: If the store refuses, or the upload is gone.
    """
    url = upload.url
    client = client_of(url)

    def request() -> None:
        count_requests(puts=1, sent_bytes=len(data))
        client.upload_part(
            Bucket=url.bucket,
            Key=url.key,
            UploadId=upload.upload_id,
            PartNumber=number,
            Body=data,
            ContentLength=len(data),
            **checked,
        )

    try:
        persist(url, request, expected=_GONE)
    except StoreWriteError as error:
        if error.code not in _GONE:
            raise
        msg = f"{url}: the upload was given up meanwhile by another run or a rule of the bucket; run the command again"
        raise StoreWriteError(msg) from error


def find_parts(upload: Upload) -> dict[int, FoundPart] | None:
    """Return the uploaded parts by number; None if the upload is gone.

    Raises:
        StoreWriteError: If the store refuses.
    """
    url = upload.url
    client, found = client_of(url), {}

    def request(begin: dict[str, Any]) -> Any:  # noqa: ANN401 - boto3's answer
        count_requests(lists=1)
        return client.list_parts(Bucket=url.bucket, Key=url.key, UploadId=upload.upload_id, MaxParts=1000, **begin)

    markers, describe = {"PartNumberMarker": "NextPartNumberMarker"}, describe_writing(*_GONE)
    try:
        for page in read_pages(url, request, entries="Parts", markers=markers, describe=describe):
            for part in page:
                found[int(part["PartNumber"])] = FoundPart(
                    etag=str(part["ETag"]), size_bytes=int(part["Size"]), crc32=part.get("ChecksumCRC32")
                )
    except StoreWriteError as error:
        if error.code not in _GONE:
            raise
        return None
    return found


def is_completed(upload: Upload) -> bool:
    """Whether the upload was completed.

    Raises:
        StoreWriteError: If the store refuses.
    """
    found = find_object(upload.url)
    return found is not None and found.tag == upload.tag


def complete_upload(upload: Upload, *, size_bytes: int) -> None:
    """Complete the upload, replacing any object of that name (idempotent).

    Args:
        upload: The upload.
        size_bytes: Size of all parts together.

    Raises:
        StoreWriteError: If the store refuses, or does not have all parts.
    """
    url = upload.url
    client, parts = client_of(url), find_parts(upload)
    if parts is None:
        if is_completed(upload):
            return
        msg = f"{url}: the upload was given up by another run or a rule of the bucket; run the same command again"
        raise StoreWriteError(msg)
    has_gaps = sorted(parts) != [*range(1, len(parts) + 1)]
    if has_gaps or sum(part.size_bytes for part in parts.values()) != size_bytes:
        msg = f"{url}: expected an upload of {size_bytes:,} bytes, got another; run the same command with --fresh"
        raise StoreWriteError(msg)
    if not parts:  # an upload of no part cannot be completed
        put_object(url, b"", tag=upload.tag)
        abort_upload(upload)
        return
    described = [_describe_part(number, parts[number]) for number in sorted(parts)]

    def request() -> None:
        count_requests(puts=1)
        client.complete_multipart_upload(
            Bucket=url.bucket, Key=url.key, UploadId=upload.upload_id, MultipartUpload={"Parts": described}
        )

    try:
        persist(url, request, expected=_GONE)
    except StoreWriteError as error:
        if error.code not in _GONE or not is_completed(upload):  # the answer to an earlier attempt was lost
            raise


def _describe_part(number: int, part: FoundPart) -> dict[str, Any]:
    checked = {} if part.crc32 is None else {"ChecksumCRC32": part.crc32}
    return {"PartNumber": number, "ETag": part.etag, **checked}


def abort_upload(upload: Upload) -> None:
    """Abort the upload (idempotent).

    Raises:
        StoreWriteError: If the store refuses.
    """
    url = upload.url
    client = client_of(url)

    def request() -> None:
        count_requests(puts=1)
        client.abort_multipart_upload(Bucket=url.bucket, Key=url.key, UploadId=upload.upload_id)

    try:
        persist(url, request, expected=_GONE)
    except StoreWriteError as error:
        if error.code not in _GONE:
            raise


def list_uploads(url: ObjectUrl) -> list[str]:
    """Return the ids of pending uploads to exactly this URL.

    Raises:
        StoreWriteError: If the store refuses.
    """
    client = client_of(url)

    def request(begin: dict[str, Any]) -> Any:  # noqa: ANN401 - boto3's answer
        count_requests(lists=1)
        return client.list_multipart_uploads(Bucket=url.bucket, Prefix=url.key, **begin)

    markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
    pages = read_pages(url, request, entries="Uploads", markers=markers, describe=describe_writing())
    return [str(each["UploadId"]) for page in pages for each in page if each["Key"] == url.key]


def write_part_of_chunks(upload: Upload, number: int, chunks: Iterable[memoryview]) -> None:
    """Write a part from chunks, which may share a buffer, by way of a temporary file.

    Raises:
        OutputError: As `write_part`, or if the temporary folder is full.
    """
    checksum = Sum(upload.checksum)
    with tempfile.TemporaryFile(prefix="dsindex-part-", buffering=0) as file:
        for chunk in chunks:
            append_all(file, chunk)
            checksum.update(chunk)
        content = Blocks.of(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        write_part(upload, number, content, checked=checksum.arguments())


class UploadWriter:
    """A sequential writer that sends full parts while the next one is filled.

    A second attempt at the same content writes the same parts.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._pending = bytearray()
        self._number = 0
        self._sent: Future[Any] | None = None

    def write(self, data: Bytes) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        for begin in range(0, len(view), PART_BYTES):
            self._pending += view[begin : begin + PART_BYTES]
            if len(self._pending) >= PART_BYTES:
                self._send(self._pending[:PART_BYTES])
                del self._pending[:PART_BYTES]
        return len(view)

    def finish(self) -> None:
        """Flush the last part and wait for all parts.

        Raises:
            StoreWriteError: As `write_part`.
        """
        if self._pending:
            self._send(self._pending)
        if self._sent is not None:
            self._sent.result()

    def _send(self, content: bytearray) -> None:
        if self._sent is not None:
            self._sent.result()
        self._number += 1
        number, upload, blocks = self._number, self._upload, Blocks.of(content)
        self._sent = fetch_later(
            lambda: write_part(upload, number, blocks, checked=checksum_arguments(upload.checksum, blocks))
        )


@contextlib.contextmanager
def open_output(place: str | Upload) -> Iterator[DigestingWriter]:
    """Open a file or an upload for sequential writing; leaving the block completes it.

    Args:
        place: The file's path, at which it appears when the block ends; or the upload, to be completed later.

    Raises:
        OutputError: If the folder, the disk or the store refuses.
    """
    if isinstance(place, str):
        with atomic_writer(place) as file:
            yield file
    else:
        writer = UploadWriter(place)
        yield DigestingWriter(writer)
        writer.finish()
