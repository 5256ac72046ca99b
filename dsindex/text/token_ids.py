"""Read lists of token ids from records, in place of texts that are encoded.

A value is a list of ids, or a list of lists of ids: the sequences of one document. Ids are integers from 0 to below the
size of the vocabulary. Nothing is converted: `1.0` and `true` are not ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dsindex.text.fields import TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
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


def decode_ids(text: str) -> object:
    """Decode JSON; integers of more digits than int() accepts become infinite floats, which are no ids.

    Raises:
        json.JSONDecodeError: If it is not JSON.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # from int(), which refuses more than 4,300 digits
        return _SLOW_DECODER.decode(text)


def find_id_fault(value: object, vocabulary_size: int) -> str | None:
    """Describe the first value that is no token id; None if all are.

    >>> find_id_fault([1, 7], 8), find_id_fault([[1], []], 8)
    (None, None)
    >>> find_id_fault([1, 8], 8)
    'a list with 8 as item 2'
    """
    if not isinstance(value, list):
        return _shown(value)
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
    tokens = np.fromiter(
        (token for sequence in sequences for token in sequence), np.uint32, count=int(lengths.sum(dtype=np.int64))
    )
    counts = np.array([len(_sequences(value)) for value in values], np.int64) if is_nested else None
    return TokenColumn(tokens=tokens, lengths=lengths, sequences_per_record=counts)


def _parse_int(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float("-inf" if text.startswith("-") else "inf")


_DECODER = json.JSONDecoder()
_SLOW_DECODER = json.JSONDecoder(parse_int=_parse_int)


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


def read_token_column(array: pa.ListArray, vocabulary_size: int) -> TokenColumn | None:
    """Return the column of an Arrow array without nulls, of lists of integers or lists of such lists.

    Returns:
        None if an item is null, or no id of the vocabulary.
    """
    import pyarrow as pa

    counts = None
    if pa.types.is_list(array.type.value_type):
        counts, array = _sizes(array), array.flatten()
    ids = array.flatten()
    if array.null_count or ids.null_count:
        return None
    values = ids.to_numpy()
    if values.size and not (values.min() >= 0 and values.max() < vocabulary_size):
        return None
    return TokenColumn(tokens=values.astype(np.uint32), lengths=_sizes(array), sequences_per_record=counts)


def _sizes(lists: pa.ListArray) -> NDArray[np.int64]:
    sizes: NDArray[np.int64] = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return sizes
