"""Requests of forked processes, made by a fresh process.

The library that makes requests runs threads, which a forked process does not have: there, its requests would never end,
and would disturb those of the parent. torch's DataLoader forks its workers, so each of them starts a process of its own
(`relay_process.py`) when it first needs an object, and the two talk through pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.objects import requests

if TYPE_CHECKING:
    from dsindex.objects.urls import ObjectUrl

_ERRORS: dict[str, type[InputError]] = {
    kind.__name__: kind
    for kind in (InputError, requests.StoreError, requests.MissingObjectError, requests.EmptyRangeError)
} | {requests.ChangedObjectError.__name__: requests.ChangedObjectError}

_PROCESSES = 3
"""So many processes are tried for a request: whatever ends one, such as a lack of memory, may end the next."""


class _LostError(Exception):
    """The process has ended before it answered."""


class _Relay:
    """A process that makes requests, and the answers that it owes."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "dsindex.objects.relay_process"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._lock = threading.Lock()
        self._owed: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._number = 0
        self.has_ended = False
        """Whether it answers no more."""
        threading.Thread(target=self._receive, name="dsindex-relay", daemon=True).start()

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a request: its head and its content.

        Raises:
            _LostError: If there is none.
            InputError: If the object cannot be read.
        """
        future: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._lock:
            if self.has_ended:
                raise _LostError
            self._number += 1
            self._owed[self._number] = future
            line = json.dumps({**request, "id": self._number}).encode() + b"\n"
            stdin = self._process.stdin
            with contextlib.suppress(BrokenPipeError):  # then the receiver ends what is owed
                if stdin is not None:
                    stdin.write(line)
                    stdin.flush()
        head, content = future.result()
        if "lost" in head:
            raise _LostError
        if "error" in head:
            error = _ERRORS.get(head["error"], InputError)(head["message"])
            error.transient = head["transient"]
            raise error
        return head, content

    def _receive(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError):  # what cannot be understood ends it, too
            while self._receive_answer():
                pass
        with self._lock:
            self.has_ended = True
            owed, self._owed = self._owed, {}
        self._process.kill()
        self._process.wait()
        for future in owed.values():
            future.set_result(({"lost": True}, b""))

    def _receive_answer(self) -> bool:
        """Hand an answer to whoever asked; False where there are no more."""
        stdout = self._process.stdout
        line = b"" if stdout is None else stdout.readline()
        if stdout is None or not line.endswith(b"\n"):
            return False
        head = json.loads(line)
        content = stdout.read(head["size"])
        if len(content) < head["size"]:
            return False
        with self._lock:
            future = self._owed.pop(head["id"])
        future.set_result((head, content))
        return True


_relay: _Relay | None = None
_lock = threading.Lock()


def _forget() -> None:
    """Begin anew in a forked process, whose parent's process answers to its parent only."""
    global _relay, _lock
    _relay, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def get_by_relay(url: ObjectUrl, begin: int, end: int, if_match: str | None) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes [begin, end) of an object, and what its store says of it, as obstore would.

    Raises:
        InputError: If it cannot be read.
    """
    head, content = _ask({**_address(url), "begin": begin, "end": end, "if_match": if_match})
    requests.count_requests(gets=1, received_bytes=len(content))
    return content, _parse_entry(head["meta"])


def list_by_relay(url: ObjectUrl, *, recursive: bool) -> list[dict[str, Any]]:
    """Return the objects below a folder, as obstore would.

    Raises:
        InputError: If it cannot be listed.
    """
    _, content = _ask({**_address(url), "recursive": recursive})
    requests.count_requests(lists=1)
    return [_parse_entry(entry) for entry in json.loads(content)]


def _ask(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    global _relay
    for _ in range(_PROCESSES):
        with _lock:
            if _relay is None or _relay.has_ended:
                _relay = _Relay()
            relay = _relay
        with contextlib.suppress(_LostError):
            return relay.ask(request)
    error = InputError(f"{request['url']}: cannot be read (the process that reads for a forked one ends); try again")
    error.transient = True
    raise error


def _address(url: ObjectUrl) -> dict[str, Any]:
    return {"url": str(url), "query": url.query, "endpoint_url": url.access.endpoint_url, "region": url.access.region}


def _parse_entry(entry: dict[str, Any]) -> dict[str, Any]:
    modified = entry["last_modified"]
    return {**entry, "last_modified": None if modified is None else datetime.fromisoformat(modified)}
