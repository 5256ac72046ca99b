"""Requests to object stores: counted, tried again where that may help, and their failures put into sentences.

What the library says about a failure holds the whole address, so nothing of it is ever shown but the status and the
store's own name of the error.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from dsindex.errors import DsindexError, InputError
from dsindex.objects.in_flight import gate_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.objects.urls import ObjectUrl

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_METADATA = ("169.254.169.254", "metadata.google.internal", "169.254.170.2", "169.254.170.23")
_SLOWER_STATUSES = {429, 503}
REGION_CODES = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_RENEW = "the credentials of this node do not hold, renew them"
NODE_REMEDIES = {
    "NoSuchBucket": "there is no such bucket, check its name and --endpoint-url",
    "RequestTimeTooSkewed": "this machine's clock is wrong, set it",
    **dict.fromkeys(
        ("ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationRequired"),
        _RENEW,
    ),
}
"""The store's name of an error → what to do."""
WRONG_SERVER = "check --endpoint-url: a store's web console has another address than the store"

Answer = TypeVar("Answer")
Outlook = Literal["final", "passing", "slower", "unreachable"]
"""Whether a failure may pass: never, by itself, once fewer requests are made, or once the server is there again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a request is tried, and how long the pauses are."""

    attempts: int = 8
    first_pause: float = 0.2
    """Seconds; each further pause is twice as long."""
    longest_pause: float = 10.0
    unreachable_attempts: int = 3
    """For a server that cannot be reached, or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """The requests of one process so far."""

    process: str
    """Random name of the process."""
    gets: int = 0
    lists: int = 0
    puts: int = 0
    """Requests that write, including the parts of uploads."""
    retries: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    def since(self, earlier: RequestCounts) -> RequestCounts:
        """Return what was added since then."""
        return RequestCounts(
            process=self.process,
            gets=self.gets - earlier.gets,
            lists=self.lists - earlier.lists,
            puts=self.puts - earlier.puts,
            retries=self.retries - earlier.retries,
            received_bytes=self.received_bytes - earlier.received_bytes,
            sent_bytes=self.sent_bytes - earlier.sent_bytes,
        )


@dataclass(slots=True)
class _Counters:
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    lock: threading.Lock = field(default_factory=threading.Lock)
    gets: int = 0
    lists: int = 0
    puts: int = 0
    retries: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


_counters = _Counters()


def _count_anew() -> None:
    """Count from 0 in a forked process; the lock may have been held while it was forked."""
    global _counters
    _counters = _Counters()


os.register_at_fork(after_in_child=_count_anew)
_others: dict[str, RequestCounts] = {}
"""Other process → its counts, as it told them last."""


def count_requests(
    *, gets: int = 0, lists: int = 0, puts: int = 0, retries: int = 0, received_bytes: int = 0, sent_bytes: int = 0
) -> None:
    """Add requests to the counts of this process."""
    with _counters.lock:
        _counters.gets += gets
        _counters.lists += lists
        _counters.puts += puts
        _counters.retries += retries
        _counters.received_bytes += received_bytes
        _counters.sent_bytes += sent_bytes


def request_counts() -> RequestCounts:
    """Return the counts of this process."""
    with _counters.lock:
        return RequestCounts(
            process=_counters.process,
            gets=_counters.gets,
            lists=_counters.lists,
            puts=_counters.puts,
            retries=_counters.retries,
            received_bytes=_counters.received_bytes,
            sent_bytes=_counters.sent_bytes,
        )


def note_requests(counts: RequestCounts | None) -> None:
    """Remember what another process has counted so far; it may say so late, and more than once."""
    if counts is not None and counts.process != _counters.process:
        known = _others.get(counts.process)
        if known is None or counts.gets + counts.lists + counts.puts > known.gets + known.lists + known.puts:
            _others[counts.process] = counts


def all_requests() -> RequestCounts:
    """Return the counts of this process and of those that it knows of."""
    own = request_counts()
    known = [own, *_others.values()]
    return RequestCounts(
        process=own.process,
        gets=sum(counts.gets for counts in known),
        lists=sum(counts.lists for counts in known),
        puts=sum(counts.puts for counts in known),
        retries=sum(counts.retries for counts in known),
        received_bytes=sum(counts.received_bytes for counts in known),
        sent_bytes=sum(counts.sent_bytes for counts in known),
    )


class StoreError(InputError):
    """An object store refuses a request, or cannot be reached."""


class MissingObjectError(StoreError):
    """There is no object at an address."""


class EmptyRangeError(StoreError):
    """A range begins behind the end of an object."""


class ChangedObjectError(InputError):
    """An object is not the one that was looked at."""


def insist(
    url: ObjectUrl,
    request: Callable[[], Answer],
    *,
    describe: Callable[[ObjectUrl, Exception], tuple[DsindexError, Outlook]] | None = None,
    patience: Patience | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
) -> Answer:
    """Make a request, again and again after pauses as long as the failure may pass.

    Args:
        url: What is asked for, for messages; all requests to its store share one gate.
        request: Makes the request.
        describe: Returns an error of `request` as a sentence, and whether it may pass; None for errors of obstore.
        patience: How long to go on.
        is_given_up: Tells whether nobody waits for the answer any more.

    Raises:
        DsindexError: If the request is refused, or fails for too long; the latter is transient.
    """
    patience = patience or Patience()
    pause = patience.first_pause
    gate = gate_of(url)
    attempt = unreachable = halvings = 0
    while True:
        attempt += 1
        try:
            with gate.passing() as halvings:
                answer = request()
        except DsindexError:
            raise
        except Exception as error:  # noqa: BLE001 - the libraries raise several kinds, and their texts hold signatures
            failure, outlook = (describe or _describe)(url, error)
            if outlook == "slower":
                gate.slow_down(halvings)
            unreachable = unreachable + 1 if outlook == "unreachable" else 0
        else:
            gate.succeed()
            return answer
        is_over = attempt >= patience.attempts or unreachable >= patience.unreachable_attempts
        if outlook == "final" or is_over or is_given_up():
            raise failure from None
        count_requests(retries=1)
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, patience.longest_pause)


def changed_object(url: str) -> ChangedObjectError:
    """Return the error for an object that is not what was looked at."""
    return ChangedObjectError(
        f"{url}: expected the object that was there when the job was planned, got another; the object was replaced,"
        " run the job again from the start once nothing writes to it"
    )


def _describe(url: ObjectUrl, error: Exception) -> tuple[InputError, Outlook]:
    """Return a failure to read by obstore as a sentence, and whether it may pass."""
    text = str(error)
    status = int(match[1]) if (match := _STATUS.search(text)) else None
    code = match[1] if (match := _CODE.search(text)) else ""
    refusal = _refusal_of_kind(url, type(error).__name__, text) or _refusal_of_store(url, status, code)
    if refusal is not None:
        return refusal, "final"
    is_silent = "kind: Timeout" in text
    is_unreachable = is_silent or "kind: Connect" in text
    answer = " ".join(filter(None, [str(status or ""), code])) or "a broken connection"
    what = "the server cannot be reached" if is_unreachable else f"the store answers with {answer}, again and again"
    what = "the server does not answer in time" if is_silent else what
    failure = StoreError(f"{url}: cannot be read ({what}); run the same command again later, or check the network")
    failure.transient = True
    if status in _SLOWER_STATUSES:
        return failure, "slower"
    return failure, "unreachable" if is_unreachable else "passing"


def _refusal_of_kind(url: ObjectUrl, kind: str, text: str) -> InputError | None:
    """Return a failure that no further attempt changes, as the library tells it; None for others."""
    if any(server in text for server in _METADATA):
        return StoreError(
            f"{url}: cannot be read (this node has no credentials: neither in the environment nor from a metadata "
            f"server); set them on every node, or {_anonymous(url)} for public data"
        )
    if "CredentialsError" in text:  # of google_store
        return StoreError(f"{url}: cannot be read (Google refuses the credentials of this node); renew them")
    if kind == "NotSupportedError":
        return StoreError(f"{url}: expected a server that sends parts of files, got one that does not; download it")
    if "Received non-partial response" in text:
        remedy = WRONG_SERVER if url.scheme == "s3" else "check the address"
        return StoreError(f"{url}: expected a store that sends parts of objects, got another server; {remedy}")
    if kind in {"ValueError", "InvalidPathError"}:
        return StoreError(f"{url}: expected keys without empty parts, `.` or `..` between slashes; rename the objects")
    if "Received redirect without LOCATION" in text:
        return _wrong_region(url)
    return None


def _refusal_of_store(url: ObjectUrl, status: int | None, code: str) -> InputError | None:
    """Return a failure that no further attempt changes, by the store's answer; None for others."""
    if status is None or status in {408, 429} or status >= 500:
        return None
    if status in {301, 307} or code in REGION_CODES:
        return _wrong_region(url)
    if status == 412:
        return changed_object(url)
    if status == 416:
        return EmptyRangeError(f"{url}: expected more bytes, the object ends before; run the job again from the start")
    if status == 404 and code != "NoSuchBucket":
        return MissingObjectError(f"{url}: cannot be read (no such object; a folder ends in a slash); check --input")
    said = f"{status} {code}".strip()
    remedy = NODE_REMEDIES.get(code) or (
        "check what this node's credentials may read" if status in {401, 403} else "check the address"
    )
    return StoreError(f"{url}: cannot be read ({said}); {remedy}")


def _wrong_region(url: ObjectUrl) -> InputError:
    region = url.access.region
    got = "the default one" if region is None else repr(region)
    return StoreError(f"{url}: expected the region of the bucket, got {got}; name its region with --region")


def _anonymous(url: ObjectUrl) -> str:
    return {"s3": "AWS_SKIP_SIGNATURE=true", "gs": "GOOGLE_SKIP_SIGNATURE=true"}.get(
        url.scheme, "AZURE_SKIP_SIGNATURE=true"
    )
