"""The numbers of options that have a form of their own: sizes, shares, steps and tokens."""

from __future__ import annotations

import re

from dsindex.messages import THOUSANDS, show_value, split_unit

MEGATRON_COUNT = 2**31 - 1
"""Megatron's helpers count the epochs of an index, and the tokens of a sample with the extra one, as int32."""
LEAST_PLAIN_BYTES = 64 << 10
"""A smaller size in a text needs a unit: 64 is likely to mean 64MiB."""
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
        raise ValueError(f"expected a size such as 64kB, 64MiB or 1.5GB, got {show_value(value)}")
    if not unit and 0 < number < LEAST_PLAIN_BYTES:
        raise ValueError(f"expected a size with a unit, got {value}; say {value}MiB, or {value}B for bytes")
    return int(number * _BYTES[unit])


def parse_share(value: object) -> float:
    """Read a share of records.

    >>> parse_share("10%"), parse_share("0.1"), parse_share(1), parse_share(1e-6)
    (0.1, 0.1, 1.0, 1e-06)
    """
    number, unit = split_unit(f"{value:.25f}" if isinstance(value, int | float) else str(value))
    share = float((number or 0) / 100 if unit == "%" else number or 0)
    if not 0 < share <= 1 or unit not in {"", "%"}:
        raise ValueError(f"expected a share above 0 and of at most 100%, such as 10% or 0.1, got {show_value(value)}")
    return share


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
        raise ValueError(f"expected a positive number of tokens such as 300B, 1.5T or 2000000, got {value!r}")
    return tokens
