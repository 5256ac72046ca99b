"""The token of a Ray cluster: read from where Ray reads it, checked before it is sent, and hidden in messages."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from dsindex.errors import DsindexError

_SENDABLE = re.compile(r"[\x21-\x7e]+")
"""Characters that a header of HTTP or gRPC can carry."""
_SHORTEST_HIDDEN = 4
"""The shortest token that is hidden; shorter ones occur in ordinary words."""


_seen: set[str] = set()
"""Every token that this process has read, to be hidden in messages."""


class TokenError(DsindexError):
    """The cluster's token is missing, or cannot be sent."""


def read_token() -> str | None:
    """Return the cluster's token from where Ray reads it, or None.

    Ray sends a token only under RAY_AUTH_MODE=token; here a token in the environment is enough. The one in the home
    folder is read only under that mode, since it may belong to another cluster.

    Raises:
        TokenError: If the environment announces a token that is missing, or that cannot be sent.
    """
    found = _find_token()
    if found is None:
        return None
    token, place = found
    if not token:
        msg = (
            f"{place}: expected the cluster's token, got none or an empty one; set RAY_AUTH_TOKEN or "
            f"RAY_AUTH_TOKEN_PATH=FILE"
        )
        raise TokenError(msg)
    if not _SENDABLE.fullmatch(token):
        msg = (
            f"{place}: expected the cluster's token, got one with a space, a line break or a character outside ASCII, "
            f"which no request can carry; set it to the token that the cluster's head was started with"
        )
        raise TokenError(msg)
    return token


def check_token() -> None:
    """Refuse a token that Ray would try to send but cannot, since its library would abort the whole process.

    Raises:
        TokenError: If there is such a token. A missing one is left to Ray, which reports or creates it.
    """
    found = _find_token()
    if found is not None and found[0] and _mode() == "token":
        read_token()


def hide_token(text: str) -> str:
    """Return a text with the cluster's token replaced by `<token>`."""
    tokens = _seen | {os.environ.get("RAY_AUTH_TOKEN", "").strip()}
    spellings = {spelling for token in tokens for spelling in (token, repr(token)[1:-1], ascii(token)[1:-1])}
    for spelling in sorted(spellings, key=len, reverse=True):
        if len(spelling) >= _SHORTEST_HIDDEN:
            text = text.replace(spelling, "<token>")
    return text


def _find_token() -> tuple[str, str] | None:
    """Return the token, empty if it is missing, and the name of its variable or file."""
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
