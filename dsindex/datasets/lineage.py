"""Find the input lines that a dataset's documents come from, in its manifest and provenance.

A merged dataset has no provenance, so its documents are traced into the datasets that were merged.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.datasets.detect import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.formats.mmididx import read_header
from dsindex.formats.provenance import ROWS_PER_GROUP, count_rows, provenance_path, read_rows
from dsindex.messages import count
from dsindex.store.machine import available_cpus
from dsindex.store.read import is_stored
from dsindex.store.urls import local_paths, require_confirmed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.formats.manifest import Manifest


MAX_MERGE_DEPTH = 16
"""Limit on the nested merges to follow; a longer chain can only come from a dataset that names itself as its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """The record that a document was made from."""

    path: str
    """The input's path as given to the build."""
    line: int
    """Number of the line, or of a table's row, from 1."""
    offset: int
    """Byte offset of the line in the unpacked text; in a table, its row group."""
    input: int
    """Number of the input in the manifest, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfDataset:
    """Consecutive documents of a merged dataset that come from one input; all documents of an unmerged dataset."""

    prefix: str
    first_document: int
    """Number of the first of these documents in the merged dataset."""
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDocument:
    """A document in one of the datasets that were merged."""

    prefix: str
    document: int
    """Number of the document in that dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigin:
    """Where a document comes from."""

    source: SourceLine | None
    """None if it is unknown."""
    part: PartDocument | None
    """The document in the dataset that was merged; None in an unmerged dataset."""


def find_document_origins(
    prefix: str, num_documents: int, documents: Iterable[int], *, contact: Sequence[str] = ()
) -> tuple[dict[int, DocumentOrigin], tuple[str, ...]]:
    """Return the origins of some documents of a dataset, and sentences about unknown origins.

    Args:
        prefix: The dataset.
        num_documents: Number of documents in the dataset.
        documents: Numbers of the documents to trace.
        contact: Addresses whose buckets and servers may be contacted, in addition to the address of the dataset.

    Raises:
        FormatError: If the dataset's own manifest or provenance is damaged or belongs to another dataset.
    """
    user_addresses, sorted_documents = (prefix, *contact), sorted(set(documents))
    origins, notes = dict[int, DocumentOrigin](), dict[str, None]()
    for part in find_parts(prefix, num_documents, user_addresses=user_addresses):
        first, is_input = part.first_document, part.prefix != prefix
        begin, end = (bisect_left(sorted_documents, bound) for bound in (first, first + part.num_documents))
        numbers = [document - first for document in sorted_documents[begin:end]]
        lines: Sequence[SourceLine | None] = [None] * len(numbers)
        try:
            require_confirmed(part.prefix, user_addresses)
            lines = find_lines(part.prefix, part.num_documents, numbers) if numbers else ()
        except (InputError, FormatError) as error:
            if isinstance(error, FormatError) and not is_input:
                raise
            notes[error.sentence] = None
        for number, line in zip(numbers, lines, strict=True):
            input_document = PartDocument(prefix=part.prefix, document=number) if is_input else None
            origins[first + number] = DocumentOrigin(source=line, part=input_document)
    return origins, tuple(notes)


def find_lines(prefix: str, num_documents: int, documents: Sequence[int]) -> list[SourceLine]:
    """Return the input line of each document, in ascending order, of an unmerged dataset; reads each row group once.

    Raises:
        InputError: If it has no manifest or no provenance.
        FormatError: If one of them is damaged or belongs to another dataset.
    """
    manifest, provenance = read_manifest(prefix), provenance_path(prefix)
    if manifest is None or not is_stored(provenance):
        path = manifest_path(prefix) if manifest is None else provenance
        raise InputError(f"{path}: missing, so the source lines of the documents are unknown")
    inputs, numbers = manifest.content.inputs, np.asarray(documents, np.int64)
    if (num_rows := count_rows(provenance)) != num_documents:
        problem = f"{num_rows:,} rows for {num_documents:,} documents"
        raise FormatError(f"{provenance}: it has {problem}; it belongs to another dataset")

    def read(group: NDArray[np.int64]) -> list[SourceLine]:
        begin = int(group[0])
        columns = [column[group - begin] for column in read_rows(provenance, begin, int(group[-1]) + 1)]
        if columns[0].min() < 0 or columns[0].max() >= len(inputs):
            raise FormatError(f"{provenance}: it names more than the {len(inputs)} inputs of the manifest")
        return [
            SourceLine(path=inputs[number].path, line=line, offset=offset, input=number)
            for number, offset, line in zip(*(column.tolist() for column in columns), strict=True)
        ]

    groups = np.split(numbers, np.flatnonzero(np.diff(numbers // ROWS_PER_GROUP)) + 1)
    with ThreadPoolExecutor(available_cpus()) as pool:
        return [line for lines in pool.map(read, groups) for line in lines]


def input_path(manifest: Manifest, number: int, *, user_addresses: Iterable[str]) -> str:
    """Return the path of an input as given to the build or, if nothing is there, the absolute path.

    Raises:
        InputError: If the path is an address that the user did not give.
    """
    path, planned_inputs = manifest.content.inputs[number].path, manifest.run.plan.inputs
    require_confirmed(path, user_addresses)
    if (path == "-" or not is_stored(path)) and number < len(planned_inputs):  # standard input, or a relative path
        path = planned_inputs[number][0]
        require_confirmed(path, user_addresses)
    return path


def find_parts(
    prefix: str, num_documents: int, *, user_addresses: Iterable[str], first: int = 0, depth: int = 0
) -> list[PartOfDataset]:
    """Return the datasets that were merged into a dataset; a part that is a merge itself is replaced by its parts.

    Args:
        prefix: The dataset.
        num_documents: Number of documents in the dataset.
        user_addresses: Addresses from the user; a part at any other address is not opened, so its parts stay unknown.
        first: Number of the dataset's first document in the outermost merge.
        depth: Number of merges that contain the dataset.

    Raises:
        FormatError: If a manifest is damaged or belongs to another dataset.
    """
    inputs = []
    with contextlib.suppress(InputError):
        require_confirmed(prefix, user_addresses)
        inputs = [] if is_stored(provenance_path(prefix)) else _read_merged_inputs(prefix)
    if not inputs:
        return [PartOfDataset(prefix=prefix, first_document=first, num_documents=num_documents)]
    total = sum(size for _, size in inputs)
    if total != num_documents or depth == MAX_MERGE_DEPTH:
        problem = f"its inputs have {total:,} documents, and the dataset {num_documents:,}"
        raise FormatError(f"{manifest_path(prefix)}: {problem}; it belongs to another dataset")
    parts = []
    for path, size in inputs:
        parts += find_parts(path, size, user_addresses=user_addresses, first=first, depth=depth + 1) if size else []
        first += size
    return parts


def _read_merged_inputs(prefix: str) -> list[tuple[str, int]]:
    """Return the prefix and number of documents of each input of a merge; nothing for a dataset made by a build."""
    manifest = read_manifest(prefix)
    if manifest is None or manifest.content.account is not None:
        return []
    recorded_inputs, planned_inputs = manifest.content.inputs, manifest.run.plan.inputs[::2]  # .bin and .idx of each
    inputs = []
    for number, file in enumerate(recorded_inputs):
        path = file.path.removesuffix(".bin").removesuffix(".idx")
        is_missing = any(not is_stored(f"{local}.idx") for local in local_paths([path]))
        if is_missing and len(planned_inputs) == len(recorded_inputs):
            path = planned_inputs[number][0].removesuffix(".bin")
        inputs.append((path, file.documents or 0))
    return inputs


def describe_tokenizers(prefixes: Iterable[str]) -> str | None:
    """Return a warning if the manifests of datasets name different tokenizers."""
    names: dict[str, str] = {}
    for prefix in prefixes:
        with contextlib.suppress(FormatError, InputError):  # `dsindex verify` reports damage
            manifest = read_manifest(prefix)
            tokenizer = None if manifest is None else manifest.content.tokenizer
            if tokenizer is not None:
                names.setdefault(tokenizer.sha256, f"{tokenizer.name} ({tokenizer.sha256[:8]}) of {prefix}")
    if len(names) < 2:
        return None
    first, second, *_ = names.values()
    return (
        f"the datasets have different tokenizers, {first} and {second}: the same id is another token, unless these are "
        "two files of one tokenizer; build one of the datasets again"
    )


# Notes about likely mistakes in a job's data: one-sided validation, different tokenizers, loss masks that are not read.
#
# `--split` takes validation from the end of a dataset. If documents are in the order of the inputs, the last documents
# come only from the last inputs, which the provenance shows.

MAX_SHOWN = 3
"""Limit on the datasets, and on the inputs of each, that a note names."""


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
            inputs = _describe_inputs_from(prefix, begin) if begin < end else None
        except (InputError, FormatError):  # `dsindex verify` reports damage
            continue
        if inputs is not None:
            notes.append(f"{count(end - begin, 'document')} of {prefix} from {inputs}")
    if not notes:
        return None
    more = f" and of {count(len(notes) - MAX_SHOWN, 'other dataset')}" if len(notes) > MAX_SHOWN else ""
    return (
        f"valid is the end of each dataset in the order of its inputs: {', '.join(notes[:MAX_SHOWN])}{more}; "
        "`dsindex build --hold-out 1%` draws from all of them"
    )


def _describe_inputs_from(prefix: str, document: int) -> str | None:
    """Name the inputs of a document and all later documents; None if these are all inputs, or unknown."""
    header, manifest = read_header(f"{prefix}.idx"), read_manifest(prefix)
    if manifest is None or header.num_sequences != header.num_documents:
        return None
    parts, provenance = find_parts(prefix, header.num_documents, user_addresses=[prefix]), provenance_path(prefix)
    inputs, first = [file.path for file in manifest.content.inputs], 0
    if parts[0].prefix != prefix:
        inputs = [part.prefix for part in parts]
        first = sum(part.first_document <= document for part in parts) - 1
    elif is_stored(provenance):
        first = int(read_rows(provenance, document, document + 1)[0][0])
    names = [os.path.basename(path) for path in inputs[first : first + MAX_SHOWN]]
    more = f", {len(inputs) - first - MAX_SHOWN:,} more" if len(inputs) - first > MAX_SHOWN else ""
    return f"{len(inputs) - first:,} of {len(inputs):,} inputs ({', '.join(names)}{more})" if first > 0 else None
