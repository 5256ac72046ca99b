"""The datasets that a merged one was made of, so that its documents are traced into them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError, InputError
from dsindex.readable import is_stored
from dsindex.tracing.origins import PROVENANCE_SUFFIX, Origins, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.tracing.origins import SourceLine

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
    counts = [count for _, count in named]
    if sum(counts) != num_documents or depth == DEEPEST:
        msg = f"{path}: expected parts of {num_documents} documents together, got {sum(counts)}; it "
        raise FormatError(f"{msg}belongs to another dataset")
    firsts = itertools.accumulate(counts, initial=first)
    for (own, count), begin in zip(named, firsts, strict=False):
        if count:
            yield from _find(own, begin, count, depth=depth + 1)


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
        msg = f"{path}: cannot be read as a manifest ({error}); restore the file"
        raise FormatError(msg) from error
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
