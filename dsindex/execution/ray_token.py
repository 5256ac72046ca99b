"""The token of a Ray cluster: found where Ray keeps it, checked before it is sent, and hidden in messages.

Ray sends a token only under RAY_AUTH_MODE=token. Its head wants one as soon as `~/.ray/auth_token` exists, so here a
token that is there is used, whichever command looks for a cluster; a cluster without authentication ignores it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from dsindex.errors import DsindexError
from dsindex.locations import without_secrets
from dsindex.store.storage import open_file

HOME_FILE = "~/.ray/auth_token"
VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""The environment variables by which Ray finds a token."""

_SENDABLE = re.compile(r"[\x21-\x7e]+")
"""Characters that a header of HTTP or gRPC can carry."""
_SHORTEST_HIDDEN = 4
"""The shortest token that is hidden; shorter ones occur in ordinary words."""
_LONGEST = 64 << 10
"""The largest number of bytes that is read from a token's file."""

_seen: set[str] = set()
"""Every token that this process has read, to be hidden in messages."""


class TokenError(DsindexError):
    """The cluster's token is missing, cannot be sent, or is not the cluster's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A cluster's token."""

    value: str = field(repr=False)
    place: str
    """RAY_AUTH_TOKEN, or the file that it was read from."""


def find_token() -> Token | None:
    """Return the token in RAY_AUTH_TOKEN, in the file RAY_AUTH_TOKEN_PATH, or in the home folder, in this order.

    Returns:
        None if there is none, or RAY_AUTH_MODE turns authentication off.

    Raises:
        TokenError: If the environment announces a token that is missing, or the token cannot be sent.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    if mode not in {"", "token"}:
        return None
    token = _announced() or _at_home(is_required=mode == "token")
    if token is None:
        return None
    _seen.add(token.value)
    if not _SENDABLE.fullmatch(token.value):
        raise TokenError(
            f"{token.place}: expected the cluster's token, got one with a space, a line break or a character outside "
            f"ASCII, which no request can carry; set it to the token that the cluster's head was started with"
        )
    return token


def refusal(address: str, token: Token | None) -> str:
    """Return the sentence for a cluster that refuses access: it wants a token, or another one."""
    if token is not None:
        problem, remedy = f"does not accept the token in {token.place}", "set RAY_AUTH_TOKEN"
    elif os.environ.get("RAY_AUTH_MODE"):
        problem, remedy = "asks for its token", f"set RAY_AUTH_MODE=token (it is {os.environ['RAY_AUTH_MODE']}) and"
        remedy += " RAY_AUTH_TOKEN"
    else:
        problem, remedy = "asks for its token", "set RAY_AUTH_TOKEN"
    return (
        f"{address}: the cluster {problem}; {remedy}, or RAY_AUTH_TOKEN_PATH=FILE, to the token that its head was "
        f"started with, usually {HOME_FILE} there"
    )


def hide_secrets(text: str) -> str:
    """Return a text with the cluster's token replaced by `<token>`, and addresses without credentials."""
    tokens = _seen | {os.environ.get("RAY_AUTH_TOKEN", "").strip()}
    spellings = {spelling for token in tokens for spelling in (token, repr(token)[1:-1], ascii(token)[1:-1])}
    for spelling in sorted(spellings, key=len, reverse=True):
        if len(spelling) >= _SHORTEST_HIDDEN:
            text = text.replace(spelling, "<token>")
    return without_secrets(text)


def _announced() -> Token | None:
    """Return the token that the environment holds, or names the file of."""
    value = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if value:
        return Token(value=value, place="RAY_AUTH_TOKEN")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    if not path:
        return None
    path = os.path.expanduser(path)
    try:
        value = _read(path)
    except OSError as error:
        raise TokenError(
            f"RAY_AUTH_TOKEN_PATH: {path}: cannot be read ({error.strerror}); set it to the file with the cluster's "
            f"token, or unset it"
        ) from error
    if not value:
        msg = f"RAY_AUTH_TOKEN_PATH: {path}: expected the cluster's token, got an empty file; name another, or unset it"
        raise TokenError(msg)
    return Token(value=value, place=path)


def _at_home(*, is_required: bool) -> Token | None:
    path = os.path.expanduser(HOME_FILE)
    try:
        value = _read(path)
    except OSError:
        value = ""
    if value:
        return Token(value=value, place=path)
    if is_required:
        raise TokenError(
            f"{path}: expected the cluster's token, got none or an empty one; set RAY_AUTH_TOKEN or "
            f"RAY_AUTH_TOKEN_PATH=FILE, or unset RAY_AUTH_MODE"
        )
    return None


def _read(path: str) -> str:
    with open_file(path) as file:
        return file.read(_LONGEST).decode("utf-8", "surrogateescape").strip()
