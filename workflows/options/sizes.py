"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_size(value: object) -> object:
    """Read a size with its unit, in bytes.

    >>> parse_size("64MiB"), parse_size("1.5 GB"), parse_size(4096)
    (67108864, 1500000000, 4096)
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        msg = f"expected a size such as 4096, 64MiB or 1.5GB, got {value!r}"
        raise ValueError(msg)
    return int(float(match[1]) * _UNITS[match[2].upper()])


Size = Annotated[int, BeforeValidator(parse_size)]
