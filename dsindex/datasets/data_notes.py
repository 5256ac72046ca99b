"""Notes about the data of a job that somebody may have meant otherwise: what validation is, tokenizers, loss masks.

`--split` takes validation from the end of a dataset. If the documents are in the order of the inputs, those at the end
come from the last inputs alone, which the provenance shows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.datasets.detect import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.lineage import describe_tokenizers, find_parts
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import read_manifest
from dsindex.formats.mmididx import read_header
from dsindex.formats.provenance import provenance_path, read_rows
from dsindex.messages import count
from dsindex.store.read import is_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SHOWN = 3
"""Datasets, and inputs of each, that are named."""


def describe_data(validation: Mapping[str, tuple[int, int] | None]) -> Iterator[str]:
    """Yield notes about the datasets of a job.

    Args:
        validation: Prefix of each dataset → the sequences [begin, end) of its validation split, if there is one.
    """
    ends = describe_validation([(prefix, *part) for prefix, part in validation.items() if part is not None])
    yield from filter(None, (ends, describe_tokenizers(validation)))
    for prefix in validation:
        stem = prefix.removesuffix(TEXT_SUFFIX)
        if stem != prefix and is_stored(f"{stem}{MASK_SUFFIX}.idx"):
            yield (
                f"{prefix} is instruction data: as --data-path, a job trains on all of its tokens and does not read "
                f"{os.path.basename(stem)}{MASK_SUFFIX}; to use the mask, see the exports of `dsindex instruct`"
            )


def describe_validation(ends: Iterable[tuple[str, int, int]]) -> str | None:
    """Return a note if validation splits contain documents from only some inputs of their datasets.

    Args:
        ends: Prefix of each dataset, and the sequences [begin, end) of its validation split.
    """
    notes = []
    for prefix, begin, end in ends:
        try:
            inputs = _inputs_from(prefix, begin) if begin < end else None
        except (InputError, FormatError):  # verify says what is wrong with it
            continue
        if inputs is not None:
            notes.append(f"{count(end - begin, 'document')} of {prefix} from {inputs}")
    if not notes:
        return None
    more = f" and of {count(len(notes) - SHOWN, 'other dataset')}" if len(notes) > SHOWN else ""
    return (
        f"valid is the end of each dataset in the order of its inputs: {', '.join(notes[:SHOWN])}{more}; "
        "`dsindex build --hold-out 1%` draws from all of them"
    )


def _inputs_from(prefix: str, document: int) -> str | None:
    """Name the inputs of a document and of all documents after it; None if they are all inputs, or unknown."""
    header, manifest = read_header(f"{prefix}.idx"), read_manifest(prefix)
    if manifest is None or header.num_sequences != header.num_documents:
        return None
    parts, provenance = find_parts(prefix, header.num_documents, given=[prefix]), provenance_path(prefix)
    inputs, first = [file.path for file in manifest.content.inputs], 0
    if parts[0].prefix != prefix:
        inputs = [part.prefix for part in parts]
        first = sum(part.first_document <= document for part in parts) - 1
    elif is_stored(provenance):
        first = int(read_rows(provenance, document, document + 1)[0][0])
    names = [os.path.basename(path) for path in inputs[first : first + SHOWN]]
    more = f", {len(inputs) - first - SHOWN:,} more" if len(inputs) - first > SHOWN else ""
    listed = f"{len(inputs) - first:,} of {len(inputs):,} inputs ({', '.join(names)}{more})"
    return listed if first > 0 else None
