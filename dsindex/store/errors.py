"""Map errors of disks, object stores and the Hugging Face Hub to sentences and hints."""

from __future__ import annotations

import contextlib
import errno
import re
from typing import TYPE_CHECKING

from dsindex.errors import DsindexError, InputError, MissingObjectError, OutputError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors of the operating system.

ABSENT = (FileNotFoundError, NotADirectoryError)
"""Errors which say that nothing exists at a path."""
PASSING_ERRORS = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EAGAIN})
"""Errors of a disk or a network file system after which a retry may succeed."""
FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TOO_MANY_FILES = "raise the limit of open files (`ulimit -n 4096`), then rerun the command"
_WRITE_HINTS = {
    **dict.fromkeys(FULL_DISK_ERRORS, "make room or choose another place, then rerun the command"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a folder that you may write to"),
    # The output path is a folder, a link or a pipe.
    **dict.fromkeys((errno.EISDIR, errno.ELOOP, errno.ENXIO), "no file can replace it: move it away"),
    errno.EFAULT: "a mapped input was cut off, or its disk failed: check the inputs, then rerun the command",
    errno.EMFILE: _TOO_MANY_FILES,
}
_READ_HINTS = {errno.EMFILE: _TOO_MANY_FILES, errno.ENOENT: "check the path", errno.EISDIR: "name a file"}


def output_error(path: str, error: OSError) -> OutputError:
    """Return the error for a failed write, with a hint; it is transient unless the user has to act first."""
    hint = _WRITE_HINTS.get(error.errno or 0, "check the folder, then rerun the command")
    refusal = OutputError(f"{path}: cannot be written ({error.strerror})", hint=hint)
    refusal.transient = error.errno not in _WRITE_HINTS
    return refusal


def read_error(path: str, error: OSError, kind: type[DsindexError] = InputError, hint: str = "") -> DsindexError:
    """Return the error for a failed read, with a hint; it is transient if a retry may succeed."""
    if not hint or error.errno == errno.EMFILE:
        hint = _READ_HINTS.get(error.errno or 0, "make it readable, then rerun the command")
    refusal = kind(f"{path}: cannot be read ({error.strerror})", hint=hint)
    refusal.transient = error.errno in PASSING_ERRORS
    return refusal


@contextlib.contextmanager
def reading(path: str, kind: type[DsindexError] = InputError, *, hint: str = "") -> Iterator[None]:
    """Turn an OSError in the block into an error that names the file.

    Raises:
        InputError: If the block raises an OSError; if `kind` is given, an error of this type.
    """
    try:
        yield
    except OSError as error:
        raise read_error(path, error, kind, hint) from error


# Errors of object stores and the Hub.

_ACCESS = "the store does not allow it; check what this node's credentials may do"
_CREDENTIALS = (
    "the store does not accept the credentials of this node; renew them (on the Hub by HF_TOKEN or `hf auth login`), "
    "or set AWS_SKIP_SIGNATURE=true (GOOGLE_…, AZURE_…) for public data"
)
_ABSENT = "there is no such object; check the address, which for a folder ends with a slash"
_BUSY = (
    "the store cannot be reached, or keeps refusing; check credentials, AWS_ENDPOINT_URL, AWS_REGION and the network, "
    "then rerun the command"
)
_MEANINGS = {
    "NoSuchBucket": "there is no such bucket; check its name and AWS_ENDPOINT_URL",
    **dict.fromkeys(("PermissionDeniedError", "AccessDenied"), _ACCESS),
    **dict.fromkeys(
        ("UnauthenticatedError", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "401", "403"),
        _CREDENTIALS,
    ),
    **dict.fromkeys(("FileNotFoundError", "EntryNotFoundError"), _ABSENT),
    "NotSupportedError": "the server does not send parts of files; download the file",
    "InvalidPathError": "a key has an empty part, `.` or `..` between slashes; rename the object",
    "UnknownConfigurationKeyError": "a variable of the environment has another value than the store's library takes",
    "PreconditionError": "the object was replaced while the job ran; rerun the command once nothing writes to it",
    "GatedRepoError": "the dataset is gated; ask for access on its page, then set HF_TOKEN on every node",
    "RepositoryNotFoundError": "there is no such dataset, or it is private; check its name, or set HF_TOKEN",
    "RevisionNotFoundError": "the dataset has no such revision; check the name after @",
    "HFValidationError": "a dataset is named hf://datasets/ORGANISATION/NAME; check the name",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set; unset it, or name a folder of the cache",
}
"""Error code of the store, exception class or HTTP status → meaning; hint."""
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")


def describe_refusal(url: str, error: Exception, *, writes: bool = False) -> DsindexError:
    """Return the error for a failed request, with a hint; it is transient if `_MEANINGS` does not know the cause."""
    code = match[1] if (match := _CODE.search(str(error))) else ""
    status = str(getattr(getattr(error, "response", None), "status_code", ""))
    kinds = (code, *(kind.__name__ for kind in type(error).__mro__), status)
    known_names = [name for name in kinds if name in _MEANINGS]
    meaning = _MEANINGS[known_names[0]] if known_names else _BUSY
    reason, _, hint = meaning.partition("; ")
    kind: type[DsindexError] = OutputError if writes else MissingObjectError if meaning == _ABSENT else StoreError
    verb = "written" if writes else "read"
    failure = kind(f"{url}: cannot be {verb} ({code}{': ' if code else ''}{reason})", hint=hint or None)
    failure.transient = not known_names
    return failure
