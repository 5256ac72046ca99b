"""The token of a Ray cluster: found where Ray looks for it, fit to be sent, and never part of a message."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from dsindex.errors import DsindexError

_SENDABLE = re.compile(r"[\x21-\x7e]+")
"""What a header of HTTP or gRPC carries as it is."""
_SHORTEST_HIDDEN = 4
"""A shorter one would be found in half of all words."""


_seen: set[str] = set()
"""Every token that this process found, to be kept out of messages."""


class TokenError(DsindexError):
    """The cluster's token is missing, or cannot be sent."""


def read_token() -> str | None:
    """Find the cluster's token where Ray looks for it, without Ray's habit of keeping it from being sent.

    Ray sends a token only under RAY_AUTH_MODE=token; here a token in the environment is enough. The one in the home
    folder is sent only under that mode, since it may belong to another cluster.

    Raises:
        TokenError: If there is none where the environment says there is one, or if it cannot be sent.
    """
    found = _find_token()
    if found is None:
        return None
    token, place = found
    if not token:
        msg = (
            f"{place}: expected the cluster's token, it is missing or empty; set RAY_AUTH_TOKEN or "
            f"RAY_AUTH_TOKEN_PATH=FILE"
        )
        raise TokenError(msg)
    if not _SENDABLE.fullmatch(token):
        msg = (
            f"{place}: expected the cluster's token, got one with a space, a line break or a letter outside ASCII, "
            f"which no request can carry; set it to what the cluster's head was started with"
        )
        raise TokenError(msg)
    return token


def check_token() -> None:
    """Refuse a token that Ray itself would send and cannot: its library then aborts the whole process.

    Raises:
        TokenError: If there is such a token; where there is none, Ray says so, or makes one.
    """
    found = _find_token()
    if found is not None and found[0] and _mode() == "token":
        read_token()


def hide_token(text: str) -> str:
    """Return a text without the cluster's token, however it got there."""
    tokens = _seen | {os.environ.get("RAY_AUTH_TOKEN", "").strip()}
    spellings = {spelling for token in tokens for spelling in (token, repr(token)[1:-1], ascii(token)[1:-1])}
    for spelling in sorted(spellings, key=len, reverse=True):
        if len(spelling) >= _SHORTEST_HIDDEN:
            text = text.replace(spelling, "<token>")
    return text


def _find_token() -> tuple[str, str] | None:
    """Return the token, empty where it is missing, and the name of the place where it should be."""
    mode = _mode()
    if mode not in {"", "token"}:
        return None
    token, place = os.environ.get("RAY_AUTH_TOKEN", "").strip(), "RAY_AUTH_TOKEN"
    if not token:
        path = os.environ.get("RAY_AUTH_TOKEN_PATH") or (Path.home() / ".ray" / "auth_token" if mode else None)
        if path is None:
            return None
        place = str(path)
        with contextlib.suppress(OSError):
            token = Path(path).expanduser().read_bytes().decode("utf-8", "surrogateescape").strip()
    _seen.add(token)
    return token, place


def _mode() -> str:
    return os.environ.get("RAY_AUTH_MODE", "").lower()
