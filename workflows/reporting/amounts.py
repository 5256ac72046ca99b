"""How a report writes numbers."""

from __future__ import annotations


def number(value: int) -> str:
    """Return an integer with separators.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def short(value: float) -> str:
    """Return a number of at most four digits with a unit.

    >>> short(999), short(1_102_275), short(12_345), short(3.2e9)
    ('999', '1.1 M', '12.3 k', '3.2 G')
    """
    for unit in ("", " k", " M", " G"):
        if abs(value) < 999.5:
            return f"{value:,.0f}" if not unit else f"{value:,.1f}{unit}"
        value /= 1000
    return f"{value:,.1f} T"


def size(size_bytes: int) -> str:
    """Return a size.

    >>> size(999), size(7_300_000)
    ('999 B', '7.3 MB')
    """
    text = short(size_bytes)
    return f"{text}B" if " " in text else f"{text} B"


def percent(part: float, total: float) -> str:
    """Return a share; it is 0% or 100% only if it is none or all.

    >>> percent(1, 3), percent(0, 3), percent(1, 1_000_000), percent(999_999, 1_000_000), percent(3, 3), percent(0, 0)
    ('33.3%', '0%', '<0.1%', '>99.9%', '100%', '-')
    """
    if not total:
        return "-"
    share = part / total
    if share in (0, 1):
        return f"{share:.0%}"
    return "<0.1%" if share < 0.0005 else ">99.9%" if share > 0.9995 else f"{share:.1%}"


def seconds(value: float) -> str:
    """Return a duration.

    >>> seconds(0.34), seconds(75), seconds(7260)
    ('0.3 s', '1 min 15 s', '2 h 1 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
