"""Count the epochs, samples and rows of an index before it is built.

    T  tokens of the part (of one epoch)
    L  sequence length
    x  1 with the extra token, otherwise 0. A sample takes L + x tokens, and the next one begins L tokens later.

Source: docs/formats.md §2; megatron.core.datasets.gpt_dataset, `_get_num_epochs` and
`_build_document_sample_shuffle_indices`; helpers.cpp, `build_sample_idx`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.errors import InputError, LimitError
from dsindex.messages import show_value

if TYPE_CHECKING:
    from fractions import Fraction


MAX_EPOCHS = np.iinfo(np.int32).max
"""Megatron passes the number of epochs to C++ as int32."""
FINAL_EPOCH_THRESHOLD = 0.80
"""Megatron shuffles the final epoch by itself if less than this share of it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRule:
    """The rule by which tokens are cut into samples."""

    sequence_length: int
    """L, at least 2."""
    extra_token: bool = True
    """x: whether a sample has L + 1 tokens, so that inputs and labels both have L."""
    keep_partial: bool = False
    """Whether the last, partial sample is kept (Megatron: validation only)."""

    def __post_init__(self) -> None:
        # Megatron's C++ counts L + 1 tokens in int32 and asserts L > 1.
        if not 2 <= self.sequence_length <= np.iinfo(np.int32).max - 1:
            raise LimitError(f"sequence length {self.sequence_length} is not from 2 to {np.iinfo(np.int32).max - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrder:
    """The order of documents and samples in an index; by default Megatron's."""

    documents: str = "shuffled"
    """`shuffled`, `packed`, `length`, or the path of a file with the numbers of the documents."""
    samples: Literal["together", "separately", "never"] = "together"
    """Whether samples are shuffled across epochs, within each epoch, or not at all."""
    digest: str | None = None
    """Digest of the order file; None without a file."""

    @property
    def is_stock(self) -> bool:
        """Whether Megatron would build the same index."""
        return self == STOCK_ORDER

    def as_settings(self) -> dict[str, Any]:
        """Return the fields of `Settings` that record this order; empty for Megatron's."""
        if self.is_stock:
            return {}
        name = self.documents if self.digest is None else os.path.basename(self.documents)
        return {"document_order": name, "shuffle_epochs": self.samples, "document_order_digest": self.digest}


STOCK_ORDER = DocumentOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCounts:
    """The numbers of epochs and samples of one index."""

    tokens_per_epoch: int
    num_epochs: int
    num_samples: int
    """Samples in the index, at least as many as requested."""
    separate_final_epoch: bool
    shuffled_together: int
    """Samples [0, shuffled_together) are permuted among themselves, then the rest. Equal to num_samples unless the
    final epoch is separate."""


def count_epochs(tokens_per_epoch: int, num_samples: int | None, *, rule: SampleRule, place: str) -> EpochCounts:
    """Count the epochs and samples of a part, and decide whether its final epoch is shuffled by itself.

    Args:
        tokens_per_epoch: T.
        num_samples: Samples requested; None for one epoch.
        rule: How tokens are cut into samples.
        place: Name of the part in messages, such as `web_text_document, split valid`.

    Raises:
        LimitError: If the part can never yield that many samples.

    >>> count_epochs(265, 20, rule=SampleRule(sequence_length=30), place="spec")  # doctest: +NORMALIZE_WHITESPACE
    EpochCounts(tokens_per_epoch=265, num_epochs=3, num_samples=26, separate_final_epoch=True, shuffled_together=17)
    """
    if num_samples is not None and num_samples < 0:
        raise LimitError(f"{place}: {num_samples} samples are fewer than 0")
    extra = int(rule.extra_token)
    needed_tokens = 0 if num_samples is None else num_samples * rule.sequence_length + extra
    if needed_tokens and tokens_per_epoch == 0:
        problem = f"{num_samples} samples were requested, but the part has no tokens (Megatron would loop forever)"
        raise LimitError(f"{place}: {problem}", hint="give the split a larger share, or `none` samples")
    num_epochs = max(1, -(-needed_tokens // max(1, tokens_per_epoch)))
    if num_epochs > MAX_EPOCHS:
        problem = f"{num_samples} samples take {num_epochs} epochs, more than the {MAX_EPOCHS} that Megatron can count"
        raise LimitError(f"{place}: {problem}", hint="request fewer samples")
    before_final = ((num_epochs - 1) * tokens_per_epoch - extra) // rule.sequence_length
    per_epoch = (tokens_per_epoch - extra) // rule.sequence_length
    is_separate = False
    if num_samples is not None and num_epochs > 1:
        is_separate = num_samples - before_final < int(FINAL_EPOCH_THRESHOLD * per_epoch)
    num_built = count_samples(num_epochs * tokens_per_epoch, rule=rule)
    if num_samples is not None and num_built < num_samples:
        # Only the float32 arithmetic for a kept partial sample leads here, from 2**24 tokens on.
        problem = f"Megatron counts {num_built} samples in float32, not the {num_samples} that are requested, and stops"
        hint = "drop the last partial sample, or request slightly fewer samples"
        raise LimitError(f"{place}: {problem}", hint=hint)
    return EpochCounts(
        tokens_per_epoch=tokens_per_epoch,
        num_epochs=num_epochs,
        num_samples=num_built,
        separate_final_epoch=is_separate,
        shuffled_together=before_final if is_separate else num_built,
    )


def count_samples(num_tokens: int, *, rule: SampleRule) -> int:
    """Return the number of samples in the tokens of all epochs.

    Args:
        num_tokens: E * T.
        rule: With `keep_partial` the count is the ceiling of a float32 quotient, as in C++, which is inexact from 2**24
            tokens on.

    >>> count_samples(265, rule=SampleRule(sequence_length=30))
    8
    """
    available_tokens = num_tokens - int(rule.extra_token)
    if available_tokens <= 0:
        return 0
    if rule.keep_partial:
        return math.ceil(np.float32(available_tokens) / np.float32(rule.sequence_length))
    return available_tokens // rule.sequence_length


def samples_for_epochs(epochs: Fraction, tokens_per_epoch: int, *, rule: SampleRule) -> int:
    """Return the number of samples for `--epochs E`: the full ones in the first floor(E * T) tokens.

    Source: docs/formats.md §2.

    >>> from fractions import Fraction
    >>> samples_for_epochs(Fraction("2.5"), 1000, rule=SampleRule(sequence_length=10))
    249
    """
    tokens = math.floor(epochs * tokens_per_epoch)
    return max(0, (tokens - int(rule.extra_token)) // rule.sequence_length)


# Divide the sequences of a dataset into train, valid and test.
#
# Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_config, `parse_and_normalize_split` and
# `convert_split_vector_to_split_matrix`.

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
        InputError: If it does not consist of one to three shares that are not all zero.

    >>> parse_split("80, 20")
    (0.8, 0.2, 0.0)
    """
    # Megatron looks for runs of digits and dots, so "90/8/2" and "[90, 8, 2]" are valid, too. It also reads "-5" as 5
    # and "1e3" as 1 and 3, which nobody means.
    shares: list[float] = []
    with contextlib.suppress(ValueError):
        shares = [float(number) for number in re.findall(r"[.0-9]+", text)]
    if not 1 <= len(shares) <= len(SPLIT_NAMES) or not 0 < sum(shares) < math.inf or re.search(r"[-+a-zA-Z]", text):
        hint = "give the shares of train, valid and test, as in '969, 30, 1'"
        raise InputError(f"--split: {show_value(text)} is not one to three shares above 0", hint=hint)
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


# The types of the index arrays, which depend on their sizes.
#
# Source: docs/formats.md §2; megatron.core.datasets, gpt_dataset.py and helpers.py.

DOCUMENT_DTYPE = np.dtype("<i4")
BLEND_DTYPES = (np.dtype("<i2"), np.dtype("<i8"))
"""Types of the dataset index and the dataset sample index."""


def sample_dtype(num_positions: int) -> np.dtype[Any]:
    """Return the type of a sample index: int32 unless positions in the document index need int64.

    Megatron also considers the longest sequence, but lengths are int32 in the file.

    >>> sample_dtype(2**31 - 1), sample_dtype(2**31)
    (dtype('int32'), dtype('int64'))
    """
    return np.dtype("<i4") if num_positions <= np.iinfo(np.int32).max else np.dtype("<i8")


def shuffle_dtype(num_samples: int) -> np.dtype[Any]:
    """Return the type of a shuffle index: uint32, or int64 from 2**32 - 2 samples.

    >>> shuffle_dtype(2**32 - 3), shuffle_dtype(2**32 - 2)
    (dtype('uint32'), dtype('int64'))
    """
    return np.dtype("<i8") if num_samples >= np.iinfo(np.uint32).max - 1 else np.dtype("<u4")
