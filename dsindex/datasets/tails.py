"""The ends of datasets, from which `--split` takes validation, and the inputs that they come from.

A dataset whose documents are in the order of its inputs ends with those of its last input, which provenance tells.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.datasets.origins import PROVENANCE_SUFFIX, find_parts, read_manifest
from dsindex.datasets.provenance import read_rows
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import read_header
from dsindex.store.reading import is_stored

if TYPE_CHECKING:
    from collections.abc import Iterable


SHOWN = 3
"""Datasets, and inputs of each, that are named."""


def describe_tails(tails: Iterable[tuple[str, int, int]]) -> str | None:
    """Return a sentence about a validation split of the ends of datasets, of which only some inputs are in it.

    Args:
        tails: Prefix of each dataset, and the sequences [begin, end) of the split.

    Returns:
        None if no dataset has its documents there from a part of its inputs alone.
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
    if len(own) == len(inputs):
        return None
    more = f", {len(own) - SHOWN:,} more" if len(own) > SHOWN else ""
    names = ", ".join(map(os.path.basename, own[:SHOWN]))
    return f"from {len(own):,} of {len(inputs):,} inputs ({names}{more})"
