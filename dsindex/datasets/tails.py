"""The ends of datasets, from which `--split` takes validation, and whether they are unlike the rest.

A dataset whose documents are in the order of its inputs ends with those of its last input. Where it has several,
provenance tells it; where it has one that is in an order of its own, such as by source or language, the tokens do.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.origins import PROVENANCE_SUFFIX, find_parts, read_manifest
from dsindex.datasets.provenance import read_rows
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import read_header
from dsindex.store.reading import is_stored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

SHOWN = 3
"""Datasets, and inputs of each, that are named."""
GROUP_DOCUMENTS = 32
NUM_GROUPS = 7
"""Groups of documents before the end, each compared with the others as the end is."""
COMPARED_TOKENS = 256
"""Tokens that are read at the start of a document."""
UNLIKE = 1.25
MARGIN = 0.05
"""The end is unlike the rest if it differs by this factor, and by this share, more than the group that differs most."""


def describe_tails(tails: Iterable[tuple[str, int, int]]) -> str | None:
    """Return a sentence about a validation split of the ends of datasets, where these are known to be unlike the rest.

    Args:
        tails: Prefix of each dataset, and the sequences [begin, end) of the split.

    Returns:
        None if no dataset has its documents there from a part of its inputs alone, or with other tokens.
    """
    told = []
    for prefix, begin, end in tails:
        try:
            found = _describe_tail(prefix, begin, end)
        except (InputError, FormatError):  # verify says what is wrong with it
            continue
        if found is not None:
            told.append(f"{count(end - begin, 'document')} of {prefix} {found}")
    if not told:
        return None
    more = f" and of {count(len(told) - SHOWN, 'other dataset')}" if len(told) > SHOWN else ""
    return (
        f"valid is the end of each dataset in the order of its inputs: {', '.join(told[:SHOWN])}{more}; "
        "`dsindex build --hold-out 1%` draws from all of them"
    )


def _describe_tail(prefix: str, begin: int, end: int) -> str | None:
    path = f"{prefix}.manifest.json"
    if end <= begin or not is_stored(path) or not is_stored(f"{prefix}.idx"):
        return None
    header = read_header(f"{prefix}.idx")
    if header.num_sequences != header.num_documents:
        return None
    content = read_manifest(path)["content"]
    options = content.get("options")
    if not isinstance(options, dict):
        return None
    parts = find_parts(prefix, header.num_documents)
    if parts[0].prefix != prefix:
        inputs = [part.prefix for part in parts]
        own = [
            part.prefix
            for part in parts
            if part.first_document < end and begin < part.first_document + part.num_documents
        ]
    elif is_stored(f"{prefix}{PROVENANCE_SUFFIX}"):
        given = [str(entry["path"]) for entry in content["inputs"]]
        inputs = [name for name, entry in zip(given, content["inputs"], strict=True) if entry.get("kept") != 0]
        numbers = np.unique(read_rows(f"{prefix}{PROVENANCE_SUFFIX}", begin, end)[0]).tolist()
        own = [given[number] for number in numbers if 0 <= number < len(given)]
    else:
        inputs = own = []
    if len(own) < len(inputs):
        more = f", {len(own) - SHOWN:,} more" if len(own) > SHOWN else ""
        names = ", ".join(map(os.path.basename, own[:SHOWN]))
        return f"from {len(own):,} of {len(inputs):,} inputs ({names}{more})"
    shares = compare_tail(prefix, begin, end)
    if shares is None:
        return None
    return f"unlike those before (they have {shares[0]:.0%} of their tokens in common, others {shares[1]:.0%} or more)"


def compare_tail(prefix: str, begin: int, end: int) -> tuple[float, float] | None:
    """Compare the tokens of a dataset's end with those of the documents before it.

    Some documents of the end and of groups from all over the rest are read. If the end is drawn as the rest is, it
    shares as many tokens with the rest as a group shares with the other groups.

    Returns:
        The share of its tokens that the end has in common with the rest, counted by frequency, and the least share of
        a group; None if the end does not differ clearly, or there are too few documents to tell.
    """
    if end - begin < GROUP_DOCUMENTS or begin < NUM_GROUPS * GROUP_DOCUMENTS or not os.path.isfile(f"{prefix}.bin"):
        return None
    with IndexedDataset(prefix, check=False) as dataset:
        places = np.linspace(0, begin - 1, NUM_GROUPS * GROUP_DOCUMENTS).astype(np.int64)
        groups = [_count_tokens(dataset, places[number::NUM_GROUPS]) for number in range(NUM_GROUPS)]
        tail = _count_tokens(dataset, np.linspace(begin, end - 1, GROUP_DOCUMENTS).astype(np.int64))
    length = max(map(len, [*groups, tail]))
    table = np.zeros((NUM_GROUPS + 1, length))
    for row, counts in zip(table, [*groups, tail], strict=True):
        row[: len(counts)] = counts
    if not table.sum(axis=1).all():
        return None
    total = table[:-1].sum(axis=0)
    shares = [_shared(row, total - row) for row in table[:-1]]
    own = float(np.median([_shared(table[-1], total - row) for row in table[:-1]]))
    least = min(shares)
    return (own, least) if 1 - own > max(UNLIKE * (1 - least), 1 - least + MARGIN) else None


def _count_tokens(dataset: IndexedDataset, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each token id is at the start of documents."""
    return np.bincount(np.concatenate([dataset[number][:COMPARED_TOKENS] for number in documents.tolist()]))


def _shared(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the share of tokens that two counts have in common.

    >>> _shared(np.array([1.0, 1.0]), np.array([3.0, 0.0]))
    0.5
    """
    return float(np.minimum(one / one.sum(), other / other.sum()).sum())
