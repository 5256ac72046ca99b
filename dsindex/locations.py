"""Paths and addresses as they may be shown: without passwords and signatures, whoever wrote them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

BUCKET_SCHEMES = ("s3", "gs", "az", "hf")
WEB_SCHEMES = ("https", "http")
OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}
"""Other names of the schemes of buckets."""
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
"""The beginning of an address."""
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,20}"  # bounded, so that the time is linear in a text's length
_IN_TEXT = re.compile(rf"({_SCHEME})://(\S+?)(?=\s|$|{_SCHEME}://)")
_QUERY = re.compile(r"[?#]")
_QUERY_OF_KEY = re.compile(r"\?(?=[^?]*(?:sig|token|secret|passw|key|credential)[\w.-]*=)", re.IGNORECASE)
"""Where a query begins in the address of a bucket, whose keys and patterns may have question marks."""
_END_OF_CLAUSE = re.compile(r"[:;,.)\]}'\"…]*$")


def without_secrets(text: str) -> str:
    """Return a text in which every address is shown without user information and query.

    >>> without_secrets("got https://me:pw@host/a.jsonl?sig=9f86d0, not s3://bucket/part-?.jsonl")
    'got https://host/a.jsonl, not s3://bucket/part-?.jsonl'
    """
    if "://" not in text:
        return text
    return _IN_TEXT.sub(lambda found: _shown(found[1], found[2], end=_END_OF_CLAUSE.search(found[2])), text)


def _shown(scheme: str, rest: str, *, end: re.Match[str] | None = None) -> str:
    """Return an address without user information and query, but with the punctuation that follows it."""
    server, _, path = rest.partition("/")
    port = re.fullmatch(r"[^[]*:(.*)", server)
    if "@" in server:
        rest = rest[server.rindex("@") + 1 :]
    elif port and not port[1].isdigit() and "@" in path:  # the password has a slash
        rest = rest.rpartition("@")[2]
    is_bucket = OTHER_NAMES.get(scheme.lower(), scheme.lower()) in BUCKET_SCHEMES
    query = (_QUERY_OF_KEY if is_bucket else _QUERY).search(rest)
    if query is not None:
        rest = rest[: query.start()] + (end[0] if end is not None else "")
    return f"{scheme}://{rest}"


class Location(str):
    """A path, or an address without user information and query, which may be shown; `raw` is the text that was given.

    >>> place = Location("https://me:pw@host/a.jsonl?sig=9f86d0")
    >>> place, place.raw
    ('https://host/a.jsonl', 'https://me:pw@host/a.jsonl?sig=9f86d0')
    """

    __slots__ = ("raw",)

    raw: str

    def __new__(cls, text: str) -> Self:
        """Keep a text, and what of it may be shown."""
        url = URL.match(text)
        self = super().__new__(cls, text if url is None else _shown(url[1], text[url.end() :]))
        self.raw = getattr(text, "raw", text)
        return self

    def __str__(self) -> str:
        return str.__str__(self[:])
