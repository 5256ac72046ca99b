"""The file of `--per-dataset-sequences-path`, by which a job opens its datasets without reading their headers.

    {"prefix as the job types it": [sequences, document indices], …}

A job with this file does not read the type of the tokens either: it takes uint16 if its tokenizer has at most 65,536
tokens, and int32 otherwise. Megatron's preprocess_data.py writes int32 from 65,500 tokens on, so between these numbers
the job would read wrong tokens without a word.

Source: megatron/core/datasets/indexed_dataset.py, `_IndexReader`; gpt_dataset.py, `token_dtype_code`;
tools/build_sequences_per_dataset.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.formats.mmididx import read_header
from dsindex.json_file import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_UINT16_VOCABULARY = 1 << 16
"""The largest vocabulary whose tokens such a job reads as uint16."""

Sequences = dict[str, list[int]]
"""Prefix, as the job types it → sequences and document indices."""


def count_sequences(prefixes: Mapping[str, str]) -> Sequences:
    """Return what the file says of datasets.

    Args:
        prefixes: Prefix as the job types it → prefix on this machine.

    Raises:
        FormatError: If an `.idx` is damaged.
    """
    headers = {typed: read_header(f"{prefix}.idx") for typed, prefix in prefixes.items()}
    return {typed: [header.num_sequences, header.num_boundaries] for typed, header in headers.items()}


def token_type_fault(prefix: str, vocabulary_size: int | None) -> str | None:
    """Return a sentence about a dataset whose tokens a job with this file would read in another type.

    Args:
        prefix: The dataset.
        vocabulary_size: That of the job's tokenizer; None if it is not known.

    Returns:
        None if the types agree, or no conclusion can be drawn.
    """
    dtype = read_header(f"{prefix}.idx").dtype
    if vocabulary_size is None:
        if dtype in {np.dtype("<u2"), np.dtype("<i4")}:
            return None
        read = "uint16 or int32"
    else:
        read = "uint16" if vocabulary_size <= MAX_UINT16_VOCABULARY else "int32"
        if dtype == np.dtype(read):
            return None
    size = "" if vocabulary_size is None else f", as its tokenizer has {vocabulary_size} tokens"
    return (
        f"{prefix}: its tokens are {dtype.name}, and a job with --per-dataset-sequences-path reads them as "
        f"{read}{size}: wrong tokens without a word; start the job without this flag"
    )


def read_sequences(path: str) -> dict[str, Any]:
    """Read such a file.

    Raises:
        InputError: If it cannot be read, or is not a JSON object.
    """
    return read_object(path, what="a JSON object of sequences per dataset")


def sequence_faults(there: Mapping[str, Any], wanted: Sequences) -> list[str]:
    """Return sentences about datasets that are missing in a file or have other numbers in it.

    >>> sequence_faults({"a": [1, 2]}, {"a": [1, 3], "b": [4, 5]})
    ['a has [1, 2] and should have [1, 3]', 'b is missing, spelled as the job types it']
    """
    faults = []
    for prefix, numbers in wanted.items():
        if prefix not in there:
            faults.append(f"{prefix} is missing, spelled as the job types it")
        elif there[prefix] != numbers:
            faults.append(f"{prefix} has {there[prefix]} and should have {numbers}")
    return faults
