"""The numbers of options that have a form of their own: sizes, shares and steps."""

from __future__ import annotations

import re
from fractions import Fraction

from dsindex.json_text import show_value

MAX_WORKERS = 1 << 20
MAX_DIGITS = 25
"""The most digits before or after the point of a number, so that reading it takes no time."""
MEGATRON_COUNT = 2**31 - 1
"""Megatron's helpers count the epochs of an index, and the tokens of a sample with the extra one, as int32."""

LEAST_PLAIN_BYTES = 64 << 10
"""A smaller size of a shard needs a unit: 64 is likely to mean 64MiB."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(rf"\s*([0-9]{{1,{MAX_DIGITS}}}(?:\.[0-9]{{1,{MAX_DIGITS}}})?)\s*([A-Za-z]*)\s*")


def parse_size(value: object) -> object:
    """Read a size with its unit, in bytes.

    >>> parse_size("64MiB"), parse_size("1.5 GB"), parse_size("9223372036854775807")
    (67108864, 1500000000, 9223372036854775807)
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"expected a size such as 64kB, 64MiB or 1.5GB, got {show_value(value)}")
    whole, _, decimals = match[1].partition(".")
    return int(whole + decimals) * _UNITS[match[2].upper()] // 10 ** len(decimals)


def parse_share(value: object) -> float:
    """Read a share of records.

    >>> parse_share("10%"), parse_share("0.1"), parse_share(1)
    (0.1, 0.1, 1.0)
    """
    text = str(value) if isinstance(value, str | int | float) else ""
    match = re.fullmatch(r"([0-9]{1,25}(?:\.[0-9]{1,400})?(?:e-[0-9]{1,3})?)(%?)", text)
    share = Fraction(0) if match is None else Fraction(match[1]) / (100 if match[2] else 1)
    if share > 1 or float(share) == 0 or isinstance(value, bool):
        raise ValueError(f"expected a share above 0 and of at most 100%, such as 10% or 0.1, got {show_value(value)}")
    return float(share)


def parse_steps(value: object) -> tuple[int, int]:
    """Read a step, or a range of steps that includes its last.

    >>> parse_steps(12), parse_steps("10-19")
    ((12, 12), (10, 19))
    """
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", str(value).strip())
    steps = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if not 1 <= steps[0] <= steps[1]:
        raise ValueError(f"expected a step from 1, or steps such as 10-19, got {show_value(value)}")
    return steps


def parse_shard_size(value: object) -> object:
    """Read the size of a shard, in bytes; a small number in a text without a unit is refused.

    >>> parse_shard_size("64MiB"), parse_shard_size("300B"), parse_shard_size(300)
    (67108864, 300, 300)
    """
    size = parse_size(value)
    is_plain = isinstance(value, str) and not value.strip()[-1:].isalpha()
    if is_plain and isinstance(size, int) and 0 < size < LEAST_PLAIN_BYTES:
        raise ValueError(f"expected a size with a unit, got {value}; say {value}MiB, or {value}B for bytes")
    return size


TOKEN_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
TOKEN_NUMBER = r"(\d{1,25}(?:_\d{1,25}){0,8}(?:\.\d{1,25})?|\.\d{1,25})"


def parse_tokens(value: object) -> object:
    """Read a number of tokens, which may have k, M, B or T after it.

    >>> parse_tokens("300B"), parse_tokens("1.5M"), parse_tokens(2000)
    (300000000000, 1500000, 2000)
    """
    if not isinstance(value, str):
        return value
    found = re.fullmatch(rf"{TOKEN_NUMBER}([kmbt]?)", value.strip(), flags=re.ASCII | re.IGNORECASE)
    tokens = 0 if found is None else int(Fraction(found[1]) * TOKEN_UNITS[found[2].lower()])
    if tokens <= 0:
        raise ValueError(f"expected a positive number of tokens such as 300B, 1.5T or 2000000, got {value!r}")
    return tokens
