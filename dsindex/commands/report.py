"""`dsindex report`: one HTML page about datasets and mixtures, from one pass over their tokens.

The page works without scripts and without network. All text is escaped, including invisible characters and characters
that change the direction of writing. The same data give the same page, byte for byte.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dsindex._version import __version__
from dsindex.commands.report_measures import DrawnSplit, Measurement, Sources, measure, read_drawn_splits
from dsindex.commands.token_data import open_token_data, text_of
from dsindex.datasets.detect import detect_dataset
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.lineage import describe_validation
from dsindex.errors import FormatError, InputError, OutputError
from dsindex.formats.provenance import provenance_path
from dsindex.messages import count, format_size, short_number, show_name
from dsindex.store.errors import output_error
from dsindex.store.local import atomic_writer, make_folder, open_file, require_path
from dsindex.store.machine import available_cpus
from dsindex.store.read import is_stored
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.commands.token_data import LengthBin, TokenData
    from dsindex.datasets.documents import Documents
    from dsindex.formats.manifest import Content
    from dsindex.options.datasets import ReportConfig
    from dsindex.runtime.progress import Reporter
    from dsindex.store.read import Items
    from dsindex.text.tokenizer import Tokenizer

SHOWN_SOURCES, SHOWN_TOKENS, SHOWN_EXAMPLES, SHOWN_SECTIONS = 25, 30, 10, 50
EXAMPLE_TOKENS = 512
MANY_EPOCHS = 4
"""Up to about four epochs, repeated tokens are worth nearly as much as new ones (Muennighoff et al., 2023)."""
MARK = b"<!DOCTYPE html>\n<!-- dsindex report "
"""The first bytes of a report; a file that begins differently is not overwritten."""

Runs: TypeAlias = "tuple[tuple[str, bool], ...]"
"""Parts of a text, and whether they are trained on."""
Cell: TypeAlias = "str | int | float | None"
"""A text, a count, a share, or None for a number that is not known."""


class Table(NamedTuple):
    """A table with names in its first column; shares are drawn as bars, the column `stack` also as a stacked bar."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    warnings: tuple[str, ...] = ()
    stack: int | None = None
    """The column of the stacked bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The part of the page about one dataset."""

    name: str
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    documents: int | None = None
    """None if the dataset could not be measured."""
    tokens: int | None = None
    repetitions: int = 0
    tiles: tuple[tuple[str, Cell], ...] = ()
    tables: tuple[Table, ...] = ()
    lengths: tuple[tuple[LengthBin, str | None], ...] = ()
    """Bins, each with the text of a line above it that marks the length of samples, or None."""
    settings: str = ""
    """The configuration of instruction data, as JSON."""
    examples: tuple[tuple[str, Runs], ...] = ()
    """Title and text of some documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """The written page and its findings."""

    output: str
    size_bytes: int
    datasets: tuple[Section, ...] = field(repr=False)
    findings: tuple[str, ...]
    """Sentences about caches that cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings and not any(section.findings for section in self.datasets)


def run_report(options: ReportConfig, *, reporter: Reporter) -> ReportResult:
    """Measure datasets and write a page about them. Damage of a dataset is a finding on the page.

    Raises:
        InputError: If a path is not a dataset of tokens or is given twice, or a folder has no caches of the datasets.
        TokenizerError: If the tokenizer that was given cannot be read.
        OutputError: If the output is a file that is not a report, or cannot be written.
    """
    _check_output(options.output)
    datasets = [open_token_data(detect_dataset(path), options) for path in options.prefix]
    paths = [os.path.realpath(dataset.files[-1]) for dataset in datasets]
    duplicate = next((dataset for dataset, place in zip(datasets, paths, strict=True) if paths.count(place) > 1), None)
    if duplicate is not None:
        raise InputError(f"{duplicate.path}: this dataset is given twice")
    splits, findings = list[DrawnSplit](), list[str]()
    for folder in options.cache:
        folder_splits, folder_findings = read_drawn_splits(folder, partial(_lengths_of, datasets))
        splits, findings = [*splits, *folder_splits], [*findings, *folder_findings]
    make_folder(os.path.dirname(options.output) or ".")  # before the data are read
    sizes = [0 if dataset.documents is None else len(dataset.documents.tokens) for dataset in datasets]
    reporter.stage("read", total=sum(sizes), unit="tokens")
    shown_numbers = set(sorted(range(len(sizes)), key=lambda number: -sizes[number])[:SHOWN_SECTIONS])
    limits = {split.sequence_length for split in splits}
    sections = tuple(
        _describe(dataset, limits, is_shown=number in shown_numbers, advance=reporter.advance)
        for number, dataset in enumerate(datasets)
    )
    reporter.end_stage()
    hidden_sections = [section for number, section in enumerate(sections) if number not in shown_numbers]
    hidden_note = f"{count(len(hidden_sections), 'smaller dataset')} not described below: report them separately"
    title_end = f" and {count(len(sections) - 1, 'other dataset')}" if len(sections) > 1 else ""
    valid_datasets = [dataset for split in splits if split.split == "valid" for dataset in split.datasets]
    validation_note = describe_validation((dataset.prefix, *dataset.part) for dataset in valid_datasets if dataset.part)
    page = _render(
        title=f"{sections[0].name}{title_end}",
        findings=[*findings, *(finding for section in hidden_sections for finding in section.findings)],
        sections=[sections[number] for number in sorted(shown_numbers)],
        notes=[*([] if validation_note is None else [validation_note]), *([hidden_note] if hidden_sections else [])],
        tables=[*map(_show_split, splits), *([_show_datasets(sections)] if title_end else [])],
    )
    with atomic_writer(options.output) as file:
        file.write(page)
    return ReportResult(output=options.output, size_bytes=len(page), datasets=sections, findings=tuple(findings))


def _render(**parts: Any) -> bytes:  # noqa: ANN401 - what the template shows
    from jinja2 import Environment  # slow to import

    source = files("dsindex.commands").joinpath("report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, finalize=_format_value)
    page: str = environment.from_string(source).render(version=__version__, **parts)
    return page.encode("utf-8", "backslashreplace")


def _format_value(value: Any) -> Any:  # noqa: ANN401 - what the template has
    if value is None:
        return "-"
    if type(value) is str:
        return "\n".join(map(show_name, value.split("\n")))
    return f"{value:.2%}" if type(value) is float else f"{value:,}" if type(value) is int else value


def _check_output(path: str) -> None:
    """Refuse to overwrite a file that is not a report.

    Raises:
        OutputError: If the output is such a file, an address or a folder.
    """
    require_path(path)
    if not os.path.lexists(path):
        return
    try:
        with open_file(path) as file:
            begin = file.read(len(MARK))
    except OSError as error:
        raise output_error(path, error) from error
    if begin != MARK:
        raise OutputError(f"{path}: exists already and is not a report", hint="remove it, or choose another --output")


def _lengths_of(datasets: Sequence[TokenData], cache_path: str, by_documents: bool) -> Any:  # noqa: ANN401 - mapped, or None
    """Return the lengths of sequences or documents of the named dataset; None if it is not in the report."""
    paths = [dataset.path for dataset in datasets if isinstance(dataset.dataset, IndexedDataset)]
    matches = [path for path in paths if absolute(cache_path) == absolute(path)]
    # A cache from another machine names another folder: compare the last part of the path.
    matches = matches or [path for path in paths if os.path.basename(cache_path) == os.path.basename(path)]
    if len(matches) != 1:
        return None
    return IndexedDataset(matches[0], check=False, by_documents=by_documents).sequence_lengths


def _describe(dataset: TokenData, limits: set[int], *, is_shown: bool, advance: Callable[[int], None]) -> Section:
    """Measure a dataset, and describe it if it is shown; `limits` are lengths of samples."""
    documents, origin, content = dataset.documents, dataset.origin, dataset.origin.content
    facts = [("file", f"{path}, {format_size(size)}") for path, size in dataset.sizes.items()]
    for name, value in origin.facts().items():
        facts.append((name, ", ".join(value) if isinstance(value, list) else str(value)))
    findings = list(dataset.findings)
    section = Section(name=dataset.path, findings=dataset.findings, notes=tuple(origin.notes), facts=tuple(facts))
    if documents is None:
        return section
    if documents.tokens.dtype.kind not in "iu":
        problem = f"{dataset.files[0]}: the tokens are not integers, but {documents.tokens.dtype}"
        return replace(section, findings=(*findings, problem))
    try:
        sources = _sources(origin.prefix, documents, content)
        stats = measure(documents, sources, masks=dataset.masks, threads=available_cpus(), on_progress=advance)
    except FormatError as error:
        return replace(section, findings=(*findings, error.sentence))
    tokenizer = content.tokenizer if content is not None and origin.tokenizer is None else origin.tokenizer
    vocabulary_size = None if tokenizer is None else tokenizer.vocabulary_size
    num_outside = stats.foreign_tokens + (0 if vocabulary_size is None else int(stats.counts[vocabulary_size:].sum()))
    if num_outside:
        bound = "any vocabulary" if vocabulary_size is None else f"the tokenizer's vocabulary of {vocabulary_size:,}"
        findings.append(f"{dataset.files[0]}: {count(num_outside, 'token')} outside of {bound}")
    section = replace(section, findings=tuple(findings), documents=stats.documents, tokens=stats.tokens)
    section = replace(section, repetitions=stats.repetitions)
    if not is_shown:
        return section
    instruction = None if content is None else content.options.instruction
    return replace(
        section,
        facts=(*facts, ("token type", str(np.dtype(documents.tokens.dtype).name))),
        tiles=tuple(_tiles(stats, content, vocabulary_size, has_masks=dataset.masks is not None)),
        lengths=tuple(_bins(stats, limits)),
        settings="" if instruction is None else json.dumps(instruction, ensure_ascii=False, indent=2),
        tables=(
            _show_sources(sources.names, stats, content, has_masks=dataset.masks is not None),
            _show_lengths(stats),
            _show_tokens(stats, origin.tokenizer),
        ),
        examples=tuple(_examples(documents, stats, origin.tokenizer, dataset.masks)),
    )


def _sources(prefix: str, documents: Documents, content: Content | None) -> Sources:
    """Return the sources in provenance or manifest; without them, all documents have one source."""
    inputs = content.inputs if content is not None else []
    names, path = [record.path for record in inputs], provenance_path(prefix)
    if names and is_stored(path):
        return Sources(names=names, path=path)
    num_documents = [record.documents for record in inputs if record.documents is not None]
    if len(num_documents) == len(names) > 0 and sum(num_documents) == documents.num_documents:
        return Sources(names=names, num_documents=num_documents)
    return Sources(names=[names[0] if len(names) == 1 else "all"], num_documents=[documents.num_documents])


def _tiles(
    stats: Measurement, content: Content | None, vocabulary_size: int | None, *, has_masks: bool
) -> Iterator[tuple[str, Cell]]:
    yield "documents", short_number(stats.documents)
    yield "tokens", short_number(stats.tokens)
    yield "tokens per document", f"{stats.tokens / max(1, stats.documents):,.1f}"
    yield "repeated documents", _share(stats.repetitions, stats.documents)
    if content is not None and content.bytes_per_token is not None:
        yield "bytes of text per token", f"{content.bytes_per_token:.2f}"
    if vocabulary_size is not None:
        num_used = int(np.count_nonzero(stats.counts[:vocabulary_size]))
        yield "of the vocabulary is used", _share(num_used, vocabulary_size)
    if has_masks:
        yield "of the tokens are trained on", _share(stats.by_source[:, 2].sum(), stats.tokens)


def _bins(stats: Measurement, limits: set[int]) -> Iterator[tuple[LengthBin, str | None]]:
    """Yield bins; the first bin of documents that are longer than a sample has a line above it."""
    bins, before = stats.lengths.bins, 0
    for number, bin in enumerate(bins):
        num_longer = sum(later_bin.documents for later_bin in bins[number:])
        lines = [
            f"{limit:,} tokens, the length of a sample" for limit in sorted(limits) if before <= limit < bin.end - 1
        ]
        yield bin, f"{'; '.join(lines)}: about {count(num_longer, 'longer document')}" if lines else None
        before = bin.end - 1


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _show_sources(names: Sequence[str], stats: Measurement, content: Content | None, *, has_masks: bool) -> Table:
    inputs = content.inputs if content is not None and len(content.inputs) == len(names) else []
    num_bytes = np.array([source.tokenized_bytes or 0 for source in inputs] or [0] * len(names))
    num_bad = np.array([source.quarantined or 0 for source in inputs] or [0] * len(names))
    amounts, order = (
        np.column_stack([stats.by_source, num_bytes, num_bad]),
        np.argsort(-stats.by_source[:, 1], kind="stable"),
    )
    largest, tail = np.split(order, [SHOWN_SOURCES])
    labels, rows = [names[index] for index in largest.tolist()], amounts[largest]
    if len(tail):
        labels, rows = [*labels, count(len(tail), "smaller source")], np.vstack([rows, amounts[tail].sum(axis=0)])
    documents, tokens, trained, sizes, quarantined = rows.T.tolist()
    columns: dict[str, Sequence[Cell]] = {"source": labels, "documents": documents, "tokens": tokens}
    columns["share of tokens"] = [_share(number, stats.tokens) for number in tokens]
    if has_masks:
        columns["share trained on"] = list(map(_share, trained, tokens))
    if any(sizes):
        columns["bytes per token"] = [
            f"{size / max(1, number):.2f}" for size, number in zip(sizes, tokens, strict=True)
        ]
    if any(quarantined):
        columns["quarantined records"] = quarantined
    cells = tuple(zip(*columns.values(), strict=True))
    return Table(caption="Documents and tokens by source", head=tuple(columns), rows=cells)


def _show_lengths(stats: Measurement) -> Table:
    quantiles = stats.lengths.quantiles
    return Table(
        caption=f"Quantiles: this share of the documents has at most so many tokens; {stats.lengths.empty:,} are empty",
        head=("documents", *(f"{share}%" for share in quantiles)),
        rows=(("tokens", *quantiles.values()),),
    )


def _show_tokens(stats: Measurement, tokenizer: Tokenizer | None) -> Table:
    counts, lasts, ends = stats.counts, stats.last_counts, stats.last_counts.sum()
    tokens = [token for token in np.argsort(-counts, kind="stable")[: 10 * SHOWN_TOKENS].tolist() if counts[token]]
    texts = {token: show_name(_text(tokenizer, [token]).replace(" ", "␣")) or "(no text)" for token in tokens}
    shown_texts = [(token, text) for token, text in texts.items() if "\ufffd" not in text][:SHOWN_TOKENS]
    return Table(
        caption="The most frequent tokens, without parts of characters; and the share of documents that end with each",
        head=("token", "id", "occurrences", "share of tokens", "share of ends"),
        rows=tuple(
            (text, str(token), int(counts[token]), _share(counts[token], stats.tokens), _share(lasts[token], ends))
            for token, text in shown_texts
        ),
    )


def _examples(
    documents: Documents, stats: Measurement, tokenizer: Tokenizer | None, masks: Items | None
) -> Iterator[tuple[str, Runs]]:
    sample = np.linspace(0, stats.documents - 1, SHOWN_EXAMPLES).astype(int).tolist() if stats.documents else []
    reasons = [(document, f"{copies:,} copies") for document, copies in stats.repeated]
    for reason, numbers in (("longest", stats.longest), ("shortest", stats.shortest), ("at regular intervals", sample)):
        reasons += [(document, reason) for document in dict.fromkeys(numbers)]
    for document in dict.fromkeys(document for document, _ in reasons):
        begin, end = documents.span(document)
        ids = documents.tokens[begin : min(end, begin + EXAMPLE_TOKENS)].tolist()
        mask = np.zeros(len(ids), bool) if masks is None else np.asarray(masks[begin : begin + len(ids)]) != 0
        borders = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
        runs = [
            (_text(tokenizer, ids[first:last]), bool(mask[first])) for first, last in pairwise(borders) if last > first
        ]
        reason_text = ", ".join(reason for number, reason in reasons if number == document)
        ellipsis = [(" …", False)] if end - begin > EXAMPLE_TOKENS else []
        yield f"Document {document:,}: {count(end - begin, 'token')}, {reason_text}", (*runs, *ellipsis)


def _text(tokenizer: Tokenizer | None, ids: list[int]) -> str:
    return " ".join(map(str, ids)) if tokenizer is None else text_of(tokenizer, ids)


def _show_datasets(sections: Sequence[Section]) -> Table:
    total = sum(part.tokens or 0 for part in sections)
    rows = (
        (part.name, part.documents, part.tokens, _share(part.tokens, total), _share(part.repetitions, part.documents))
        for part in sections
        if part.tokens is not None and part.documents is not None
    )
    head = ("dataset", "documents", "tokens", "share of tokens", "share repeated")
    return Table(caption="Datasets", head=head, rows=tuple(rows))


def _show_split(split: DrawnSplit) -> Table:
    total = sum(dataset.num_samples for dataset in split.datasets)
    rows, warnings = list[tuple[Cell, ...]](), list[str]()
    for dataset in split.datasets:
        tokens_read = dataset.num_samples * split.sequence_length
        epochs = f"{tokens_read / dataset.part_tokens:,.2f}" if dataset.part_tokens else None
        if epochs is not None and tokens_read > MANY_EPOCHS * (dataset.part_tokens or 0):
            warnings.append(f"{dataset.prefix} is read {epochs} times; repeated tokens teach less than new ones")
        num_short, num_cut = dataset.short_documents or (0, 0)
        share = _share(dataset.num_samples, total)
        rows.append((dataset.prefix, dataset.num_samples, share, dataset.intended, epochs, _share(num_cut, num_short)))
    return Table(
        caption=f"What {split.split} draws: {count(total, 'sample')} of {split.sequence_length:,} tokens",
        head=("dataset", "samples", "share drawn", "intended", "epochs", "short documents split"),
        rows=tuple(rows),
        warnings=tuple(warnings),
        stack=2 if len(rows) > 1 else None,
    )
