"""Parsers for option values: sizes, shares, steps and numbers of tokens."""

from __future__ import annotations

import re

from dsindex.errors import UsageError
from dsindex.messages import THOUSANDS, show_value, split_unit

MEGATRON_COUNT = 2**31 - 1
"""Megatron's helpers count the epochs of an index, and the tokens of a sample with the extra one, as int32."""
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def parse_size(value: object) -> object:
    """Read a size with its unit, in bytes; numbers from Python are bytes.

    >>> parse_size("64MiB"), parse_size("1.5 GB"), parse_size("300B"), parse_size(300)
    (67108864, 1500000000, 300, 300)
    """
    if not isinstance(value, str):
        return value
    number, unit = split_unit(value)
    if number is None or unit not in _BYTES:
        raise ValueError(f"{show_value(value)} is not a size such as 64kB, 64MiB or 1.5GB")
    if not unit and 0 < number < 64 << 10:  # 64 most likely means 64MiB
        raise UsageError(f"{value} has no unit", hint=f"write {value}MiB, or {value}B for bytes")
    return int(number * _BYTES[unit])


def parse_share(value: object) -> float:
    """Read a share of records.

    >>> parse_share("10%"), parse_share("0.1"), parse_share(1), parse_share(1e-6)
    (0.1, 0.1, 1.0, 1e-06)
    """
    number, unit = split_unit(f"{value:.25f}" if isinstance(value, int | float) else str(value))
    share = float((number or 0) / 100 if unit == "%" else number or 0)
    if not 0 < share <= 1 or unit not in {"", "%"}:
        raise ValueError(f"{show_value(value)} is not a share above 0 and up to 100%, such as 10% or 0.1")
    return share


def parse_steps(value: object) -> tuple[int, int]:
    """Read a step, or a range of steps that includes its last.

    >>> parse_steps(12), parse_steps("10-19")
    ((12, 12), (10, 19))
    """
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", str(value).strip())
    steps = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if not 1 <= steps[0] <= steps[1]:
        raise ValueError(f"{show_value(value)} is not a step such as 12 or a range of steps such as 10-19")
    return steps


def parse_tokens(value: object) -> object:
    """Read a number of tokens, which may have k, M, B or T after it.

    >>> parse_tokens("300B"), parse_tokens("1.5M"), parse_tokens(2000)
    (300000000000, 1500000, 2000)
    """
    if not isinstance(value, str):
        return value
    number, unit = split_unit(value)
    tokens = int((number or 0) * THOUSANDS.get(unit, 0))
    if tokens <= 0:
        raise ValueError(f"{show_value(value)} is not a positive number of tokens such as 300B, 1.5T or 2000000")
    return tokens
