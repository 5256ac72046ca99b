"""Objects in buckets, on web servers and on the Hub as a store."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from dsindex.errors import MissingObjectError, OutputError, StoreError
from dsindex.store import huggingface as hub
from dsindex.store.object_client import client_of, errors_described, get, status_of, wait_for
from dsindex.store.object_file import ObjectReader
from dsindex.store.storage import Bytes, DigestingWriter
from dsindex.store.urls import is_web, names_folder, split_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.store.types import InputStatus

PART_BYTES = 16 << 20
"""Size of an upload's parts, unless there would be too many."""
MOST_PARTS = 10_000
PARTS_AT_ONCE = 8
PAGE_ENTRIES = 1000
LISTINGS = 3


def _token(result: Any) -> str:  # noqa: ANN401 - obstore's metadata
    """Return what identifies a version for a conditional write: ETag, and Google's generation."""
    return f"{result['e_tag'] or ''} {result.get('version') or ''}"


async def _head(url: str) -> InputStatus:
    client, key = client_of(url)
    if is_web(url) or url.startswith("hf://"):  # signed addresses and some servers refuse HEAD
        with contextlib.suppress(GenericError):  # of an empty file
            return status_of(url, (await get(url, 0, 1))[1])
    return status_of(url, await obstore.head_async(client, key))


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
                return bytes((await get(path, 0, most_bytes))[0]), _token(answer.meta)
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

        for attempt in range(LISTINGS):  # obstore does not ask again for a page that was cut off
            try:
                with errors_described(folder):
                    found = wait_for(request())
                break
            except StoreError as error:
                if not error.transient or attempt == LISTINGS - 1:
                    raise
        return sorted(
            (status_of(f"{scheme}://{bucket}/{entry['path']}", entry) for entry in found),
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
            self._sink.write(bytes(data))  # obstore keeps what it is given, and callers fill their buffers again
        return len(data)


_UNMET = (AlreadyExistsError, PreconditionError, FileNotFoundError)
OBJECTS = ObjectStore()
