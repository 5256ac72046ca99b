"""Formatting for messages and options: names, values, sizes, counts, and addresses without secrets."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BUCKET_SCHEMES = ("s3", "gs", "az", "hf")
WEB_SCHEMES = ("https", "http")
OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}
"""Alternative scheme → scheme."""
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
"""Matches the start of an address."""
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,20}"  # bounded, so that matching takes linear time
_IN_TEXT = re.compile(rf"({_SCHEME})://(\S+?)(?=\s|$|{_SCHEME}://)")
_QUERY = re.compile(r"[?#]")
_QUERY_OF_KEY = re.compile(r"\?(?=[^?]*(?:sig|token|secret|passw|key|credential)[\w.-]*=)", re.IGNORECASE)
"""Start of a query with a secret in a bucket address. Object names and patterns may contain other question marks."""
_END_OF_CLAUSE = re.compile(r"[:;,.)\]}'\"…]*$")
LONGEST_VALUE = 80
"""A message shows at most this many characters of a value."""
# Control characters, lone surrogates, line separators, bidirectional controls, zero-width characters and tags.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
"""Lower-case unit → factor."""
_AMOUNT = re.compile(
    r"\s*(\d{1,25}(?:_\d{1,25}){0,8}(?:\.\d{1,25})?|\.\d{1,25})\s*(.*?)\s*", flags=re.ASCII | re.DOTALL
)
"""The number of digits is bounded, so that parsing is always cheap."""


def split_unit(text: str) -> tuple[Fraction | None, str]:
    """Split an amount into its number and its lower-case unit; without a number, return None and the text.

    >>> split_unit("1.5 GB"), split_unit("40%"), split_unit("-3")
    ((Fraction(3, 2), 'gb'), (Fraction(40, 1), '%'), (None, '-3'))
    """
    match = _AMOUNT.fullmatch(text)
    return (None, text) if match is None else (Fraction(match[1]), match[2].lower())


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> count(1, "shard"), count(1200, "document"), count(0, "line")
    ('1 shard', '1,200 documents', '0 lines')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_size(size_bytes: float) -> str:
    """Return a size in a suitable unit.

    >>> format_size(17), format_size(3400), format_size(7_300_000), format_size(2.5e13)
    ('17 B', '3.4 kB', '7.3 MB', '25.0 TB')
    """
    return _scale_value(size_bytes, ("B", "kB", "MB", "GB", "TB"))


def short_number(value: float) -> str:
    """Return a number with at most four digits and a unit.

    >>> short_number(999), short_number(1_102_275), short_number(12_345), short_number(3.2e9)
    ('999', '1.1 M', '12.3 k', '3.2 B')
    """
    return _scale_value(value, ("", "k", "M", "B", "T")).rstrip()


def _scale_value(value: float, units: Sequence[str]) -> str:
    if abs(value) < 999.5:
        return f"{value:,.0f} {units[0]}"
    *inner_units, last_unit = units[1:]
    for unit in inner_units:
        value /= 1000
        if abs(value) < 999.95:
            return f"{value:,.1f} {unit}"
    return f"{value / 1000:,.1f} {last_unit}"


def show_percent(share: Fraction | float) -> str:
    """Format a share in percent: with up to two decimals, or three significant digits below 1 %.

    >>> show_percent(0.4), show_percent(1 / 3), show_percent(0.00012345)
    ('40%', '33.33%', '0.0123%')
    """
    percent = float(share) * 100
    if percent >= 1 or percent == 0:
        return f"{percent:.2f}".rstrip("0").rstrip(".") + "%"
    return f"{percent:.3g}%"


def show_epochs(epochs: float) -> str:
    """Format a number of epochs: with four significant digits, or whole from 1,000 on.

    >>> show_epochs(2.5), show_epochs(1234.5)
    ('2.5', '1,234')
    """
    return f"{epochs:,.0f}" if epochs >= 1000 else f"{epochs:.4g}"


def remove_secrets(text: str) -> str:
    """Remove user information and queries from all addresses in a text.

    >>> remove_secrets("got https://me:pw@host/a.jsonl?sig=9f86d0, not s3://bucket/part-?.jsonl")
    'got https://host/a.jsonl, not s3://bucket/part-?.jsonl'
    """
    if "://" not in text:
        return text
    return _IN_TEXT.sub(lambda match: remove_credentials(match[1], match[2], end=_END_OF_CLAUSE.search(match[2])), text)


def remove_credentials(scheme: str, rest: str, *, end: re.Match[str] | None = None) -> str:
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


def show_name(name: str) -> str:
    r"""Return a name on one line, with control characters escaped.

    >>> print(show_name("naïve\n\x1b[2J\udcff.jsonl"))
    naïve\n\x1b[2J\udcff.jsonl
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), name)


def show_value(value: object) -> str:
    """Return the repr of a value on one line, without secrets, shortened if it is long."""
    shown = show_name(remove_secrets(repr(value)))
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}…"
