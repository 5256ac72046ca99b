"""Measure one dataset, and put together its section of the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import DsindexError, FormatError
from dsindex.inspection.lengths import summarize_lengths
from dsindex.inspection.stores import IndexedStore, size_of
from dsindex.readable import stored_size
from dsindex.reporting.measuring import find_spans, measure
from dsindex.tracing.merged import find_document_origins
from workflows.execution.cpus import available_cpus
from workflows.jobs.report_opening import KnownSources
from workflows.reporting.amounts import number, percent, short, size
from workflows.reporting.documents import show_lengths, show_sources, show_unusual
from workflows.reporting.examples import DocumentTexts, choose_examples, draw_evenly, make_examples
from workflows.reporting.model import Section
from workflows.reporting.overview import DatasetSummary
from workflows.reporting.run import show_digests, show_records, show_run
from workflows.reporting.tokens import find_foreign_ids, show_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.inspection.lengths import LengthSummary
    from dsindex.inspection.stores import PackedStore
    from dsindex.reporting.measuring import Measurement
    from workflows.jobs.report_opening import OpenedDataset
    from workflows.state.manifest import Content

MOST = 20
"""Documents that are kept as longest, shortest and most repeated."""
SHOWN_DRAWN, SHOWN_EACH = 60, 10
"""Examples that are drawn evenly, and those of each other kind."""
SHOWN_TOKENS = 100
SHOWN_SMALL = 3
"""The divisor of these numbers where many datasets share a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a dataset may take."""

    text_bytes: int
    """Bytes of its examples on the page."""
    is_small: bool
    """Whether lists are short, since there are many datasets."""
    folder: str
    """Where files without a name may be made."""

    def few(self, num: int) -> int:
        """Return how many of a list may be shown."""
        return -(-num // SHOWN_SMALL) if self.is_small else num


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """A dataset's part of the report."""

    section: Section
    summary: DatasetSummary | None
    """Its numbers beside those of others; None if it could not be measured."""


def report_dataset(opened: OpenedDataset, room: Room, *, advance: Callable[[int], None]) -> DatasetReport:
    """Measure a dataset and describe it.

    Raises:
        OutputError: If there is no room for the documents' digests.
    """
    findings = list(opened.findings)
    facts: dict[str, Any] = {"kind": opened.kind, "files": _sizes(opened.files)}
    content = opened.origin.content
    store = opened.store
    if store is None:
        section = _section(opened, facts, findings)
        return DatasetReport(section=section, summary=None)
    is_own = content is None or (content.documents, content.tokens) == (store.num_documents, len(store.tokens))
    if content is not None and not is_own:
        findings.append(
            f"{opened.files[0]}: expected {content.documents:,} documents and {content.tokens:,} tokens as in its "
            f"manifest, got {store.num_documents:,} and {len(store.tokens):,}; one of them belongs to another dataset"
        )
        content = None
    sources = KnownSources.of_dataset(opened, content)
    try:
        found = measure(store, sources, threads=available_cpus(), folder=room.folder, most=MOST, on_progress=advance)
        summary = summarize_lengths(store.document_lengths)
    except FormatError as error:
        return DatasetReport(section=_section(opened, facts, [*findings, str(error)]), summary=None)
    findings += sources.findings
    return _describe(opened, store, content, found, summary, sources, room, facts=facts, findings=findings)


def _describe(
    opened: OpenedDataset,
    store: IndexedStore | PackedStore,
    content: Content | None,
    found: Measurement,
    summary: LengthSummary,
    sources: KnownSources,
    room: Room,
    *,
    facts: dict[str, Any],
    findings: list[str],
) -> DatasetReport:
    origin = opened.origin
    tokenizer = origin.tokenizer
    recorded = content.tokenizer if content is not None else None
    vocabulary_size = tokenizer.vocabulary_size if tokenizer is not None else None
    if vocabulary_size is None and recorded is not None:
        vocabulary_size = recorded.vocabulary_size
    findings += [
        f"{opened.files[0]}: {finding}" for finding in find_foreign_ids(found.counts, vocabulary_size, tokenizer)
    ]

    drawn = draw_evenly(found.documents, room.few(SHOWN_DRAWN))
    chosen = choose_examples(found, drawn, room.few(SHOWN_EACH))
    wanted = {*chosen, *(document for each in found.sources for document in each.drawn)}
    wanted |= {each.first for each in found.repeats.most}
    texts = DocumentTexts(store, find_spans(store, wanted), tokenizer)
    notes: list[str] = []
    lines = _lines_of(opened, content, [*chosen], notes, findings)
    used = int(np.count_nonzero(found.counts.by_id))
    share = texts.bytes_per_token(drawn[::2])
    tiles = [
        ("documents", short(found.documents)),
        ("tokens", short(found.tokens)),
        ("tokens per document", f"{found.tokens / found.documents:,.1f}" if found.documents else "-"),
        ("median length", number(summary.quantiles["50"]) if found.documents else "-"),
        ("repeated documents", percent(found.repeats.num_extra, found.documents)),
        ("vocabulary used", "-" if vocabulary_size is None else percent(min(used, vocabulary_size), vocabulary_size)),
        ("size", size(sum(map(stored_size, opened.files)))),
    ]
    if share is not None:
        tiles.insert(4, ("bytes of text per token", f"{share:.2f}"))
    facts |= {
        "token type": str(np.dtype(store.tokens.dtype).name),
        "documents": number(found.documents),
        "tokens": number(found.tokens),
    }
    if isinstance(store, IndexedStore):
        facts["sequences"] = number(store.num_sequences)
    blocks = [
        *([show_records(content)] if content is not None else []),
        *([] if sources.is_damaged else [show_sources(found.sources, sources.names, sources.input_bytes, texts)]),
        show_lengths(found, summary),
        show_tokens(found.counts, tokenizer, vocabulary_size, shown=room.few(SHOWN_TOKENS)),
        show_unusual(found, texts),
        *([show_run(opened.prefix, origin.manifest)] if content is not None and origin.manifest is not None else []),
        *([show_digests(content)] if content is not None else []),
    ]
    section = _section(opened, facts, findings)
    examples = make_examples(chosen, texts, found, source_of=lines.get, room_bytes=room.text_bytes)
    section = replace(
        section,
        notes=(*section.notes, *notes),
        tiles=tuple(tiles),
        blocks=tuple(block for block in blocks if not block.is_empty),
        examples=examples,
    )
    return DatasetReport(
        section=section,
        summary=DatasetSummary(
            name=section.name,
            documents=found.documents,
            tokens=found.tokens,
            median=summary.quantiles.get("50"),
            longest=summary.quantiles.get("100"),
            extra_documents=found.repeats.num_extra,
            extra_tokens=found.repeats.extra_tokens,
            bytes_per_token=share,
            used_ids=used,
            vocabulary_size=vocabulary_size,
            lengths=found.lengths,
            tokenizer=None if recorded is None else f"{recorded.name} ({recorded.sha256[:8]})",
            digest=content.digests["bin"].digest if content is not None and "bin" in content.digests else None,
        ),
    )


def _lines_of(
    opened: OpenedDataset, content: Content | None, documents: list[int], notes: list[str], findings: list[str]
) -> dict[int, str]:
    """Return where documents come from, as far as it is recorded: lines of inputs, or documents of merged datasets."""
    is_recorded = opened.origin.has_provenance or opened.origin.has_parts
    if content is None or not is_recorded or opened.store is None:
        return {}
    try:
        found, unknown = find_document_origins(opened.prefix, opened.store.num_documents, documents)
    except DsindexError as error:
        if str(error) not in findings:
            findings.append(str(error))
        return {}
    notes += unknown
    lines = {}
    for document, origin in zip(documents, found, strict=True):
        parts = []
        if origin.part is not None:
            parts.append(f"document {origin.part.document:,} of {origin.part.prefix}")
        if origin.source is not None:
            parts.append(f"{origin.source.path}, line {origin.source.line:,}")
        if parts:
            lines[document] = " · ".join(parts)
    return lines


def _section(opened: OpenedDataset, facts: dict[str, Any], findings: Sequence[str]) -> Section:
    known = opened.origin.facts
    recorded: dict[str, Any] = {name: known[name] for name in ("tokenizer", "options") if name in known}
    shown: dict[str, Any] = {**facts, **opened.facts, **recorded}
    return Section(
        name=opened.name,
        kind=opened.kind,
        facts=tuple(
            (name, tuple(value) if isinstance(value, list) else (str(value),)) for name, value in shown.items()
        ),
        notes=tuple(opened.origin.notes),
        findings=tuple(dict.fromkeys(findings)),
    )


def _sizes(files: Sequence[str]) -> list[str]:
    return [f"{path}, {size(size_bytes)}" for path, size_bytes in size_of(files).items()]
