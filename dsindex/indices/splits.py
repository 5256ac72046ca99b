"""Divide the sequences of a dataset into train, valid and test.

Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_config, `parse_and_normalize_split` and
`convert_split_vector_to_split_matrix`.
"""

from __future__ import annotations

import re

import numpy as np

SPLIT_NAMES = ("train", "valid", "test")

Part = tuple[float, float]
"""Begin and end of a part, as shares of the sequences."""
SplitMatrix = tuple[Part | None, Part | None, Part | None]
"""The parts of train, valid and test; None for a split without a part."""

WHOLE: Part = (0.0, 1.0)


def normalise(weights: list[float]) -> list[float]:
    """Divide weights by their sum, with numpy's order of summation, which decides the last bit.

    >>> normalise([5, 3, 2])
    [0.5, 0.3, 0.2]
    """
    array = np.array(weights, dtype=np.float64)
    shares: list[float] = (array / np.sum(array)).tolist()
    return shares


def parse_split(text: str) -> tuple[float, float, float]:
    """Parse a split in any notation that Megatron accepts, and normalise it.

    Raises:
        ValueError: If it does not consist of one to three shares that are not all zero.

    >>> parse_split("80, 20")
    (0.8, 0.2, 0.0)
    """
    # Megatron looks for runs of digits and dots, so "90/8/2" and "[90, 8, 2]" are valid, too. It also reads "-5" as 5
    # and "1e3" as 1 and 3, which nobody means.
    numbers = re.findall(r"[.0-9]+", text)
    remedy = "write train, valid and test as in '969, 30, 1'"
    try:
        shares = [float(number) for number in numbers]
    except ValueError:
        msg = f"expected numbers in the split, got {text!r}; {remedy}"
        raise ValueError(msg) from None
    if not 1 <= len(shares) <= len(SPLIT_NAMES) or sum(shares) <= 0 or re.search(r"[-+a-zA-Z]", text):
        msg = f"expected one to three shares, none negative and not all 0, got the split {text!r}; {remedy}"
        raise ValueError(msg)
    train, valid, test = normalise(shares + [0.0] * (len(SPLIT_NAMES) - len(shares)))
    return train, valid, test


def split_matrix(shares: tuple[float, float, float]) -> SplitMatrix:
    """Return the parts' bounds as running sums of the shares. The first is the integer 0, as in a description.

    >>> split_matrix((0.8, 0.2, 0.0))
    ((0, 0.8), (0.8, 1.0), None)
    """
    parts: list[Part | None] = []
    end: float = 0
    for share in shares:
        begin, end = end, end + share
        parts.append((begin, end) if end > begin else None)
    return parts[0], parts[1], parts[2]


def split_bounds(part: Part, num_sequences: int) -> tuple[int, int]:
    """Return the half-open range of sequence ids of a part, rounding half to even.

    >>> split_bounds((0.8, 1.0), 217)
    (174, 217)
    """
    begin, end = part
    return round(begin * float(num_sequences)), round(end * float(num_sequences))
