"""What a store is: one interface to read, write, list and delete by a path or an address; and what refusals mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from dsindex.errors import DsindexError, MissingObjectError, OutputError, StoreError
from dsindex.store.storage import LOCAL
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from dsindex.store.storage import Bytes, DigestingWriter, InputStatus, Readable


class Store(Protocol):
    """What stores paths. Reads raise InputError or a file's OSError, writes OutputError."""

    def head(self, path: str) -> InputStatus:
        """Return size and version; MissingObjectError or FileNotFoundError if there is nothing."""
        ...

    def open(self, path: str, known: InputStatus | None = None) -> Readable:
        """Open for reading; `known` says what an object is, so that it is not looked at, and which version is read."""
        ...

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Return the content of what is small, and an object's version; None if absent."""
        ...

    def put(self, path: str, data: Bytes) -> None:
        """Write or replace at once."""
        ...

    def list(self, folder: str, *, recursive: bool = True) -> Sequence[InputStatus]:
        """Return what is in a folder, or below it, sorted by the bytes of the paths."""
        ...

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete (idempotent); return those that are refused."""
        ...

    def writer(self, path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:
        """Open for writing; it appears complete when the block ends, or not at all.

        Args:
            path: The final path.
            size_bytes: Upper bound of the size; needed beyond 150 GB, where it determines the parts of an upload.
        """
        ...


def store_of(path: str) -> Store:
    """Return the store of a path or an address."""
    if is_url(path):
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        return OBJECTS
    return LOCAL


def find(path: str) -> InputStatus | None:
    """Return what `head` does; None if there is nothing."""
    try:
        return store_of(path).head(path)
    except (MissingObjectError, FileNotFoundError, NotADirectoryError):
        return None


def replace_file(path: str, data: Bytes) -> None:
    """Write a small file or an object at once, replacing what is there.

    Raises:
        OutputError: If the folder, the disk or the store refuses.
    """
    store_of(path).put(path, data)


def open_output(path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:
    """Open a file or an object for sequential writing; it appears complete when the block ends, or not at all.

    Raises:
        OutputError: If the folder, the disk or the store refuses.
    """
    return store_of(path).writer(path, size_bytes=size_bytes)


# Refusals of object stores: one table for obstore's errors, the stores' and the Hub's.

_ACCESS = "the store does not allow it; check what this node's credentials may do"
_CREDENTIALS = (
    "the store does not accept the credentials of this node; renew them (on the Hub by HF_TOKEN or `hf auth login`), "
    "or set AWS_SKIP_SIGNATURE=true (GOOGLE_…, AZURE_…) for public data"
)
_ABSENT = "there is no such object, and a folder ends in a slash; check the address"
_BUSY = (
    "the store cannot be reached, or refuses again and again; check credentials, AWS_ENDPOINT_URL, AWS_REGION and the "
    "network, then run the same command again"
)
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket; check its name and AWS_ENDPOINT_URL",
    **dict.fromkeys(("PermissionDeniedError", "AccessDenied"), _ACCESS),
    **dict.fromkeys(
        ("UnauthenticatedError", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "401", "403"),
        _CREDENTIALS,
    ),
    **dict.fromkeys(("FileNotFoundError", "EntryNotFoundError"), _ABSENT),
    "NotSupportedError": "the server does not send parts of files; download it",
    "InvalidPathError": "a key has an empty part, `.` or `..` between slashes; rename the object",
    "UnknownConfigurationKeyError": "a variable of the environment has another value than the store's library takes",
    "PreconditionError": "it was replaced since it was looked at; run the job again once nothing writes to it",
    "GatedRepoError": "the dataset is gated; ask for access on its page, then set HF_TOKEN on every node",
    "RepositoryNotFoundError": "there is no such dataset, or it is private; check its name, or set HF_TOKEN",
    "RevisionNotFoundError": "the dataset has no such revision; check it",
    "HFValidationError": "expected hf://datasets/ORGANISATION/NAME, got another name; check it",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set; unset it, or name a folder of the cache",
}
"""The store's name of an error, its class or its status → what it means, and what to do."""
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")


def describe_refusal(url: str, error: Exception, *, writes: bool = False) -> DsindexError:
    """Return in a sentence why a request failed; it is transient if it is none of those that stay."""
    code = match[1] if (match := _CODE.search(str(error))) else ""
    status = str(getattr(getattr(error, "response", None), "status_code", ""))
    kinds = (code, *(kind.__name__ for kind in type(error).__mro__), status)
    known = [name for name in kinds if name in _REMEDIES]
    remedy = _REMEDIES[known[0]] if known else _BUSY
    reason = f"{code}: {remedy}" if code else remedy
    failure: DsindexError = StoreError(f"{url}: cannot be read ({reason})")
    if writes:
        failure = OutputError(f"{url}: cannot be written ({reason})")
    elif remedy == _ABSENT:
        failure = MissingObjectError(*failure.args)
    failure.transient = not known
    return failure
