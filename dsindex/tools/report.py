"""Write the report of one or several datasets: one pass over the tokens of each, and one page of all."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import dsindex
from dsindex.amounts import count, short_number
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.origins import find_document_origins
from dsindex.engine.partial_files import PROVENANCE_SUFFIX
from dsindex.errors import DsindexError, FormatError, InputError, OutputError
from dsindex.execution.local import available_cpus
from dsindex.execution.report import Report
from dsindex.store.reading import is_stored, stored_size
from dsindex.store.storage import atomic_writer, make_folder, open_file, output_error, require_path
from dsindex.store.urls import absolute, real_path
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.inspect import look_at_loss_masks
from dsindex.tools.kinds import IndexedStore, PackedStore, size_of, tell_kind
from dsindex.tools.origin import find_misfit, find_origin
from dsindex.tools.page.page import (
    HEAD_BYTES,
    Block,
    Page,
    Section,
    distinct,
    is_page,
    number,
    percent,
    require_drawing,
    size,
    write_page,
)
from dsindex.tools.page.sections import (
    DatasetSummary,
    DocumentTexts,
    TextBytes,
    choose_examples,
    draw_evenly,
    find_foreign_ids,
    make_examples,
    show_caches,
    show_digests,
    show_lengths,
    show_overview,
    show_records,
    show_run,
    show_sources,
    show_tokens,
    show_unusual,
)
from dsindex.tools.report_measures import (
    ConsecutiveSources,
    RecordedSources,
    measure,
    read_drawn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.manifest import Content
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.formats.mmididx import Tokens
    from dsindex.options.datasets import ReportConfig
    from dsindex.tools.kinds import Subject
    from dsindex.tools.origin import Origin
    from dsindex.tools.report_measures import Measurement, Sources


# Open a dataset for its report, and find out of which sources its documents are.


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
    masks: Tokens | None
    """Of each token, 1 if it is learned; None for other data than conversations."""
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
        prefix, masks = subject.path, None
        if subject.kind == "instruction data":
            prefix = f"{subject.path}_text_document"
            masks = look_at_loss_masks(facts, findings, subject.path)
        elif subject.kind == "pbin":
            prefix = subject.path.removesuffix(".pbin")
        elif subject.kind != "MMIDIDX":
            article = "an" if subject.kind[0] in "aeiou" else "a"
            msg = (
                f"{subject.path}: expected a dataset of tokens (.bin and .idx, or .pbin), got {article} {subject.kind}"
            )
            raise InputError(msg)
        files = (subject.path,) if subject.kind == "pbin" else (f"{prefix}.bin", f"{prefix}.idx")
        origin = find_origin(prefix, tokenizer_model)
        store: IndexedStore | PackedStore | None = None
        try:
            store = PackedStore(subject.path) if subject.kind == "pbin" else IndexedStore(prefix)
            if store.tokens.dtype.kind not in "iu":
                findings.append(f"{files[0]}: expected integer tokens, got {store.tokens.dtype}")
                store = None
            elif masks is not None and len(masks) != len(store.tokens):
                findings.append(f"{subject.path}_loss_mask: expected {len(store.tokens):,} masks, got {len(masks):,}")
                masks = None
        except FormatError as error:
            findings.append(str(error))
        return cls(
            name=subject.path if subject.kind != "instruction data" else prefix,
            kind=subject.kind,
            prefix=prefix,
            files=files,
            origin=origin,
            store=store,
            masks=masks,
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
            return absolute(prefix) == absolute(self.prefix)


class KnownSources:
    """The sources of a dataset, as far as they are known; a damaged record of them is a finding."""

    def __init__(self, sources: Sources, names: Sequence[str]) -> None:
        self._sources: Sources = sources
        self.num_sources = sources.num_sources
        self.names = names
        self.findings: list[str] = []
        self.is_damaged = False
        """Whether the record turned out to be damaged while it was read, so that totals by source are wrong."""

    @classmethod
    def of_dataset(cls, opened: OpenedDataset, store: IndexedStore | PackedStore, content: Content | None) -> Self:
        """Return the sources that provenance or manifest record; otherwise all documents are of one source."""
        inputs = content.inputs if content is not None else []
        names = distinct([file.path for file in inputs])
        problem = None
        path = f"{opened.prefix}.{PROVENANCE_SUFFIX}"
        if names and is_stored(path):
            try:
                recorded = RecordedSources(path, num_documents=store.num_documents, num_inputs=len(names))
                return cls(recorded, names)
            except FormatError as error:
                problem = str(error)
        counts = [file.documents for file in inputs]
        known = [num for num in counts if num is not None]
        if len(known) == len(counts) > 0 and sum(known) == store.num_documents:
            return cls(ConsecutiveSources(known), names)
        whole = cls(ConsecutiveSources([store.num_documents]), [names[0] if len(names) == 1 else "all"])
        whole.findings += [] if problem is None else [problem]
        return whole

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sources of documents [begin, end); zeros once the record is found damaged."""
        if not self.is_damaged:
            try:
                return self._sources.of(begin, end)
            except FormatError as error:
                self.findings.append(str(error))
                self.is_damaged = True
        return np.zeros(end - begin, np.int64)


# Measure one dataset, and put together its section of the report.

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
    """Measure a dataset and describe it."""
    findings = list(opened.findings)
    facts: dict[str, Any] = {
        "kind": opened.kind,
        "files": [f"{path}, {size(num)}" for path, num in size_of(opened.files).items()],
    }
    content = opened.origin.content
    store = opened.store
    if store is None:
        section = _section(opened, facts, findings)
        return DatasetReport(section=section, summary=None)
    misfit = find_misfit(content, store)
    if misfit is not None:
        findings.append(misfit)
        content = None
    sources = KnownSources.of_dataset(opened, store, content)
    try:
        found = measure(store, sources, masks=opened.masks, threads=available_cpus(), most=MOST, on_progress=advance)
    except FormatError as error:
        return DatasetReport(section=_section(opened, facts, [*findings, str(error)]), summary=None)
    findings += sources.findings
    return _describe(opened, store, content, found, sources, room, facts=facts, findings=findings)


def _describe(
    opened: OpenedDataset,
    store: IndexedStore | PackedStore,
    content: Content | None,
    found: Measurement,
    sources: KnownSources,
    room: Room,
    *,
    facts: dict[str, Any],
    findings: list[str],
) -> DatasetReport:
    origin, summary = opened.origin, found.lengths
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
    texts = DocumentTexts(store, {number: store.document_span(number) for number in wanted}, tokenizer)
    notes: list[str] = []
    lines = _lines_of(opened, content, [*chosen], notes, findings)
    used = int(np.count_nonzero(found.counts.by_id))
    text_bytes = TextBytes.of(found.sources, texts, content)
    share = text_bytes.whole
    tiles = [
        ("documents", short_number(found.documents)),
        ("tokens", short_number(found.tokens)),
        ("tokens per document", f"{found.tokens / found.documents:,.1f}" if found.documents else "-"),
        ("median length", number(summary.quantiles["50"]) if found.documents else "-"),
        ("repeated documents", percent(found.repeats.num_extra, found.documents)),
        ("vocabulary used", "-" if vocabulary_size is None else percent(min(used, vocabulary_size), vocabulary_size)),
        ("size", size(sum(map(stored_size, opened.files)))),
    ]
    if share is not None:
        tiles.insert(4, ("bytes of text per token", f"{share:.2f}"))
    if opened.masks is not None:
        tiles.insert(2, ("learned tokens", percent(sum(each.learned or 0 for each in found.sources), found.tokens)))
    facts |= {
        "token type": str(np.dtype(store.tokens.dtype).name),
        "documents": number(found.documents),
        "tokens": number(found.tokens),
    }
    if isinstance(store, IndexedStore):
        facts["sequences"] = number(store.num_sequences)
    blocks = [
        *([show_records(content)] if content is not None else []),
        *([] if sources.is_damaged else [show_sources(found.sources, sources.names, text_bytes)]),
        show_lengths(found),
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
            lengths=found.lengths.bins,
            tokenizer=None if recorded is None else f"{recorded.name} ({recorded.sha256[:8]})",
            digest=content.digests["bin"].digest if content is not None and "bin" in content.digests else None,
        ),
    )


def _lines_of(
    opened: OpenedDataset, content: Content | None, documents: list[int], notes: list[str], findings: list[str]
) -> dict[int, str]:
    """Return where documents come from, as far as it is recorded: lines of inputs, or documents of merged datasets."""
    is_recorded = opened.origin.has_lines
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
        notes=tuple(opened.origin.all_notes),
        findings=tuple(dict.fromkeys(findings)),
    )


MOST_DATASETS = 24
"""Datasets on one page, so that it stays below 3 MB."""
LARGEST_PAGE_BYTES = 64 << 20
"""The limit on the size of a file that may be an earlier report."""
TEXT_BYTES = 1_200_000
"""Bytes of all examples together."""
TEXT_BYTES_OF_DATASET = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult(Report):
    """The page that was written."""

    output: str
    size_bytes: int
    datasets: tuple[DatasetReport, ...]
    findings: tuple[str, ...]
    """Sentences about caches that cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings and not any(dataset.section.findings for dataset in self.datasets)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets on the page."""
        return tuple(dataset.section.name for dataset in self.datasets)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.output}: {count(len(self.datasets), 'dataset')})"

    def lines(self) -> list[str]:
        """Return as text what was written and found."""
        lines = [f"{self.output}: {count(len(self.datasets), 'dataset')}, {size(self.size_bytes)}"]
        for dataset in self.datasets:
            section, summary = dataset.section, dataset.summary
            counts = "not read"
            if summary is not None:
                counts = f"{count(summary.documents, 'document')}, {count(summary.tokens, 'token')}"
                counts += f", {count(summary.extra_documents, 'repetition')}"
            lines.append(f"  {section.name}: {counts}")
            lines += [f"    note: {note}" for note in section.notes]
            lines += [f"    FOUND: {finding}" for finding in section.findings]
        lines += [f"  FOUND: {finding}" for finding in self.findings]
        return lines


def run_report(options: ReportConfig, *, reporter: Reporter) -> ReportResult:
    """Measure datasets and write a page about them. Damage of a dataset is a finding on the page.

    Args:
        options: The page, and the datasets as `dsindex inspect` knows them.
        reporter: Shows progress.

    Raises:
        MissingPackageError: If the package that draws pictures is not installed.
        InputError: If one is not there, is no dataset of tokens, or is given twice; or a folder has no caches of them.
        FormatError: If a file is in none of the known formats.
        TokenizerError: If the tokenizer that was given cannot be read.
        OutputError: If the page is someone else's file, or cannot be written.
    """
    require_drawing()
    _check_output(options.output)
    prefixes, mixture = options.prefix, list[Block]()
    if len(prefixes) > MOST_DATASETS:
        msg = f"expected at most {MOST_DATASETS} datasets on a page, got {len(prefixes)}; write several reports"
        raise InputError(msg)
    subjects = [_with_masks(tell_kind(path)) for path in prefixes]
    opened = [OpenedDataset.open(subject, options.tokenizer_model) for subject in subjects]
    _refuse_twice(opened)
    if options.tokenizer_model is not None:
        load_tokenizer(options.tokenizer_model)  # even if no dataset can be opened
    findings: list[str] = []
    for cache in options.cache:
        drawn = read_drawn(cache, lambda named: _lengths_of(opened, named))
        mixture += show_caches(cache, drawn)
        findings += drawn.findings
    folder = os.path.dirname(os.path.abspath(options.output))
    make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise output_error(options.output, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    room = Room(
        text_bytes=min(TEXT_BYTES_OF_DATASET, TEXT_BYTES // len(opened)),
        is_small=len(opened) > 4,
    )
    reporter.stage("read", total=sum(each.num_tokens for each in opened), unit="tokens")
    reports = [report_dataset(each, room, advance=reporter.advance) for each in opened]
    reporter.end_stage()
    names = [report.section.name for report in reports]
    page = write_page(
        Page(
            title=names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'other dataset')}",
            version=dsindex.__version__,
            mixture=tuple(mixture),
            overview=show_overview([report.summary for report in reports if report.summary is not None]),
            sections=tuple(report.section for report in reports),
        )
    )
    _check_output(options.output)
    with atomic_writer(options.output) as file:
        file.write(page)
    return ReportResult(output=options.output, size_bytes=len(page), datasets=tuple(reports), findings=tuple(findings))


def _check_output(path: str) -> None:
    """Refuse to replace a file unless it is a report that nobody has changed.

    Raises:
        OutputError: If there is such a file, or it is an address.
    """
    require_path(path)
    if not os.path.basename(path) or os.path.isdir(path):
        raise OutputError(f"{path}: expected the name of a file to write, got a folder; add a name such as report.html")
    if not os.path.lexists(path):
        return
    if os.path.isfile(path) and not os.path.islink(path) and _read_if_page(path):
        return
    msg = f"{path}: exists already and is not an unchanged report of dsindex; remove it, or choose another --output"
    raise OutputError(msg)


def _read_if_page(path: str) -> bool:
    try:
        with open_file(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return HEAD_BYTES < size_bytes <= LARGEST_PAGE_BYTES and is_page(file.read())
    except OSError as error:
        msg = f"{path}: exists already and cannot be read ({error.strerror}); choose another --output"
        raise OutputError(msg) from error


def _with_masks(subject: Subject) -> Subject:
    """Return the instruction data whose tokens a dataset is, as a blend names it."""
    prefix = subject.path.removesuffix(TEXT_SUFFIX)
    if subject.kind != "MMIDIDX" or prefix == subject.path or not is_stored(f"{prefix}{MASK_SUFFIX}.idx"):
        return subject
    return replace(subject, kind="instruction data", path=prefix)


def _refuse_twice(opened: Sequence[OpenedDataset]) -> None:
    known: set[str] = set()
    for each in opened:
        file = real_path(each.files[-1])
        if file in known:
            raise InputError(f"{each.name}: expected every dataset once, got it twice; leave one out")
        known.add(file)


def _lengths_of(opened: Sequence[OpenedDataset], named: str) -> NDArray[np.int32] | None:
    """Return the lengths of the sequences of the dataset that a description names; None if it is none of them."""
    fitting = [each for each in opened if each.sequence_lengths is not None and each.is_at(named)]
    if not fitting:  # on another machine, data are known by their names
        base = os.path.basename(named)
        fitting = [
            each for each in opened if each.sequence_lengths is not None and os.path.basename(each.prefix) == base
        ]
    return fitting[0].sequence_lengths if len(fitting) == 1 else None
