"""Compare two datasets: tokens, the first difference and its source, the rules by which they differ, and settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from dsindex.comparing.datasets import compare_datasets
from dsindex.comparing.documents import num_documents, read_document
from dsindex.comparing.instruction import compare_masks
from dsindex.datasets.decoding import decode_tokens
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.pbin import PbinDocuments
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.readable import is_stored
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tracing.merged import find_document_origins
from workflows.state.manifest import read_manifest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dsindex.comparing.datasets import Comparison
    from dsindex.comparing.documents import Dataset
    from dsindex.comparing.instruction import MaskComparison
    from workflows.progress.reporter import Reporter
    from workflows.state.manifest import Content

PBIN_SUFFIX = ".pbin"
CONTEXT_TOKENS = 8
"""Tokens that are shown before and after the first that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two datasets."""

    path: str
    """The prefix, or the path of a `.pbin`."""
    num_documents: int
    num_tokens: int
    dtype: str
    content: Content | None
    """The content of its manifest; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The first document that differs, in one dataset."""

    document: int
    source: str | None
    """Input and line; None if there is no provenance."""
    before: tuple[int, ...]
    """Ids before the first that differs."""
    ids: tuple[int, ...]
    """Ids from there on."""
    text: str | None
    """Their text; None without a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """What was found."""

    sides: tuple[Side, Side]
    comparison: Comparison
    excerpts: tuple[Excerpt | None, Excerpt | None]
    """The first difference that no rule explains; None where there is no such document."""
    same_text: bool | None
    """Whether the documents that differ have the same text; None if that is not known."""
    settings: tuple[tuple[str, str, str], ...]
    """Names of what the manifests differ in, with both values."""
    masks: MaskComparison | None = None
    """Of instruction data."""
    mask_sources: tuple[str | None, str | None] = (None, None)
    """Input and line of the first document whose mask differs."""

    @property
    def is_same(self) -> bool:
        """Whether the datasets are the same."""
        return self.comparison.is_same and (self.masks is None or self.masks.is_same)


def run_compare(first: str, second: str, *, tokenizer: str | None, reporter: Reporter) -> CompareReport:
    """Compare two datasets.

    Args:
        first: A prefix, also of instruction data, one of the files of an MMIDIDX pair, or a `.pbin`.
        second: The same of the other.
        tokenizer: Path or name of the tokenizer that shows texts; None: the one in each manifest.
        reporter: Shows progress.

    Raises:
        InputError: If one is not there.
        FormatError: If one cannot be read.
        TokenizerError: If the given tokenizer cannot be read.
    """
    if tokenizer is not None:
        load_tokenizer(tokenizer)  # before the long work
    prefixes = _instruction_prefixes(first, second)
    paths = (
        (_path_of(first), _path_of(second)) if prefixes is None else tuple(f"{each}{TEXT_SUFFIX}" for each in prefixes)
    )
    one, other = (_open(path) for path in paths)
    reporter.stage("compare", total=num_documents(one), unit="documents")
    done = 0

    def advance(documents: int) -> None:
        nonlocal done
        reporter.advance(max(0, documents - done))
        done = max(done, documents)

    comparison = compare_datasets(one, other, on_progress=advance)
    reporter.end_stage()
    sides = _describe(paths[0], one), _describe(paths[1], other)
    excerpts: tuple[Excerpt | None, Excerpt | None] = (None, None)
    same_text = None
    if comparison.difference is not None:
        token, numbers = comparison.difference.token, comparison.difference.documents
        shifts = tuple(
            _shift(dataset, number, edges.first)
            for dataset, number, edges in zip((one, other), numbers, comparison.edges, strict=True)
        )
        excerpts = (
            _excerpt(sides[0], one, numbers[0], token + shifts[0], tokenizer),
            _excerpt(sides[1], other, numbers[1], token + shifts[1], tokenizer),
        )
        same_text = _have_same_text(sides, (one, other), numbers, comparison, tokenizer)
    masks = None if prefixes is None else compare_masks(*prefixes)
    numbers = (None, None) if masks is None or masks.difference is None else masks.difference.documents
    return CompareReport(
        masks=masks,
        mask_sources=(_find_source(sides[0], numbers[0]), _find_source(sides[1], numbers[1])),
        sides=sides,
        comparison=comparison,
        excerpts=excerpts,
        same_text=same_text,
        settings=tuple(_differing_settings(sides[0].content, sides[1].content)),
    )


def _path_of(given: str) -> str:
    stem, suffix = os.path.splitext(given)
    return stem if suffix in {".bin", ".idx"} else given


def _instruction_prefixes(first: str, second: str) -> tuple[str, str] | None:
    """Return the prefixes of instruction data; None if neither is.

    Raises:
        InputError: If only one of them is.
    """
    found = _is_instruction(first), _is_instruction(second)
    if found[0] != found[1]:
        given, other = (first, second) if found[0] else (second, first)
        msg = (
            f"{other}: expected the prefix of instruction data to compare with {given}, got something else; to compare "
            f"tokens alone, give {given}{TEXT_SUFFIX}"
        )
        raise InputError(msg)
    return (first, second) if found[0] else None


def _is_instruction(prefix: str) -> bool:
    return all(is_stored(f"{prefix}{suffix}.idx") for suffix in (TEXT_SUFFIX, MASK_SUFFIX))


def _open(path: str) -> Dataset:
    if path.endswith(PBIN_SUFFIX):
        return PbinDocuments(path)
    if not is_stored(f"{path}.idx"):
        msg = f"{path}: expected a dataset, found no {path}.idx; give a prefix, one of its files, or a .pbin"
        raise InputError(msg)
    dataset = IndexedDataset(path)
    if dataset.dtype.kind not in "iu":
        msg = f"{path}: expected integer tokens, got {dataset.dtype}"
        raise FormatError(msg)
    return dataset


def _describe(path: str, dataset: Dataset) -> Side:
    dtype = str(dataset.dtype) if isinstance(dataset, IndexedDataset) else f"uint{8 * dataset.header.token_bytes}"
    manifest = read_manifest(path.removesuffix(PBIN_SUFFIX))
    return Side(
        path=path,
        num_documents=num_documents(dataset),
        num_tokens=dataset.num_tokens,
        dtype=dtype,
        content=None if manifest is None else manifest.content,
    )


def _shift(dataset: Dataset, number: int | None, first: int | None) -> int:
    """Return how many tokens at the start of a document are no part of what was compared."""
    if number is None or first is None:
        return 0
    document = read_document(dataset, number)
    return int(len(document) > 0 and int(document[0]) == first)


def _excerpt(side: Side, dataset: Dataset, number: int | None, token: int, tokenizer: str | None) -> Excerpt | None:
    if number is None:
        return None
    document = read_document(dataset, number)
    shown = document[token : token + CONTEXT_TOKENS]
    return Excerpt(
        document=number,
        source=_find_source(side, number),
        before=tuple(document[max(0, token - CONTEXT_TOKENS) : token].tolist()),
        ids=tuple(shown.tolist()),
        text=_decode(side, shown, tokenizer),
    )


def _find_source(side: Side, number: int | None) -> str | None:
    """Return the input and the line of a document."""
    if number is None or side.content is None:
        return None
    try:
        [origin], _ = find_document_origins(side.path.removesuffix(PBIN_SUFFIX), side.num_documents, [number])
    except FormatError:
        return None  # a damaged file, which `dsindex verify` names, does not matter for the tokens
    return None if origin.source is None else f"{origin.source.path}, line {origin.source.line:,}"


def _decode(side: Side, tokens: ArrayLike, tokenizer: str | None) -> str | None:
    try:
        return decode_tokens(tokens, prefix=side.path.removesuffix(PBIN_SUFFIX), tokenizer=tokenizer)
    except DsindexError:
        if tokenizer is not None:
            raise
        return None


def _have_same_text(
    sides: tuple[Side, Side],
    datasets: tuple[Dataset, Dataset],
    numbers: tuple[int | None, int | None],
    comparison: Comparison,
    tokenizer: str | None,
) -> bool | None:
    texts = []
    for side, dataset, number, edges in zip(sides, datasets, numbers, comparison.edges, strict=True):
        if number is None:
            return None
        document = read_document(dataset, number)
        begin = _shift(dataset, number, edges.first)
        end = len(document) - int(edges.last is not None and len(document) > 0 and int(document[-1]) == edges.last)
        texts.append(_decode(side, document[begin:end], tokenizer))
    return None if None in texts else texts[0] == texts[1]


def _differing_settings(one: Content | None, other: Content | None) -> list[tuple[str, str, str]]:
    """Return what two manifests differ in."""
    if one is None or other is None:
        return []
    rows = [("inputs", _inputs(one), _inputs(other)), ("tokenizer", _tokenizer(one), _tokenizer(other))]
    options, others = (content.options.model_dump(exclude_none=True) for content in (one, other))
    rows += [
        (name.replace("_", "-"), _show(options.get(name)), _show(others.get(name)))
        for name in sorted(options.keys() | others.keys())
    ]
    if one.account is not None and other.account is not None:
        counts, other_counts = one.account.model_dump(), other.account.model_dump()
        rows += [(name.replace("_", " "), f"{counts[name]:,}", f"{other_counts[name]:,}") for name in counts]
    return [row for row in rows if row[1] != row[2]]


def _inputs(content: Content) -> str:
    names = ", ".join(os.path.basename(file.path) for file in content.inputs[:3])
    fingerprints = xxhash.xxh3_64_hexdigest("".join(file.fingerprint or "" for file in content.inputs).encode())[:8]
    more = f" and {len(content.inputs) - 3:,} more" if len(content.inputs) > 3 else ""
    return f"{names}{more} (content {fingerprints})"


def _tokenizer(content: Content) -> str:
    tokenizer = content.tokenizer
    return (
        "none"
        if tokenizer is None
        else f"{tokenizer.name} ({tokenizer.sha256[:12]}, {tokenizer.vocabulary_size:,} ids)"
    )


def _show(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
