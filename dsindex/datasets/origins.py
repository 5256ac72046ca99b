"""The lines of the inputs that a dataset's documents come from, as its manifest and provenance record them.

A merged dataset has no provenance: its documents are traced into the datasets that it was merged from.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.errors import FormatError, InputError
from dsindex.json_text import decode_json
from dsindex.machine import available_cpus
from dsindex.store.reading import is_stored, open_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray


PROVENANCE_SUFFIX = ".provenance.parquet"
LARGEST_MANIFEST_BYTES = 256 << 20
DEEPEST = 16
"""Merges of merges; more can only be a dataset that names itself."""

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    prefix: str, num_documents: int, documents: Sequence[int]
) -> tuple[list[DocumentOrigin], tuple[str, ...]]:
    """Return the origins of documents of a dataset, and sentences about those that are unknown.

    Raises:
        FormatError: If the dataset's own manifest or provenance is damaged or belongs to another dataset.
    """
    parts, notes, found = find_parts(prefix, num_documents), dict[str, None](), dict[int, DocumentOrigin]()
    numbers = [bisect_right(parts, each, key=lambda part: part.first_document) - 1 for each in documents]
    for number in sorted(set(numbers)):
        part = parts[number]
        wanted = [document for document, own in zip(documents, numbers, strict=True) if own == number]
        there = [document - part.first_document for document in wanted]
        lines: list[SourceLine] | list[None] = [None] * len(wanted)
        try:
            lines = find_lines(part.prefix, part.num_documents, there)
        except (InputError, FormatError) as error:
            if part.prefix == prefix and isinstance(error, FormatError):
                raise
            notes[str(error)] = None
        for document, own, line in zip(wanted, there, lines, strict=True):
            place = None if part.prefix == prefix else PartDocument(prefix=part.prefix, document=own)
            found[document] = DocumentOrigin(source=line, part=place)
    return [found[document] for document in documents], tuple(notes)


def find_lines(prefix: str, num_documents: int, documents: Sequence[int]) -> list[SourceLine]:
    """Return the line of each document of a dataset that was not merged; each row group is read once.

    Raises:
        InputError: If it has no manifest or no provenance.
        FormatError: If one of them is damaged or belongs to another dataset.
    """
    manifest, provenance = f"{prefix}.manifest.json", f"{prefix}{PROVENANCE_SUFFIX}"
    for path, what in ((manifest, "manifest"), (provenance, "provenance")):
        if not is_stored(path):
            msg = f"{path}: expected the {what} that a build writes beside its dataset, found none; without it, "
            raise InputError(f"{msg}the lines that documents came from are unknown")
    inputs = _inputs_of(manifest)
    num_rows = count_rows(provenance)
    if num_rows != num_documents:
        what = f"expected a row for each of {num_documents} documents, got {num_rows}"
        raise FormatError(f"{provenance}: {what}; it belongs to another dataset")
    rows = dict[int, tuple[int, int, int]]()

    def read(own: NDArray[np.int64]) -> dict[int, tuple[int, int, int]]:
        begin = int(own[0])
        columns = read_rows(provenance, begin, int(own[-1]) + 1)
        return dict(
            zip(own.tolist(), zip(*(column[own - begin].tolist() for column in columns), strict=True), strict=True)
        )

    numbers = np.unique(np.asarray(documents, np.int64))
    groups = np.split(numbers, np.flatnonzero(np.diff(numbers // ROWS_PER_GROUP)) + 1) if len(numbers) else []
    for found in map_in_threads(read, groups):
        rows.update(found)
    largest = max((number for number, _, _ in rows.values()), default=-1)
    if largest >= len(inputs) or any(number < 0 for number, _, _ in rows.values()):
        what = f"expected one of {len(inputs)} inputs, got input {largest}"
        raise FormatError(f"{provenance}: {what}; it belongs to another dataset")
    ordered = (rows[int(document)] for document in documents)
    return [
        SourceLine(path=str(inputs[number]["path"]), line=line, offset=offset, input=number)
        for number, offset, line in ordered
    ]


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results for all items, in order; one item alone is worth no thread."""
    if len(items) < 2:
        return list(map(function, items))
    with ThreadPoolExecutor(available_cpus()) as pool:
        return list(pool.map(function, items))


def find_parts(prefix: str, num_documents: int, *, first: int = 0, depth: int = 0) -> list[PartOfDataset]:
    """Return the datasets that a merged one was made of, those of their parts in their place; otherwise itself.

    Args:
        prefix: The dataset.
        num_documents: Its number of documents.
        first: The number of its first document in the whole.
        depth: Merges above it.

    Raises:
        FormatError: If a manifest is damaged or belongs to another dataset.
    """
    path = f"{prefix}.manifest.json"
    named = _read_parts(path) if is_stored(path) and not is_stored(f"{prefix}{PROVENANCE_SUFFIX}") else []
    if not named:
        return [PartOfDataset(prefix=prefix, first_document=first, num_documents=num_documents)]
    total = sum(size for _, size in named)
    if total != num_documents or depth == DEEPEST:
        what = f"expected parts of {num_documents} documents together, got {total}"
        raise FormatError(f"{path}: {what}; it belongs to another dataset")
    parts = []
    for own, size in named:
        parts += find_parts(own, size, first=first, depth=depth + 1) if size else []
        first += size
    return parts


def _read_parts(path: str) -> list[tuple[str, int]]:
    """Return the prefixes and numbers of documents of the datasets that were merged; none if it was no merge.

    Raises:
        FormatError: If the manifest is damaged.
    """
    inputs, manifest = _inputs_of(path), read_manifest(path)
    if manifest["content"].get("account") is not None or not all(type(each.get("documents")) is int for each in inputs):
        return []
    try:
        planned = [str(entry[0]) for entry in manifest["run"].get("plan", {}).get("inputs", [])]
    except (LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    places = planned[::2] if len(planned) == 2 * len(inputs) else [""] * len(inputs)  # .bin and .idx of each
    named = []
    for entry, place in zip(inputs, places, strict=True):
        given = str(entry["path"]).removesuffix(".bin").removesuffix(".idx")
        has_moved = place and not is_stored(f"{given}.idx")
        named.append((place.removesuffix(".bin") if has_moved else given, int(entry["documents"])))
    return named


def read_manifest(path: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return a manifest as JSON, unchecked.

    Raises:
        FormatError: If it cannot be read.
    """
    try:
        with open_readable(path) as file:
            if file.size_bytes > LARGEST_MANIFEST_BYTES:
                raise ValueError(f"expected at most {LARGEST_MANIFEST_BYTES} bytes")
            return decode_json(file.read())
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def tell_tokenizers_apart(prefixes: Iterable[str]) -> str | None:
    """Return a sentence if the manifests of datasets have different tokenizers, whose ids stand for other tokens."""
    found: dict[str, str] = {}
    for prefix in prefixes:
        path = f"{prefix}.manifest.json"
        try:
            tokenizer = read_manifest(path)["content"]["tokenizer"] if is_stored(path) else None
            if tokenizer is not None:
                found.setdefault(tokenizer["sha256"], f"{tokenizer['name']} ({tokenizer['sha256'][:8]}) of {prefix}")
        except (FormatError, InputError, KeyError, TypeError):  # verify says what is wrong with it
            continue
    if len(found) < 2:
        return None
    one, other, *_ = found.values()
    return (
        f"the datasets have different tokenizers, {one} and {other}: their ids stand for different tokens, unless "
        "these are two files of one tokenizer; build one of them again"
    )


def _inputs_of(path: str) -> list[dict[str, Any]]:
    """Return the inputs in a manifest.

    Raises:
        FormatError: If it is damaged.
    """
    manifest = read_manifest(path)
    try:
        inputs: list[dict[str, Any]] = list(manifest["content"]["inputs"])
        if not all(isinstance(entry["path"], str) for entry in inputs):
            raise TypeError("expected the paths of inputs")
    except (LookupError, TypeError) as error:
        raise _damaged(path, error) from error
    return inputs


def _damaged(path: str, error: Exception) -> FormatError:
    return FormatError(f"{path}: cannot be read as a manifest ({error}); restore the file")
