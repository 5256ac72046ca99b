"""Several datasets side by side."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workflows.reporting.amounts import number, percent
from workflows.reporting.bars import draw_shares
from workflows.reporting.model import Block, Table
from workflows.reporting.pictures import draw_lengths_of_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.reporting.lengths import LengthBin

MOST_LINES = 6
"""Datasets whose lengths are lines of one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """The numbers of a dataset that are compared with those of others."""

    name: str
    documents: int
    tokens: int
    median: int | None
    """Tokens that half of the documents have at most."""
    longest: int | None
    extra_documents: int
    """Repetitions of documents."""
    extra_tokens: int
    bytes_per_token: float | None
    used_ids: int
    vocabulary_size: int | None
    lengths: tuple[LengthBin, ...]
    tokenizer: str | None
    digest: str | None
    """Digest of the tokens, if it is recorded."""


def show_overview(datasets: Sequence[DatasetSummary]) -> tuple[Block, ...]:
    """Return what compares datasets; nothing for a single one."""
    if len(datasets) < 2:
        return ()
    tokens = sum(each.tokens for each in datasets)
    rows = [
        (
            each.name,
            number(each.documents),
            number(each.tokens),
            percent(each.tokens, tokens),
            "-" if each.median is None else number(each.median),
            "-" if each.longest is None else number(each.longest),
            "-" if each.bytes_per_token is None else f"{each.bytes_per_token:.2f}",
            percent(each.extra_documents, each.documents),
            "-" if each.vocabulary_size is None else percent(each.used_ids, each.vocabulary_size),
            each.tokenizer or "-",
        )
        for each in datasets
    ]
    head = (
        *("dataset", "documents", "tokens", "share", "median length", "longest", "bytes per token"),
        *("repeated", "ids used", "tokenizer"),
    )
    table = Table(caption="Datasets", head=head, rows=tuple(rows), texts=frozenset({0, 9}))
    pictures = []
    if tokens:
        shares = {each.name: each.tokens for each in datasets}
        pictures.append(draw_shares("Tokens by dataset", "dataset", shares, unit="tokens"))
    lined = sorted((each for each in datasets if each.lengths), key=lambda each: -each.tokens)[:MOST_LINES]
    names = {each.name for each in lined}
    if len(lined) > 1:
        lengths = {each.name: each.lengths for each in datasets if each.name in names}
        pictures.append(draw_lengths_of_many(lengths))
    sentences = [*_same_tokens(datasets), *_different_tokenizers(datasets)]
    return (Block(title="Datasets", sentences=tuple(sentences), tables=(table,), pictures=tuple(pictures)),)


def _same_tokens(datasets: Sequence[DatasetSummary]) -> list[str]:
    by_digest: dict[str, list[str]] = defaultdict(list)
    for each in datasets:
        if each.digest is not None:
            by_digest[each.digest].append(each.name)
    return [f"The same tokens, by their digests: {', '.join(names)}." for names in by_digest.values() if len(names) > 1]


def _different_tokenizers(datasets: Sequence[DatasetSummary]) -> list[str]:
    known = {each.tokenizer for each in datasets if each.tokenizer is not None}
    return [] if len(known) < 2 else [f"The tokenizers differ: {', '.join(sorted(known))}."]
