"""`dsindex verify A --same-as B`: whether two datasets have the same documents, and where they first differ.

Both are read once, from the beginning to the first difference. Token types and formats may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.datasets.origins import find_document_origins
from dsindex.errors import FormatError, InputError
from dsindex.tools.kinds import open_store, tell_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.tools.kinds import TokenStore

BLOCK_TOKENS = 1 << 21
"""Tokens that are compared at once."""


def find_difference(path: str, other_path: str) -> list[str]:
    """Return a sentence about the first document in which two datasets differ; nothing if all are the same.

    Raises:
        InputError: If one is not there.
    """
    subjects = [tell_kind(each) for each in (path, other_path)]
    for subject, given in zip(subjects, (path, other_path), strict=True):
        if subject.kind not in {"MMIDIDX", "pbin"}:
            raise InputError(f"{given}: expected a dataset of .bin and .idx, or a .pbin, got {subject.kind}")
    try:
        one, other = map(open_store, subjects)
    except FormatError as error:
        return [f"{error}; the datasets could not be compared"]
    found = first_difference(one, other)
    if found is None:
        return []
    number, what = found
    lines = [tell_line(subject.path, store, number) for subject, store in zip(subjects, (one, other), strict=True)]
    known = [(subject.path, line) for subject, line in zip(subjects, lines, strict=True) if line is not None]
    told = "".join(f"; {own} has it from {line}" for own, line in known)
    return [f"document {number:,} of {path} is the first that differs in {other_path}: {what}{told}"]


def first_difference(one: TokenStore, other: TokenStore) -> tuple[int, str] | None:
    """Return the number of the first document that differs, and how; None if all are the same."""
    number, begin = _first_unequal_length(one, other)
    position = _first_unequal_token(one, other, begin)
    if position is not None:
        number = one.document_at(position)
        first = one.document_span(number)[0]
        return number, f"its token {position - first:,} is {one.tokens[position]} and {other.tokens[position]}"
    if number < min(one.num_documents, other.num_documents):
        sizes = [end - start for start, end in (store.document_span(number) for store in (one, other))]
        return number, f"it has {count(sizes[0], 'token')} and {sizes[1]:,}"
    if one.num_documents != other.num_documents:
        return number, f"one has {count(one.num_documents, 'document')}, the other {other.num_documents:,}"
    return None


def tell_line(path: str, store: TokenStore, number: int) -> str | None:
    """Return the line that a document was made from; None if it is not known."""
    if number >= store.num_documents:
        return None
    try:
        [origin], _ = find_document_origins(path.removesuffix(".pbin"), store.num_documents, [number])
    except FormatError:
        return None
    return None if origin.source is None else f"{origin.source.path}, line {origin.source.line:,}"


def _first_unequal_length(one: TokenStore, other: TokenStore) -> tuple[int, int]:
    """Return the first document that only one dataset has, or of another length in each; and where it begins."""
    number = begin = 0
    for own, others in _blocks_of_same_size(one.document_lengths(), other.document_lengths()):
        unequal = np.flatnonzero(own != others)
        same = int(unequal[0]) if len(unequal) else len(own)
        number, begin = number + same, begin + int(own[:same].sum())
        if same < len(own):
            break
    return number, begin


def _blocks_of_same_size(
    one: Iterable[NDArray[np.int64]], other: Iterable[NDArray[np.int64]]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield blocks of two arrays side by side, up to the end of the shorter one."""
    blocks = [iter(one), iter(other)]
    left = [np.empty(0, np.int64)] * 2
    while True:
        for side, source in enumerate(blocks):
            while not len(left[side]):
                block = next(source, None)
                if block is None:
                    return
                left[side] = block
        size = min(map(len, left))
        yield left[0][:size], left[1][:size]
        left = [block[size:] for block in left]


def _first_unequal_token(one: TokenStore, other: TokenStore, end: int) -> int | None:
    """Return the first position before `end` with different tokens."""
    for begin in range(0, end, BLOCK_TOKENS):
        block = slice(begin, min(begin + BLOCK_TOKENS, end))
        unequal = one.tokens[block] != other.tokens[block]
        if unequal.any():
            return begin + int(np.argmax(unequal))
    return None
