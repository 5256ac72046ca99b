"""Requests to object stores: counted, tried again where that may help, and their failures put into sentences.

What the library says about a failure holds the whole address, so nothing of it is ever shown but the status and the
store's own name of the error.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import re
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from dsindex.amounts import count, format_size
from dsindex.errors import DsindexError, InputError, MissingObjectError, StoreError
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dsindex.store.urls import ObjectUrl


# How many requests to a store are in flight: half as many after it asked to slow down, then slowly more again.

MOST_REQUESTS = 64
"""Requests of a process to one bucket or server that are in flight at once."""


class Gate:
    """AIMD concurrency limiter of one store.

    A throttled request halves the limit, unless it was in flight when the limit was last halved. As many successes as
    the limit raise it by one.
    """

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self._most = self._limit = most
        self._in_flight = self._successes = self._halvings = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """Requests that may be in flight by now."""
        return self._limit

    @contextlib.contextmanager
    def passing(self) -> Iterator[int]:
        """Wait until a request may begin; yields what `slow_down` wants to know of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight < self._limit)
            self._in_flight += 1
            halvings = self._halvings
        try:
            yield halvings
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify()

    def slow_down(self, halvings: int) -> None:
        """Note that the store refused a request because there were too many."""
        with self._changed:
            if halvings == self._halvings:
                self._halvings += 1
                self._limit = max(1, self._limit // 2)
                self._successes = 0

    def succeed(self) -> None:
        """Note that the store answered a request."""
        with self._changed:
            self._successes += 1
            if self._limit < self._most and self._successes >= self._limit:
                self._successes = 0
                self._limit += 1
                self._changed.notify()


_gates: dict[str, Gate] = {}
_lock = threading.Lock()


def gate_of(url: ObjectUrl) -> Gate:
    """Return the gate of the bucket or server of an address in this process."""
    with _lock:
        store = f"{url.scheme}://{url.bucket} {url.access.endpoint_url or ''}"
        return _gates.setdefault(store, Gate())


def _forget() -> None:
    """Begin anew in a forked process, in which the threads that were passing do not exist."""
    global _lock
    _lock = threading.Lock()
    _gates.clear()


os.register_at_fork(after_in_child=_forget)


# Compute slots: threads of one process share the CPUs. A task releases its slot during I/O on a store; other executors
# have no slots.

_thread = threading.local()

Answer = TypeVar("Answer")


class Slots:
    """A fair semaphore: tasks that return from I/O come first, then new tasks, each in order."""

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number
        self._returning: deque[threading.Lock] = deque()
        self._new: deque[threading.Lock] = deque()

    def take(self, *, returning: bool = False) -> None:
        """Acquire a slot."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            (self._returning if returning else self._new).append(turn)
        turn.acquire()

    def give(self) -> None:
        """Release a slot."""
        with self._lock:
            waiting = self._returning or self._new
            if waiting:
                waiting.popleft().release()
            else:
                self._free += 1


@contextlib.contextmanager
def hold_slot(slots: Slots) -> Iterator[None]:
    """Hold a slot for the block, except during I/O on a store, or until the task leaves it."""
    slots.take()
    _thread.slots = slots
    try:
        yield
    finally:
        leave_slot()


def leave_slot() -> None:
    """Release the worker slot for the rest of a task, which hardly computes any more."""
    slots: Slots | None = getattr(_thread, "slots", None)
    _thread.slots = None
    if slots is not None:
        slots.give()


@contextlib.contextmanager
def release_slot() -> Iterator[None]:
    """Release the worker slot during I/O."""
    slots: Slots | None = getattr(_thread, "slots", None)
    if slots is None:
        yield
        return
    slots.give()
    try:
        yield
    finally:
        slots.take(returning=True)


def result_of(future: Future[Answer]) -> Answer:
    """Wait for a request with the slot released.

    Raises:
        BaseException: What the request raised.
    """
    if not future.done():
        with release_slot():
            return future.result()
    return future.result()


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_METADATA = ("169.254.169.254", "metadata.google.internal", "169.254.170.2", "169.254.170.23")
_THROTTLE_STATUSES = {429, 503}
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
"""Error code → remedy."""
WRONG_SERVER = "check --endpoint-url: a store's web console has another address than the store"

RetryClass = Literal["fatal", "transient", "throttled", "unreachable"]
"""Retry class: fatal, transient, throttled or unreachable."""


Describe: TypeAlias = "Callable[[ObjectUrl, Exception], tuple[DsindexError, RetryClass]]"
"""Describes an exception of a library, with its retry class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Retry limits and delays."""

    attempts: int = 8
    first_pause: float = 0.2
    """Seconds; each further pause is twice as long."""
    longest_pause: float = 10.0
    unreachable_attempts: int = 3
    """Attempts while the server cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Request counters of a process."""

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
            process=self.process, **{name: getattr(self, name) - getattr(earlier, name) for name in _COUNTED}
        )


_COUNTED = ("gets", "lists", "puts", "retries", "received_bytes", "sent_bytes")
_own: RequestCounts
_counting: threading.Lock
_others: dict[str, RequestCounts] = {}
"""Other process → its counts, as it reported them last."""


def _count_anew() -> None:
    """Count from 0 in a forked process, in which the lock may have been held."""
    global _own, _counting
    _own, _counting = RequestCounts(process=uuid.uuid4().hex[:16]), threading.Lock()


_count_anew()
os.register_at_fork(after_in_child=_count_anew)


def count_requests(**counts: int) -> None:
    """Add requests to the counts of this process, by the fields of RequestCounts."""
    global _own
    with _counting:
        _own = replace(_own, **{name: getattr(_own, name) + number for name, number in counts.items()})


def request_counts() -> RequestCounts:
    """Return the counts of this process."""
    return _own


def requests_so_far(*places: str) -> RequestCounts | None:
    """Return the requests of this process so far if a task reads or writes objects; None if all places are local."""
    return request_counts() if any(map(is_url, places)) else None


def note_requests(counts: RequestCounts | None) -> None:
    """Remember what another process has counted so far; reports may be late and repeated."""
    if counts is not None and counts.process != _own.process:
        known = _others.get(counts.process)
        if known is None or counts.gets + counts.lists + counts.puts > known.gets + known.lists + known.puts:
            _others[counts.process] = counts


def all_requests() -> RequestCounts:
    """Return the counts of this process and of those that it knows of."""
    known = [_own, *_others.values()]
    return RequestCounts(
        process=_own.process, **{name: sum(getattr(counts, name) for counts in known) for name in _COUNTED}
    )


class EmptyRangeError(StoreError):
    """A range begins behind the end of an object."""


class RefusedRedirectError(Exception):
    """The host that a server redirects to, its first argument, refuses a request: the second says how."""


class ChangedObjectError(InputError):
    """An object is not the one that was looked at."""


def retry(
    url: ObjectUrl,
    request: Callable[[], Answer],
    *,
    describe: Describe | None = None,
    backoff: Backoff | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
) -> Answer:
    """Make a request, again and again after pauses as long as the failure may pass.

    Args:
        url: What is asked for, for messages; all requests to its store share one gate.
        request: Makes the request.
        describe: Returns an error of `request` as a sentence, and whether it may pass; None for errors of obstore.
        backoff: How long to go on.
        is_given_up: Tells whether nobody waits for the answer any more.

    Raises:
        DsindexError: If the request is refused, or fails for too long; the latter is transient.
    """
    backoff = backoff or Backoff()
    pause = backoff.first_pause
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
            failure, retry_class = (describe or _describe)(url, error)
            if retry_class == "throttled":
                gate.slow_down(halvings)
            unreachable = unreachable + 1 if retry_class == "unreachable" else 0
        else:
            gate.succeed()
            return answer
        is_over = attempt >= backoff.attempts or unreachable >= backoff.unreachable_attempts
        if retry_class == "fatal" or is_over or is_given_up():
            raise failure from None
        count_requests(retries=1)
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, backoff.longest_pause)


def changed_object(url: str) -> ChangedObjectError:
    """Return the error for an object that is not what was looked at."""
    return ChangedObjectError(
        f"{url}: expected the object that was there when the job was planned, got another; the object was replaced,"
        " run the job again from the start once nothing writes to it"
    )


def _describe(url: ObjectUrl, error: Exception) -> tuple[InputError, RetryClass]:
    """Return a failure to read by obstore as a sentence, and whether it may pass."""
    if isinstance(error, RefusedRedirectError):
        host, answer = error.args
        what = f"{host}, to which its server redirects, answers with {answer}, again and again"
        return _transient(url, what, "let this node's proxy or firewall pass requests to it"), "unreachable"
    text, status = str(error), status_of(error)
    code = match[1] if (match := _CODE.search(text)) else ""
    refusal = _refusal_of_kind(url, type(error).__name__, text)
    if refusal is not None:
        return refusal, "fatal"
    if "kind: Timeout" in text:
        return _transient(url, "the server does not answer in time"), "unreachable"
    if status is None and "kind: Connect" in text:
        return _transient(url, "the server cannot be reached"), "unreachable"
    return describe_answer(url, status, code)


def status_of(error: Exception) -> int | None:
    """Return the status of an HTTP answer that obstore raises; None for other errors."""
    match = _STATUS.search(str(error))
    return None if match is None else int(match[1])


def describe_answer(url: ObjectUrl, status: int | None, code: str) -> tuple[InputError, RetryClass]:
    """Return a failure to read as a sentence, and whether it may pass, by the status and the store's name of it."""
    refusal = _refusal_of_store(url, status, code)
    if refusal is not None:
        return refusal, "fatal"
    answer = " ".join(filter(None, [str(status or ""), code])) or "a broken connection"
    failure = _transient(url, f"the store answers with {answer}, again and again")
    return failure, "throttled" if status in _THROTTLE_STATUSES else "transient"


def _transient(url: ObjectUrl, what: str, remedy: str = "check the network") -> StoreError:
    failure = StoreError(f"{url}: cannot be read ({what}); run the same command again later, or {remedy}")
    failure.transient = True
    return failure


def unusable_key(url: ObjectUrl) -> StoreError:
    """Return the error for objects that no reader can name."""
    return StoreError(f"{url}: expected keys without empty parts, `.` or `..` between slashes; rename the objects")


def no_credentials(url: ObjectUrl) -> StoreError:
    """Return the error for a node without credentials."""
    return StoreError(
        f"{url}: cannot be read (this node has no credentials: neither in the environment nor from a metadata "
        f"server); set them on every node, or {_anonymous(url)} for public data"
    )


def _refusal_of_kind(url: ObjectUrl, kind: str, text: str) -> InputError | None:
    """Return a failure that no further attempt changes, as the library tells it; None for others."""
    if any(server in text for server in _METADATA):
        return no_credentials(url)
    if "CredentialsError" in text:  # of google_store
        return StoreError(f"{url}: cannot be read (Google refuses the credentials of this node); renew them")
    if kind == "NotSupportedError":
        return StoreError(f"{url}: expected a server that sends parts of files, got one that does not; download it")
    if "Received non-partial response" in text:
        remedy = WRONG_SERVER if url.scheme == "s3" else "check the address"
        return StoreError(f"{url}: expected a store that sends parts of objects, got another server; {remedy}")
    if kind in {"ValueError", "InvalidPathError"}:
        return unusable_key(url)
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
        return MissingObjectError(
            f"{url}: cannot be read (no such object; a folder ends in a slash); check the address"
        )
    said = f"{status} {code}".strip()
    remedy = "check the address"
    if status in {401, 403}:
        ended = "check the address, as signed ones end after a while, or download the file"
        remedy = ended if url.is_web else "check what this node's credentials may read"
    return StoreError(f"{url}: cannot be read ({said}); {NODE_REMEDIES.get(code) or remedy}")


def _wrong_region(url: ObjectUrl) -> InputError:
    region = url.access.region
    got = "the default one" if region is None else repr(region)
    return StoreError(f"{url}: expected the region of the bucket, got {got}; name its region with --region")


def _anonymous(url: ObjectUrl) -> str:
    return {"s3": "AWS_SKIP_SIGNATURE=true", "gs": "GOOGLE_SKIP_SIGNATURE=true"}.get(
        url.scheme, "AZURE_SKIP_SIGNATURE=true"
    )


def describe_requests(requests: RequestCounts) -> list[str]:
    """Return what was asked of object stores; nothing if that is nothing.

    >>> from dsindex.store.requests import RequestCounts
    >>> describe_requests(RequestCounts(process="", gets=312, lists=2, received_bytes=1_200_000_000))
    ['objects: 312 GETs, 2 LISTs, 1,200.0 MB read']
    """
    if not (requests.gets or requests.lists or requests.puts):
        return []
    asked = [(requests.gets, "GET"), (requests.lists, "LIST"), (requests.puts, "PUT")]
    moved = [(requests.received_bytes, "read"), (requests.sent_bytes, "written")]
    told = [count(number, name) for number, name in asked if number]
    told += [f"{format_size(size_bytes)} {what}" for size_bytes, what in moved if size_bytes]
    told += [count(requests.retries, "repetition")] if requests.retries else []
    return ["objects: " + ", ".join(told)]


# Threads that fetch ranges of objects while their readers compute.
#
# They are daemons: a process that ends does not wait for a slow store.


MOST_THREADS = 64
"""Maximum requests in flight per process."""


class _Fetchers:
    """A thread pool that grows when no thread is idle."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._open = 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._open += 1
            is_wanted = self._open > self._threads and self._threads < MOST_THREADS
            if is_wanted:
                self._threads += 1
                number = self._threads
        self._requests.put((future, function))
        if is_wanted:
            threading.Thread(target=self._work, name=f"dsindex-fetch-{number}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, function = self._requests.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
                    future.set_exception(error)
            del future, function
            with self._lock:
                self._open -= 1


_fetchers = _Fetchers()


def _start_anew() -> None:
    """Reset after a fork: threads do not survive it."""
    global _fetchers
    _fetchers = _Fetchers()


os.register_at_fork(after_in_child=_start_anew)


def fetch_later(function: Callable[[], Any]) -> Future[Any]:
    """Submit a function to the pool."""
    return _fetchers.submit(function)


def fetch_all(function: Callable[[Any], Answer], items: Iterable[Any], *, places: Iterable[str]) -> list[Answer]:
    """Call a function for each item: at once if any of the places is an object, in turn if all are files."""
    if not any(map(is_url, places)):
        return list(map(function, items))
    answers = [fetch_later(partial(function, item)) for item in items]
    try:
        return [answer.result() for answer in answers]
    finally:
        for answer in answers:
            answer.cancel()
