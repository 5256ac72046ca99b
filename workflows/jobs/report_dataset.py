"""Measure one dataset, and put together its section of the report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.inspection.lengths import summarize_lengths
from dsindex.inspection.stores import IndexedStore, PackedStore, size_of
from dsindex.reporting.measuring import find_spans, measure
from dsindex.reporting.sources import ConsecutiveSources, OneSource, RecordedSources
from dsindex.tracing.origins import Origins
from workflows.execution.cpus import available_cpus
from workflows.jobs.inspect_origin import find_origin
from workflows.jobs.inspect_others import look_at_loss_masks, open_loss_masks
from workflows.reporting.amounts import number, percent, short, size
from workflows.reporting.documents import show_lengths, show_sources, show_unusual
from workflows.reporting.examples import DocumentTexts, choose_examples, draw_evenly, make_examples
from workflows.reporting.model import Section, distinct
from workflows.reporting.overview import DatasetSummary
from workflows.reporting.run import show_digests, show_records, show_run
from workflows.reporting.tokens import find_foreign_ids, show_tokens
from workflows.state.publishing import PROVENANCE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dsindex.inspection.kinds import Subject
    from dsindex.inspection.lengths import LengthSummary
    from dsindex.reporting.measuring import Measurement
    from dsindex.reporting.sources import Sources
    from workflows.jobs.inspect_origin import Origin
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDataset:
    """A dataset, and what is known of its origin."""

    name: str
    """As it was given."""
    kind: str
    prefix: str
    files: tuple[str, ...]
    origin: Origin
    store: IndexedStore | PackedStore | None
    """None if it is damaged."""
    facts: dict[str, Any]
    findings: tuple[str, ...]

    @classmethod
    def open(cls, subject: Subject, tokenizer_model: str | None) -> Self:
        """Open a dataset; damage is a finding.

        Raises:
            InputError: If it is not a dataset of tokens.
            TokenizerError: If the tokenizer that was given cannot be read.
        """
        facts: dict[str, Any] = {}
        findings: list[str] = []
        prefix = subject.path
        if subject.kind == "instruction data":
            prefix = f"{subject.path}_text_document"
            look_at_loss_masks(facts, findings, subject.path, open_loss_masks(findings, subject.path))
        elif subject.kind == "pbin":
            prefix = subject.path.removesuffix(".pbin")
        elif subject.kind != "MMIDIDX":
            msg = f"{subject.path}: expected a dataset of tokens (.bin and .idx, or .pbin), got {_name(subject.kind)}"
            raise InputError(msg)
        files = (subject.path,) if subject.kind == "pbin" else (f"{prefix}.bin", f"{prefix}.idx")
        origin = find_origin(prefix, tokenizer_model)
        store: IndexedStore | PackedStore | None = None
        try:
            store = PackedStore(subject.path) if subject.kind == "pbin" else IndexedStore(prefix)
            if store.tokens.dtype.kind not in "iu":
                findings.append(f"{files[0]}: expected integer tokens, got {store.tokens.dtype}")
                store = None
        except FormatError as error:
            findings.append(str(error))
        return cls(
            name=subject.path if subject.kind != "instruction data" else prefix,
            kind=subject.kind,
            prefix=prefix,
            files=files,
            origin=origin,
            store=store,
            facts=facts,
            findings=(*findings, *origin.findings),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens to read."""
        return 0 if self.store is None else len(self.store.tokens)

    @property
    def sequence_lengths(self) -> NDArray[np.int32] | None:
        """Tokens of each sequence, if index caches can be of it."""
        return self.store.dataset.sequence_lengths if isinstance(self.store, IndexedStore) else None

    def is_at(self, prefix: str) -> bool:
        """Tell whether a path leads to this dataset."""
        try:
            return os.path.samefile(f"{prefix}.idx", f"{self.prefix}.idx")
        except OSError:
            return os.path.abspath(prefix) == os.path.abspath(self.prefix)


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
    sources = _KnownSources.of_dataset(opened, content)
    try:
        found = measure(store, sources, threads=available_cpus(), folder=room.folder, most=MOST, on_progress=advance)
        summary = summarize_lengths(store.document_lengths)
    except FormatError as error:
        return DatasetReport(section=_section(opened, facts, [*findings, str(error)]), summary=None)
    findings += sources.findings
    return _describe(opened, store, content, found, summary, sources, room, facts=facts, findings=findings)


class _KnownSources:
    """The sources of a dataset, as far as they are known; a damaged record of them is a finding."""

    def __init__(self, sources: Sources, names: Sequence[str], input_bytes: Sequence[int | None]) -> None:
        self._sources: Sources = sources
        self.num_sources = sources.num_sources
        self.names = names
        self.input_bytes = input_bytes
        self.findings: list[str] = []

    @classmethod
    def of_dataset(cls, opened: OpenedDataset, content: Content | None) -> Self:
        store = opened.store
        inputs = content.inputs if content is not None else []
        names = distinct([file.path for file in inputs])
        # The size says something about tokens only if all records became tokens.
        input_bytes = [
            None if file.share is not None or file.filtered or file.elsewhere else file.text_bytes or file.size_bytes
            for file in inputs
        ]
        own = [file.documents for file in inputs]
        problem = None
        if store is not None and names and opened.origin.has_provenance:
            path = f"{opened.prefix}.{PROVENANCE_SUFFIX}"
            try:
                recorded = RecordedSources(path, num_documents=store.num_documents, num_inputs=len(names))
                return cls(recorded, names, input_bytes)
            except FormatError as error:
                problem = str(error)
        counts = [num for num in own if num is not None]
        if store is not None and len(counts) == len(own) > 0 and sum(counts) == store.num_documents:
            return cls(ConsecutiveSources(counts), names, input_bytes)
        whole = [size_bytes for size_bytes in input_bytes if size_bytes is not None]
        name = names[0] if len(names) == 1 else "all"
        known = cls(OneSource(), [name], [sum(whole) if whole and len(whole) == len(input_bytes) else None])
        known.findings += [] if problem is None else [problem]
        return known

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        if not self.findings:
            try:
                return self._sources.of(begin, end)
            except FormatError as error:
                self.findings.append(str(error))
        return np.zeros(end - begin, np.int64)


def _describe(
    opened: OpenedDataset,
    store: IndexedStore | PackedStore,
    content: Content | None,
    found: Measurement,
    summary: LengthSummary,
    sources: _KnownSources,
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
    lines = _lines_of(opened, content, [*chosen], findings)
    used = int(np.count_nonzero(found.counts.by_id))
    share = texts.bytes_per_token(drawn[::2])
    tiles = [
        ("documents", short(found.documents)),
        ("tokens", short(found.tokens)),
        ("tokens per document", f"{found.tokens / found.documents:,.1f}" if found.documents else "-"),
        ("median length", number(summary.quantiles["50"]) if found.documents else "-"),
        ("repeated documents", percent(found.repeats.num_extra, found.documents)),
        ("vocabulary used", "-" if vocabulary_size is None else percent(min(used, vocabulary_size), vocabulary_size)),
        ("size", size(sum(os.path.getsize(file) for file in opened.files))),
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
        show_sources(found.sources, sources.names, sources.input_bytes, texts),
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
    opened: OpenedDataset, content: Content | None, documents: list[int], findings: list[str]
) -> dict[int, str]:
    """Return the lines of the inputs that documents come from, as far as they are recorded."""
    if content is None or not opened.origin.has_provenance or opened.store is None:
        return {}
    try:
        found = Origins(opened.prefix, opened.store.num_documents).of(documents)
    except DsindexError as error:
        if str(error) not in findings:
            findings.append(str(error))
        return {}
    return {document: f"{line.path}, line {line.line:,}" for document, line in zip(documents, found, strict=True)}


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


def _name(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
