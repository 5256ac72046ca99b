"""The lines of the inputs that a dataset's documents come from, as its manifest and provenance record them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.json_text import decode_json
from dsindex.objects.urls import absolute
from dsindex.readable import is_stored, open_stored
from dsindex.shards.provenance import ROWS_PER_GROUP, count_rows, groups_with_line, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
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
            msg = f"expected at most {LARGEST_MANIFEST_BYTES} bytes"
            raise ValueError(msg)
        return decode_json(content)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


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
        msg = f"{path}: expected the paths of inputs, got other values; restore the file"
        raise FormatError(msg)
    places = planned if len(planned) == len(given) else [absolute(name) for name in given]
    return given, places


def _damaged(path: str, error: Exception) -> FormatError:
    return FormatError(f"{path}: cannot be read as a manifest ({error}); restore the file")
