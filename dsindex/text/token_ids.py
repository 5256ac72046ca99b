"""Read lists of token ids from records, in place of texts that are encoded.

A value is a list of ids, or a list of lists of ids: the sequences of one document. Ids are integers from 0 to below the
size of the vocabulary. Nothing is converted: `1.0` and `true` are not ids.
"""

from __future__ import annotations

import itertools
import json
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dsindex.text.fields import TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Ids: TypeAlias = list[int] | list[list[int]]

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumn:
    """The token ids of one key."""

    tokens: NDArray[np.uint32]
    """All ids of the block, in order; shape [tokens]."""
    lengths: NDArray[np.int64]
    """Number of ids of each sequence, shape [sequences]; they add up to the number of tokens."""
    sequences_per_record: NDArray[np.int64] | None
    """Number of sequences of each record, shape [records]; None if each record has one."""


def find_id_fault(value: object, vocabulary_size: int) -> str | None:
    """Describe the first value that is no token id; None if all are.

    >>> find_id_fault([1, 7], 8), find_id_fault([[1], []], 8)
    (None, None)
    >>> find_id_fault([1, 8], 8)
    'a list with 8 as item 2'
    """
    if not isinstance(value, list):
        return _shown(value)
    if _are_ids(_sequences(value), vocabulary_size):
        return None
    if value and isinstance(value[0], list):
        for number, item in enumerate(value, 1):
            if not isinstance(item, list):
                return f"a list of lists with {_shown(item)} as item {number}"
            wrong = _find_wrong(item, vocabulary_size)
            if wrong is not None:
                return f"a list with {_shown(item[wrong])} as item {wrong + 1} of list {number}"
        return None
    wrong = _find_wrong(value, vocabulary_size)
    return None if wrong is None else f"a list with {_shown(value[wrong])} as item {wrong + 1}"


def build_token_column(values: Sequence[Ids]) -> TokenColumn:
    """Return the column of these values, all of which are ids."""
    is_nested = any(value and isinstance(value[0], list) for value in values)
    sequences: list[list[int]] = []
    for value in values:
        sequences += _sequences(value)
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    ids = array("I")
    for sequence in sequences:
        ids.fromlist(sequence)
    tokens = np.array(ids, np.uint32)
    counts = np.array([len(_sequences(value)) for value in values], np.int64) if is_nested else None
    return TokenColumn(tokens=tokens, lengths=lengths, sequences_per_record=counts)


def _are_ids(sequences: list[list[int]], vocabulary_size: int) -> bool:
    """Tell whether all items are ids; several times as fast as to look at each."""
    ids = array("I")
    try:
        for sequence in sequences:
            ids.fromlist(sequence)
    except (TypeError, OverflowError):
        return False
    if not set(map(type, itertools.chain.from_iterable(sequences))) <= {int}:  # an array takes booleans
        return False
    return not ids or int(np.array(ids, np.uint32).max()) < vocabulary_size


def _find_wrong(ids: list[object], vocabulary_size: int) -> int | None:
    """Return the index of the first item that is no id of the vocabulary."""
    for index, item in enumerate(ids):
        if type(item) is not int or not 0 <= item < vocabulary_size:
            return index
    return None


def _sequences(value: Ids) -> list[list[int]]:
    return value if value and isinstance(value[0], list) else [value]  # type: ignore[list-item]  # all are lists, or none is


def _shown(value: object) -> str:
    if isinstance(value, (bool, int, float)):
        shown = json.dumps(value)
        return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
    return TYPE_NAMES[type(value)]
