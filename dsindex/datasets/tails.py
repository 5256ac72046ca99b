"""The ends of datasets, from which `--split` takes validation, and the inputs that they come from.

A dataset whose documents are in the order of its inputs ends with those of its last input, which provenance tells.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.datasets.detect import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.lineage import PROVENANCE_SUFFIX, find_parts, tell_tokenizers_apart
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import read_manifest
from dsindex.formats.mmididx import read_header
from dsindex.formats.provenance import read_rows
from dsindex.messages import count
from dsindex.store.read import is_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


SHOWN = 3
"""Datasets, and inputs of each, that are named."""


def describe_data(valid: Mapping[str, tuple[int, int] | None]) -> Iterator[str]:
    """Yield what a job may have been meant otherwise: ends as validation, several tokenizers, conversations as text.

    Args:
        valid: Prefix of each dataset, and the sequences [begin, end) that are its part of valid, if there is one.
    """
    tails = describe_tails([(prefix, *part) for prefix, part in valid.items() if part is not None])
    yield from filter(None, (tails, tell_tokenizers_apart(valid)))
    for prefix in valid:
        stem = prefix.removesuffix(TEXT_SUFFIX)
        if stem != prefix and is_stored(f"{stem}{MASK_SUFFIX}.idx"):
            yield (
                f"{prefix} is instruction data: a job that reads it as --data-path learns all its tokens, as it does "
                f"not read {os.path.basename(stem)}{MASK_SUFFIX}; for the mask, see the exports of `dsindex instruct`"
            )


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
    header, provenance = read_header(f"{prefix}.idx"), f"{prefix}{PROVENANCE_SUFFIX}"
    recorded = read_manifest(prefix)
    if recorded is None or end <= begin or header.num_sequences != header.num_documents:
        return None
    parts = find_parts(prefix, header.num_documents, given=[prefix])
    if parts[0].prefix != prefix:
        inputs = [part.prefix for part in parts]
        first = sum(part.first_document <= begin for part in parts) - 1
    elif is_stored(provenance):
        inputs = [each.path for each in recorded.content.inputs]
        first = int(read_rows(provenance, begin, begin + 1)[0][0])
    else:
        return None
    own = inputs[first:]
    if len(own) == len(inputs):
        return None
    more = f", {len(own) - SHOWN:,} more" if len(own) > SHOWN else ""
    names = ", ".join(map(os.path.basename, own[:SHOWN]))
    return f"from {len(own):,} of {len(inputs):,} inputs ({names}{more})"
