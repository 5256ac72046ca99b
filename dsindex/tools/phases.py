"""How often the tokens of a dataset were read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTokens:
    """How often the tokens of a dataset were read."""

    prefix: str
    num_samples: int
    """Samples of it that were read."""
    tokens_by_times: tuple[int, ...]
    """Tokens that were read, as inputs, not at all, once, twice, …"""
