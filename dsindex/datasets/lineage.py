"""The lines of the inputs that a dataset's documents come from, as its manifest and provenance record them.

A merged dataset has no provenance: its documents are traced into the datasets that it was merged from.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.formats.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.store.machine import available_cpus
from dsindex.store.read import is_stored
from dsindex.store.urls import local_paths, require_confirmed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


PROVENANCE_SUFFIX = ".provenance.parquet"
DEEPEST = 16
"""Merges of merges; more can only be a dataset that names itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """The record that a document was made from."""

    path: str
    """The input, as it was given to the build."""
    line: int
    """Number of the line, or of a table's row, from 1."""
    offset: int
    """Byte offset of the line in the unpacked text; in a table, its row group."""
    input: int
    """Number of the input in the manifest, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfDataset:
    """A run of a dataset's documents that were taken over from one dataset; of one that was not merged, all."""

    prefix: str
    first_document: int
    """Number of its first document in the whole."""
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDocument:
    """A document in the dataset that it was merged from."""

    prefix: str
    document: int
    """Its number there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigin:
    """The origin of a document."""

    source: SourceLine | None
    """None if it is unknown."""
    part: PartDocument | None
    """The document in the dataset that was merged; None in one that was not merged."""


def find_document_origins(
    prefix: str, num_documents: int, documents: Iterable[int], *, contact: Sequence[str] = ()
) -> tuple[dict[int, DocumentOrigin], tuple[str, ...]]:
    """Return the origins of documents of a dataset, and sentences about those that are unknown.

    Args:
        prefix: The dataset.
        num_documents: Its number of documents.
        documents: Their numbers.
        contact: Addresses whose buckets and servers may be contacted, in addition to the address of the dataset.

    Raises:
        FormatError: If the dataset's own manifest or provenance is damaged or belongs to another dataset.
    """
    given = (prefix, *contact)
    parts, notes, found = find_parts(prefix, num_documents, given=given), dict[str, None](), dict[int, DocumentOrigin]()
    wanted: dict[int, list[int]] = {}
    for document in sorted(set(documents)):
        wanted.setdefault(bisect_right(parts, document, key=lambda part: part.first_document) - 1, []).append(document)
    for number, own in wanted.items():
        part = parts[number]
        there = [document - part.first_document for document in own]
        lines: list[SourceLine] | list[None] = [None] * len(own)
        try:
            require_confirmed(part.prefix, given)
            lines = find_lines(part.prefix, part.num_documents, there)
        except (InputError, FormatError) as error:
            if part.prefix == prefix and isinstance(error, FormatError):
                raise
            notes[error.sentence] = None
        for document, place, line in zip(own, there, lines, strict=True):
            merged = None if part.prefix == prefix else PartDocument(prefix=part.prefix, document=place)
            found[document] = DocumentOrigin(source=line, part=merged)
    return found, tuple(notes)


def find_lines(prefix: str, num_documents: int, documents: Sequence[int]) -> list[SourceLine]:
    """Return the lines of documents, in ascending order, of a dataset that was not merged; each row group is read once.

    Raises:
        InputError: If it has no manifest or no provenance.
        FormatError: If one of them is damaged or belongs to another dataset.
    """
    recorded, provenance = read_manifest(prefix), f"{prefix}{PROVENANCE_SUFFIX}"
    if recorded is None or not is_stored(provenance):
        path, what = (manifest_path(prefix), "manifest") if recorded is None else (provenance, "provenance")
        msg = f"{path}: expected the {what} that a build writes beside its dataset, found none; without it, "
        raise InputError(f"{msg}the lines that documents came from are unknown")
    inputs = recorded.content.inputs
    num_rows, numbers = count_rows(provenance), np.asarray(documents, np.int64)
    if num_rows != num_documents:
        what = f"expected a row for each of {num_documents} documents, got {num_rows}"
        raise FormatError(f"{provenance}: {what}; it belongs to another dataset")

    def read(own: NDArray[np.int64]) -> list[SourceLine]:
        begin = int(own[0])
        columns = [column[own - begin] for column in read_rows(provenance, begin, int(own[-1]) + 1)]
        if columns[0].min() < 0 or columns[0].max() >= len(inputs):
            raise FormatError(f"{provenance}: expected one of {len(inputs)} inputs; it belongs to another dataset")
        return [
            SourceLine(path=inputs[number].path, line=line, offset=offset, input=number)
            for number, offset, line in zip(*(column.tolist() for column in columns), strict=True)
        ]

    groups = np.split(numbers, np.flatnonzero(np.diff(numbers // ROWS_PER_GROUP)) + 1)
    with ThreadPoolExecutor(available_cpus()) as pool:
        return [line for found in pool.map(read, groups) for line in found]


def find_parts(
    prefix: str, num_documents: int, *, given: Iterable[str], first: int = 0, depth: int = 0
) -> list[PartOfDataset]:
    """Return the datasets that a merged one was made of, those of their parts in their place; otherwise itself.

    Args:
        prefix: The dataset.
        num_documents: Its number of documents.
        given: Addresses from the user; a part elsewhere is not opened, so its own parts stay unknown.
        first: The number of its first document in the whole.
        depth: Merges above it.

    Raises:
        FormatError: If a manifest is damaged or belongs to another dataset.
    """
    named = []
    with contextlib.suppress(InputError):
        require_confirmed(prefix, given)
        named = [] if is_stored(f"{prefix}{PROVENANCE_SUFFIX}") else _merged_from(prefix)
    if not named:
        return [PartOfDataset(prefix=prefix, first_document=first, num_documents=num_documents)]
    total = sum(size for _, size in named)
    if total != num_documents or depth == DEEPEST:
        what = f"expected parts of {num_documents} documents together, got {total}"
        raise FormatError(f"{manifest_path(prefix)}: {what}; it belongs to another dataset")
    parts = []
    for own, size in named:
        parts += find_parts(own, size, given=given, first=first, depth=depth + 1) if size else []
        first += size
    return parts


def _merged_from(prefix: str) -> list[tuple[str, int]]:
    """Return the prefixes and numbers of documents of the datasets that were merged; none if it was no merge."""
    recorded = read_manifest(prefix)
    if recorded is None or recorded.content.account is not None:
        return []
    inputs, places = recorded.content.inputs, recorded.run.plan.inputs[::2]  # .bin and .idx of each
    named = []
    for number, each in enumerate(inputs):
        given = each.path.removesuffix(".bin").removesuffix(".idx")
        is_here = all(is_stored(f"{path}.idx") for path in local_paths([given]))  # an address is not contacted
        has_moved = len(places) == len(inputs) and not is_here
        named.append((places[number][0].removesuffix(".bin") if has_moved else given, each.documents or 0))
    return named


def tell_tokenizers_apart(prefixes: Iterable[str]) -> str | None:
    """Return a sentence if the manifests of datasets have different tokenizers, whose ids stand for other tokens."""
    found: dict[str, str] = {}
    for prefix in prefixes:
        with contextlib.suppress(FormatError, InputError):  # verify says what is wrong with it
            recorded = read_manifest(prefix)
            tokenizer = None if recorded is None else recorded.content.tokenizer
            if tokenizer is not None:
                found.setdefault(tokenizer.sha256, f"{tokenizer.name} ({tokenizer.sha256[:8]}) of {prefix}")
    if len(found) < 2:
        return None
    one, other, *_ = found.values()
    return (
        f"the datasets have different tokenizers, {one} and {other}: their ids stand for different tokens, unless "
        "these are two files of one tokenizer; build one of them again"
    )
