"""The lines of the inputs that a dataset's documents come from, as its manifest and provenance record them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, groups_with_line, read_rows
from dsindex.errors import FormatError, InputError
from dsindex.json_text import decode_json
from dsindex.machine import available_cpus
from dsindex.store.reading import is_stored, open_stored
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


PROVENANCE_SUFFIX = ".provenance.parquet"
LARGEST_MANIFEST_BYTES = 256 << 20

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


class Origins:
    """The origins of one dataset's documents.

    Args:
        prefix: The dataset.
        num_documents: Its number of documents.

    Raises:
        InputError: If it has no manifest or no provenance.
        FormatError: If one of them is damaged or belongs to another dataset.
    """

    def __init__(self, prefix: str, num_documents: int) -> None:
        self.prefix = prefix
        self._provenance = f"{prefix}{PROVENANCE_SUFFIX}"
        manifest = f"{prefix}.manifest.json"
        for path, what in ((manifest, "manifest"), (self._provenance, "provenance")):
            if not is_stored(path):
                msg = f"{path}: expected the {what} that a build writes beside its dataset, found none; without it, "
                raise InputError(f"{msg}the lines that documents came from are unknown")
        self.inputs, self._absolute = _read_inputs(manifest)
        """Paths of the inputs, as they were given."""
        num_rows = count_rows(self._provenance)
        if num_rows != num_documents:
            msg = f"{self._provenance}: expected a row for each of {num_documents} documents, got {num_rows}; it "
            raise FormatError(f"{msg}belongs to another dataset")

    def of(self, documents: Sequence[int]) -> list[SourceLine]:
        """Return the origin of each document; each row group of the provenance is read once.

        Raises:
            FormatError: If the provenance is damaged.
        """
        rows: dict[int, tuple[int, int, int]] = {}
        numbers = np.unique(np.asarray(documents, np.int64))

        def read(own: NDArray[np.int64]) -> dict[int, tuple[int, int, int]]:
            begin = int(own[0])
            columns = read_rows(self._provenance, begin, int(own[-1]) + 1)
            picked = (column[own - begin].tolist() for column in columns)
            return dict(zip(own.tolist(), zip(*picked, strict=True), strict=True))

        groups = np.split(numbers, np.flatnonzero(np.diff(numbers // ROWS_PER_GROUP)) + 1) if len(numbers) else []
        for found in map_in_threads(read, groups):
            rows.update(found)
        return [self._line(*rows[int(document)]) for document in documents]

    def absolute_path(self, number: int) -> str:
        """Return where an input was when the dataset was built."""
        return self._absolute[number]

    def has_input(self, path: str) -> bool:
        """Tell whether a path is one of the inputs."""
        return bool(self._numbers_of(path))

    def find(self, path: str, line: int) -> list[int]:
        """Return the documents that were made from a line; only row groups that may have it are read.

        Raises:
            FormatError: If the provenance is damaged.
        """
        wanted = np.array(self._numbers_of(path), np.int32)

        def search(group: int) -> list[int]:
            begin = group * ROWS_PER_GROUP
            inputs, _, lines = read_rows(self._provenance, begin, min(begin + ROWS_PER_GROUP, num_rows))
            found = np.flatnonzero(lines == line)
            return [begin + int(row) for row in found[np.isin(inputs[found], wanted)]]

        num_rows = count_rows(self._provenance)
        groups = groups_with_line(self._provenance, wanted.tolist(), line)
        return [document for found in map_in_threads(search, groups) for document in found]

    def _numbers_of(self, path: str) -> list[int]:
        absolute_path = absolute(path)
        return [
            number
            for number, (given, there) in enumerate(zip(self.inputs, self._absolute, strict=True))
            if given == path or there == absolute_path
        ]

    def _line(self, number: int, offset: int, line: int) -> SourceLine:
        if not 0 <= number < len(self.inputs):
            msg = f"{self._provenance}: expected one of {len(self.inputs)} inputs, got input {number}; it belongs to "
            raise FormatError(f"{msg}another dataset")
        return SourceLine(path=self.inputs[number], line=line, offset=offset, input=number)


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results for all items, in order; one item alone is worth no thread."""
    if len(items) < 2:
        return list(map(function, items))
    with ThreadPoolExecutor(available_cpus()) as pool:
        return list(pool.map(function, items))


def read_manifest(path: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return a manifest as JSON, unchecked.

    Raises:
        FormatError: If it cannot be read.
    """
    try:
        with open_stored(path) as file:
            content = file.read(LARGEST_MANIFEST_BYTES + 1)
        if len(content) > LARGEST_MANIFEST_BYTES:
            raise ValueError(f"expected at most {LARGEST_MANIFEST_BYTES} bytes")
        return decode_json(content)
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


def _read_inputs(path: str) -> tuple[list[str], list[str]]:
    """Return the inputs in a manifest as they were given, and where they were.

    Raises:
        FormatError: If the manifest is damaged.
    """
    manifest = read_manifest(path)
    try:
        given = [entry["path"] for entry in manifest["content"]["inputs"]]
        planned = [entry[0] for entry in manifest["run"].get("plan", {}).get("inputs", [])]
    except (LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if not all(isinstance(name, str) for name in [*given, *planned]):
        raise FormatError(f"{path}: expected the paths of inputs, got other values; restore the file")
    places = planned if len(planned) == len(given) else [absolute(name) for name in given]
    return given, places


def _damaged(path: str, error: Exception) -> FormatError:
    return FormatError(f"{path}: cannot be read as a manifest ({error}); restore the file")


# The datasets that a merged one was made of, so that its documents are traced into them.

DEEPEST = 16
"""Merges of merges; more can only be a dataset that names itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfDataset:
    """A run of a dataset's documents that were taken over from one dataset; of one that was not merged, all."""

    prefix: str
    first_document: int
    """Number of its first document in the whole."""
    num_documents: int
    is_whole: bool = False
    """Whether the dataset was not merged, or it is not known from what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDocument:
    """A document in the dataset that it was merged from."""

    prefix: str
    document: int
    """Its number there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigin:
    """Where a document comes from, as far as that is known."""

    source: SourceLine | None
    part: PartDocument | None
    """The document in the dataset that was merged; None in one that was not merged."""


def find_parts(prefix: str, num_documents: int) -> list[PartOfDataset]:
    """Return the datasets that a merged one was made of, those of their parts in their place; otherwise itself.

    Args:
        prefix: The dataset.
        num_documents: Its number of documents.

    Raises:
        FormatError: If a manifest is damaged or belongs to another dataset.
    """
    parts = list(_find(prefix, 0, num_documents, depth=0))
    if len(parts) == 1 and parts[0].prefix == prefix:
        return [PartOfDataset(prefix=prefix, first_document=0, num_documents=num_documents, is_whole=True)]
    return parts


def part_number(parts: Sequence[PartOfDataset], document: int) -> int:
    """Return the number of the part that has a document."""
    return bisect_right(parts, document, key=lambda part: part.first_document) - 1


def find_document_origins(
    prefix: str, num_documents: int, documents: Sequence[int]
) -> tuple[list[DocumentOrigin], tuple[str, ...]]:
    """Return the origins of documents of a dataset, and sentences about those that are unknown.

    Raises:
        FormatError: If the dataset's own manifest or provenance is damaged or belongs to another dataset.
    """
    parts = find_parts(prefix, num_documents)
    notes: dict[str, None] = {}
    wanted: dict[int, list[int]] = {}
    for position, document in enumerate(documents):
        wanted.setdefault(part_number(parts, document), []).append(position)
    found: list[DocumentOrigin | None] = [None] * len(documents)
    for number, positions in wanted.items():
        part = parts[number]
        own = [documents[position] - part.first_document for position in positions]
        lines: list[SourceLine] | list[None] = [None] * len(own)
        try:
            lines = Origins(part.prefix, part.num_documents).of(own)
        except InputError as error:
            notes[str(error)] = None
        except FormatError as error:
            if part.is_whole:
                raise
            notes[str(error)] = None
        for position, document, line in zip(positions, own, lines, strict=True):
            place = None if part.is_whole else PartDocument(prefix=part.prefix, document=document)
            found[position] = DocumentOrigin(source=line, part=place)
    return [each for each in found if each is not None], tuple(notes)


def _find(prefix: str, first: int, num_documents: int, *, depth: int) -> Iterator[PartOfDataset]:
    path = f"{prefix}.manifest.json"
    named = _read_parts(path) if is_stored(path) and not is_stored(f"{prefix}{PROVENANCE_SUFFIX}") else []
    if not named:
        yield PartOfDataset(prefix=prefix, first_document=first, num_documents=num_documents)
        return
    counts = [size for _, size in named]
    if sum(counts) != num_documents or depth == DEEPEST:
        msg = f"{path}: expected parts of {num_documents} documents together, got {sum(counts)}; it "
        raise FormatError(f"{msg}belongs to another dataset")
    firsts = itertools.accumulate(counts, initial=first)
    for (own, size), begin in zip(named, firsts, strict=False):
        if size:
            yield from _find(own, begin, size, depth=depth + 1)


def _read_parts(path: str) -> list[tuple[str, int]]:
    """Return the prefixes and numbers of documents of the datasets that were merged; none if it was no merge.

    Raises:
        FormatError: If the manifest is damaged.
    """
    manifest = read_manifest(path)
    try:
        inputs: list[dict[str, Any]] = manifest["content"]["inputs"]
        named = [(str(entry["path"]), int(entry.get("documents", -1))) for entry in inputs]
        files = [entry[0] for entry in manifest["run"].get("plan", {}).get("inputs", [])]
        is_merged = manifest["content"].get("account") is None and all(count >= 0 for _, count in named)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as a manifest ({error}); restore the file") from error
    if not is_merged:
        return []
    absolute = files[::2] if len(files) == 2 * len(named) else [None] * len(named)  # .bin and .idx of each
    return [(_existing(given, there), count) for (given, count), there in zip(named, absolute, strict=True)]


def _existing(given: str, there: object) -> str:
    """Return where a part is: as it was given, or where that was."""
    prefix = given.removesuffix(".bin").removesuffix(".idx")
    if not is_stored(f"{prefix}.idx") and isinstance(there, str):
        return there.removesuffix(".bin")
    return prefix
