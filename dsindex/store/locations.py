"""Paths and addresses that are safe to show: without passwords and signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.messages import URL, without_credentials

if TYPE_CHECKING:
    from typing import Self


class Location(str):
    """A path, or an address without user information and query; `raw` is the original text.

    >>> place = Location("https://me:pw@host/a.jsonl?sig=9f86d0")
    >>> place, place.raw
    ('https://host/a.jsonl', 'https://me:pw@host/a.jsonl?sig=9f86d0')
    """

    __slots__ = ("raw",)

    raw: str

    def __new__(cls, text: str) -> Self:
        """Keep a text, and what of it may be shown."""
        url = URL.match(text)
        self = super().__new__(cls, text if url is None else without_credentials(url[1], text[url.end() :]))
        self.raw = getattr(text, "raw", text)
        return self

    def __str__(self) -> str:
        return str.__str__(self[:])
