"""How messages write numbers of things, sizes and speeds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from fractions import Fraction


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if there is not exactly one.

    >>> count(1, "shard"), count(1200, "document"), count(0, "line")
    ('1 shard', '1,200 documents', '0 lines')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def align(rows: Iterable[Sequence[str]], *, texts: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table: columns of texts to the left, and others, of numbers, to the right.

    >>> align([("name", "size"), ("a", "12,345")])
    ['name    size', 'a     12,345']
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def short_number(value: float) -> str:
    """Return a number of at most four digits with a unit.

    >>> short_number(999), short_number(1_102_275), short_number(12_345), short_number(3.2e9)
    ('999', '1.1 M', '12.3 k', '3.2 B')
    """
    for unit in ("", " k", " M", " B"):
        if abs(value) < 999.5:
            return f"{value:,.0f}" if not unit else f"{value:,.1f}{unit}"
        value /= 1000
    return f"{value:,.1f} T"


def shorten(name: str, length: int) -> str:
    """Return a name with its middle left out if it is long.

    >>> shorten("data/corpus/part-0001.jsonl", 15)
    'data/co…1.jsonl'
    """
    if len(name) <= length:
        return name
    end = length // 2
    return f"{name[: length - end - 1]}…{name[-end:]}"


def split_names(prefixes: Sequence[str]) -> tuple[str, list[str], str]:
    """Return what paths begin and end with in common, as far as whole parts of names go, and the rest of each.

    >>> split_names(["data/web_text_document", "data/books_text_document"])
    ('data/', ['web', 'books'], '_text_document')
    >>> split_names(["web", "books"])
    ('', ['web', 'books'], '')
    """
    if len(prefixes) < 2:
        return "", list(prefixes), ""
    same = sum(1 for _ in itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*prefixes, strict=False)))
    begin = prefixes[0][: prefixes[0].rfind("/", 0, same) + 1]
    ends = zip(*(prefix[len(begin) :][::-1] for prefix in prefixes), strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda letters: len(set(letters)) == 1, ends))
    place = prefixes[0].find("_", len(prefixes[0]) - same)
    end = prefixes[0][place:] if place >= 0 and same else ""
    names = [prefix[len(begin) : len(prefix) - len(end)] for prefix in prefixes]
    return (begin, names, end) if all(names) else ("", list(prefixes), "")


def format_size(size_bytes: float) -> str:
    """Return a size in the unit that suits it.

    >>> format_size(17), format_size(3400), format_size(7_300_000), format_size(2.5e13)
    ('17 B', '3.4 kB', '7.3 MB', '25.0 TB')
    """
    if size_bytes < 999.5:
        return f"{size_bytes:,.0f} B"
    for unit in ("kB", "MB", "GB"):
        size_bytes /= 1000
        if size_bytes < 999.95:
            return f"{size_bytes:,.1f} {unit}"
    return f"{size_bytes / 1000:,.1f} TB"


def format_room(needed_bytes: float, free_bytes: float) -> tuple[str, str]:
    """Return the needed and the free space on a disk in the largest unit that shows a difference.

    >>> format_room(2e9, 15e8), format_room(10_400_000, 10_350_000), format_room(4097, 4096)
    (('2.00 GB', '1.50 GB'), ('10.40 MB', '10.35 MB'), ('4,097 B', '4,096 B'))
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        needed, free = (f"{size_bytes / scale:,.2f} {unit}" for size_bytes in (needed_bytes, free_bytes))
        if needed != free and max(needed_bytes, free_bytes) >= scale:
            return needed, free
    return f"{needed_bytes:,.0f} B", f"{free_bytes:,.0f} B"


def format_speed(bytes_per_second: float) -> str:
    """Return a speed with about three digits.

    >>> format_speed(40.2), format_speed(61_000), format_speed(10_300_000), format_speed(2.5e9)
    ('40 B/s', '61 kB/s', '10.3 MB/s', '2.50 GB/s')
    """
    if bytes_per_second < 999.5:
        return f"{bytes_per_second:.0f} B/s"
    if bytes_per_second < 999.5e3:
        return f"{bytes_per_second / 1e3:.3g} kB/s"
    return f"{bytes_per_second / 1e6:.3g} MB/s" if bytes_per_second < 999.5e6 else f"{bytes_per_second / 1e9:,.2f} GB/s"


def format_token_speed(tokens_per_second: float) -> str:
    """Return the speed of an encoder with about three digits.

    >>> format_token_speed(146.2), format_token_speed(14_600), format_token_speed(3_250_000)
    ('146 tokens/s', '14.6 k tokens/s', '3.25 M tokens/s')
    """
    if tokens_per_second < 999.5:
        return f"{tokens_per_second:.0f} tokens/s"
    if tokens_per_second < 999.5e3:
        return f"{tokens_per_second / 1e3:.3g} k tokens/s"
    return f"{tokens_per_second / 1e6:,.3g} M tokens/s"


def show_percent(share: Fraction | float) -> str:
    """Return a share in percent, with at least three digits if it is small.

    >>> show_percent(0.4), show_percent(1 / 3), show_percent(0.00012345)
    ('40%', '33.33%', '0.0123%')
    """
    percent = float(share) * 100
    if percent >= 1 or percent == 0:
        return f"{percent:.2f}".rstrip("0").rstrip(".") + "%"
    return f"{percent:.3g}%"


def show_epochs(epochs: float) -> str:
    """Return a number of epochs with four digits, or as many as it has before the point.

    >>> show_epochs(0.86556), show_epochs(2), show_epochs(41775.46)
    ('0.8656', '2', '41,775')
    """
    return f"{epochs:,.0f}" if epochs >= 1000 else f"{epochs:.4g}"
