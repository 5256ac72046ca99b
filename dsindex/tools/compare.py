"""Compare two datasets: tokens, the first difference and its source, the rules by which they differ, and settings."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.datasets.decoding import decode_tokens
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.origins import find_document_origins
from dsindex.datasets.pbin import PbinDocuments
from dsindex.engine.manifest import read_manifest
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.store.reading import is_stored
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.compare_caches import first_unequal
from dsindex.tools.compare_rules import (
    Difference,
    Documents,
    Edges,
    count_bare,
    find_bare_difference,
    find_difference,
    num_documents,
    propose_edges,
    read_document,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from dsindex.engine.manifest import Content
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.tools.compare_rules import Dataset


# Compare two tokenized datasets: whether their tokens are the same, where they first differ, and by which rule.
#
# Tools that turn the same texts into tokens mostly differ by a rule for the edges of documents: whether EOD ends them,
# whether BOS begins them, and what becomes of empty texts (dsindex.tools.compare_rules).


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two datasets."""

    same_tokens: bool
    """Whether all tokens are the same, one after the other."""
    same_boundaries: bool
    """Whether documents and sequences have the same tokens, too."""
    edges: tuple[Edges, Edges]
    difference: Difference | None
    """The first difference that the rules do not explain; None if they explain all."""
    empty_sequences: tuple[int, int] | None = None
    """Sequences without tokens, if that is all in which documents with the same tokens differ."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return self.same_tokens and self.same_boundaries

    @property
    def is_explained(self) -> bool:
        """Whether nothing differs but the rules for the edges and for empty documents."""
        return self.difference is None


def compare_datasets(
    first: Dataset, second: Dataset, *, on_progress: Callable[[int], None] | None = None
) -> Comparison:
    """Compare the tokens of two datasets, document by document, in bounded memory.

    Args:
        first: One dataset.
        second: Another one; token types may differ.
        on_progress: Called with the number of documents of the first one that were compared, from time to time.
    """
    one, other = Documents(first), Documents(second)
    plain = Edges(), Edges()
    difference = find_difference(one, other, on_progress=on_progress)
    if difference is None:
        same = _have_same_sequences(first, second)
        return Comparison(
            same_tokens=True,
            same_boundaries=same,
            edges=plain,
            difference=None,
            empty_sequences=None if same else _count_empty_sequences(first, second),
        )
    edges = propose_edges(first, second)
    counted = count_bare(one, edges[0]), count_bare(other, edges[1])
    return Comparison(
        same_tokens=len(one.tokens) == len(other.tokens) and first_unequal(one.tokens, other.tokens) is None,
        same_boundaries=False,
        edges=counted,
        difference=find_bare_difference((one, other), edges),
    )


def _have_same_sequences(first: Dataset, second: Dataset) -> bool:
    """Tell whether two datasets with the same documents cut them into the same sequences; a `.pbin` has none."""
    if not isinstance(first, IndexedDataset) or not isinstance(second, IndexedDataset):
        return True
    pairs = (
        (first.sequence_lengths, second.sequence_lengths),
        (first.document_indices, second.document_indices),
    )
    return all(len(a) == len(b) and first_unequal(a, b) is None for a, b in pairs)


def _count_empty_sequences(first: Dataset, second: Dataset) -> tuple[int, int] | None:
    """Return the sequences without tokens of two datasets with the same documents; None if others differ, too."""
    if not isinstance(first, IndexedDataset) or not isinstance(second, IndexedDataset):
        return None
    a, b = (dataset.sequence_lengths[dataset.sequence_lengths > 0] for dataset in (first, second))
    return (len(first) - len(a), len(second) - len(b)) if np.array_equal(a, b) else None


# Compare the loss masks and block layouts of instruction data; its tokens are a dataset like any other.

BLOCK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskComparison:
    """The result of comparing the loss masks and block layouts of two sets of instruction data."""

    trainable: tuple[int, int]
    difference: Difference | None
    """The first document whose mask differs, and the token; None if there is none."""
    layouts: dict[str, bool | None]
    """Name of each block layout, such as `packing_4096` -> whether it is the same; None if only one side has it."""

    @property
    def is_same(self) -> bool:
        """Whether masks and all layouts that both have are the same; layouts can be made anew from the lengths."""
        return self.difference is None and False not in self.layouts.values()


def compare_masks(first: str, second: str) -> MaskComparison:
    """Compare the loss masks and block layouts beside two prefixes of instruction data.

    Raises:
        FormatError: If a file cannot be read.
    """
    one, other = (Documents(IndexedDataset(f"{prefix}{MASK_SUFFIX}")) for prefix in (first, second))
    return MaskComparison(
        trainable=(_count_trainable(one), _count_trainable(other)),
        difference=find_difference(one, other),
        layouts=_compare_layouts(first, second),
    )


def _count_trainable(masks: Documents) -> int:
    tokens = masks.tokens
    return sum(int(np.count_nonzero(tokens[begin : begin + BLOCK])) for begin in range(0, len(tokens), BLOCK))


def _compare_layouts(first: str, second: str) -> dict[str, bool | None]:
    sides = [
        {path[len(prefix) + 1 : -len(".idx")]: path.removesuffix(".idx") for path in _find_layouts(prefix)}
        for prefix in (first, second)
    ]
    one, other = sides
    return {
        name: None
        if name not in one or name not in other
        else find_difference(*(Documents(IndexedDataset(side[name])) for side in sides)) is None
        for name in sorted(one.keys() | other.keys())
    }


def _find_layouts(prefix: str) -> list[str]:
    return glob.glob(f"{packing_prefix(glob.escape(prefix), 0)[:-1]}*.idx")


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
        raise InputError(
            f"{other}: expected the prefix of instruction data to compare with {given}, got something else; to compare "
            f"tokens alone, give {given}{TEXT_SUFFIX}"
        )
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
        raise FormatError(f"{path}: expected integer tokens, got {dataset.dtype}")
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
