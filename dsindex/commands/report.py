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
from dsindex.commands.report_measures import DrawnSplit, Measurement, Sources, measure, read_drawn
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
    opened = [open_token_data(detect_dataset(path), options) for path in options.prefix]
    places = [os.path.realpath(each.files[-1]) for each in opened]
    twice = next((each for each, place in zip(opened, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise InputError(f"{twice.path}: this dataset is given twice")
    splits, findings = list[DrawnSplit](), list[str]()
    for folder in options.cache:
        drawn, wrong = read_drawn(folder, partial(_lengths_of, opened))
        splits, findings = [*splits, *drawn], [*findings, *wrong]
    sizes = [0 if each.documents is None else len(each.documents.tokens) for each in opened]
    reporter.stage("read", total=sum(sizes), unit="tokens")
    shown = set(sorted(range(len(sizes)), key=lambda place: -sizes[place])[:SHOWN_SECTIONS])
    limits = {each.sequence_length for each in splits}
    sections = tuple(
        _describe(each, limits, is_shown=place in shown, advance=reporter.advance) for place, each in enumerate(opened)
    )
    reporter.end_stage()
    hidden = [section for place, section in enumerate(sections) if place not in shown]
    unseen = f"{count(len(hidden), 'smaller dataset')} not described below: report them separately"
    more = f" and {count(len(sections) - 1, 'other dataset')}" if len(sections) > 1 else ""
    ends = [(own.prefix, *own.part) for each in splits if each.split == "valid" for own in each.datasets if own.part]
    tail = describe_validation(ends)
    page = _render(
        title=f"{sections[0].name}{more}",
        findings=[*findings, *(finding for section in hidden for finding in section.findings)],
        sections=[sections[place] for place in sorted(shown)],
        notes=[*([] if tail is None else [tail]), *([unseen] if hidden else [])],
        tables=[*map(_show_split, splits), *([_show_datasets(sections)] if more else [])],
    )
    make_folder(os.path.dirname(options.output) or ".")
    with atomic_writer(options.output) as file:
        file.write(page)
    return ReportResult(output=options.output, size_bytes=len(page), datasets=sections, findings=tuple(findings))


def _render(**parts: Any) -> bytes:  # noqa: ANN401 - what the template shows
    from jinja2 import Environment  # slow to import

    source = files("dsindex.commands").joinpath("report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, finalize=_show)
    page: str = environment.from_string(source).render(version=__version__, **parts)
    return page.encode("utf-8", "backslashreplace")


def _show(value: Any) -> Any:  # noqa: ANN401 - what the template has
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


def _lengths_of(opened: Sequence[TokenData], named: str, by_documents: bool) -> Any:  # noqa: ANN401 - mapped, or None
    """Return the lengths of sequences or documents of the named dataset; None if it is not in the report."""
    known = [each.path for each in opened if isinstance(each.dataset, IndexedDataset)]
    fitting = [name for name in known if absolute(named) == absolute(name)]
    # A cache from another machine names another folder: compare the last part of the path.
    fitting = fitting or [name for name in known if os.path.basename(named) == os.path.basename(name)]
    if len(fitting) != 1:
        return None
    return IndexedDataset(fitting[0], check=False, by_documents=by_documents).sequence_lengths


def _describe(opened: TokenData, limits: set[int], *, is_shown: bool, advance: Callable[[int], None]) -> Section:
    """Measure a dataset, and describe it if it is shown; `limits` are lengths of samples."""
    documents, origin, content = opened.documents, opened.origin, opened.origin.content
    facts = [("file", f"{path}, {format_size(size)}") for path, size in opened.sizes.items()]
    for name, value in origin.facts().items():
        facts.append((name, ", ".join(value) if isinstance(value, list) else str(value)))
    findings = list(opened.findings)
    section = Section(name=opened.path, findings=opened.findings, notes=tuple(origin.notes), facts=tuple(facts))
    if documents is None:
        return section
    if documents.tokens.dtype.kind not in "iu":
        what = f"{opened.files[0]}: the tokens are not integers, but {documents.tokens.dtype}"
        return replace(section, findings=(*findings, what))
    try:
        sources = _sources(origin.prefix, documents, content)
        found = measure(documents, sources, masks=opened.masks, threads=available_cpus(), on_progress=advance)
    except FormatError as error:
        return replace(section, findings=(*findings, error.sentence))
    recorded = content.tokenizer if content is not None and origin.tokenizer is None else origin.tokenizer
    size = None if recorded is None else recorded.vocabulary_size
    beyond = found.others + (0 if size is None else int(found.counts[size:].sum()))
    if beyond:
        bound = "any vocabulary" if size is None else f"the tokenizer's vocabulary of {size:,}"
        findings.append(f"{opened.files[0]}: {count(beyond, 'token')} outside of {bound}")
    section = replace(section, findings=tuple(findings), documents=found.documents, tokens=found.tokens)
    section = replace(section, repetitions=found.repetitions)
    if not is_shown:
        return section
    instruction = None if content is None else content.options.instruction
    return replace(
        section,
        facts=(*facts, ("token type", str(np.dtype(documents.tokens.dtype).name))),
        tiles=tuple(_tiles(found, content, size, has_masks=opened.masks is not None)),
        lengths=tuple(_bins(found, limits)),
        settings="" if instruction is None else json.dumps(instruction, ensure_ascii=False, indent=2),
        tables=(
            _show_sources(sources.names, found, content, has_masks=opened.masks is not None),
            _show_lengths(found),
            _show_tokens(found, origin.tokenizer),
        ),
        examples=tuple(_examples(documents, found, origin.tokenizer, opened.masks)),
    )


def _sources(prefix: str, documents: Documents, content: Content | None) -> Sources:
    """Return the sources in provenance or manifest; without them, all documents have one source."""
    inputs = content.inputs if content is not None else []
    names, path = [each.path for each in inputs], provenance_path(prefix)
    if names and is_stored(path):
        return Sources(names=names, path=path)
    known = [each.documents for each in inputs if each.documents is not None]
    if len(known) == len(names) > 0 and sum(known) == documents.num_documents:
        return Sources(names=names, num_documents=known)
    return Sources(names=[names[0] if len(names) == 1 else "all"], num_documents=[documents.num_documents])


def _tiles(
    found: Measurement, content: Content | None, vocabulary_size: int | None, *, has_masks: bool
) -> Iterator[tuple[str, Cell]]:
    yield "documents", short_number(found.documents)
    yield "tokens", short_number(found.tokens)
    yield "tokens per document", f"{found.tokens / max(1, found.documents):,.1f}"
    yield "repeated documents", _share(found.repetitions, found.documents)
    if content is not None and content.bytes_per_token is not None:
        yield "bytes of text per token", f"{content.bytes_per_token:.2f}"
    if vocabulary_size is not None:
        used = int(np.count_nonzero(found.counts[:vocabulary_size]))
        yield "of the vocabulary is used", _share(used, vocabulary_size)
    if has_masks:
        yield "of the tokens are trained on", _share(found.by_source[:, 2].sum(), found.tokens)


def _bins(found: Measurement, limits: set[int]) -> Iterator[tuple[LengthBin, str | None]]:
    """Yield bins; the first bin of documents that are longer than a sample has a line above it."""
    bins, before = found.lengths.bins, 0
    for place, own in enumerate(bins):
        longer = sum(other.documents for other in bins[place:])
        lines = [
            f"{limit:,} tokens, the length of a sample" for limit in sorted(limits) if before <= limit < own.end - 1
        ]
        yield own, f"{'; '.join(lines)}: about {count(longer, 'longer document')}" if lines else None
        before = own.end - 1


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _show_sources(names: Sequence[str], found: Measurement, content: Content | None, *, has_masks: bool) -> Table:
    inputs = content.inputs if content is not None and len(content.inputs) == len(names) else []
    num_bytes = np.array([each.tokenized_bytes or 0 for each in inputs] or [0] * len(names))
    bad = np.array([each.quarantined or 0 for each in inputs] or [0] * len(names))
    amounts, order = (
        np.column_stack([found.by_source, num_bytes, bad]),
        np.argsort(-found.by_source[:, 1], kind="stable"),
    )
    largest, others = np.split(order, [SHOWN_SOURCES])
    shown, rows = [names[place] for place in largest.tolist()], amounts[largest]
    if len(others):
        shown, rows = [*shown, count(len(others), "smaller source")], np.vstack([rows, amounts[others].sum(axis=0)])
    documents, tokens, learned, sizes, quarantined = rows.T.tolist()
    columns: dict[str, Sequence[Cell]] = {"source": shown, "documents": documents, "tokens": tokens}
    columns["share of tokens"] = [_share(number, found.tokens) for number in tokens]
    if has_masks:
        columns["share trained on"] = list(map(_share, learned, tokens))
    if any(sizes):
        columns["bytes per token"] = [
            f"{size / max(1, number):.2f}" for size, number in zip(sizes, tokens, strict=True)
        ]
    if any(quarantined):
        columns["quarantined records"] = quarantined
    cells = tuple(zip(*columns.values(), strict=True))
    return Table(caption="Documents and tokens by source", head=tuple(columns), rows=cells)


def _show_lengths(found: Measurement) -> Table:
    quantiles = found.lengths.quantiles
    return Table(
        caption=f"Quantiles: this share of the documents has at most so many tokens; {found.lengths.empty:,} are empty",
        head=("documents", *(f"{share}%" for share in quantiles)),
        rows=(("tokens", *quantiles.values()),),
    )


def _show_tokens(found: Measurement, tokenizer: Tokenizer | None) -> Table:
    counts, lasts, ends = found.counts, found.last_counts, found.last_counts.sum()
    frequent = [token for token in np.argsort(-counts, kind="stable")[: 10 * SHOWN_TOKENS].tolist() if counts[token]]
    texts = {token: show_name(_text(tokenizer, [token]).replace(" ", "␣")) or "(no text)" for token in frequent}
    shown = [(token, text) for token, text in texts.items() if "\ufffd" not in text][:SHOWN_TOKENS]
    return Table(
        caption="The most frequent tokens, without parts of characters; and the share of documents that end with each",
        head=("token", "id", "occurrences", "share of tokens", "share of ends"),
        rows=tuple(
            (text, str(token), int(counts[token]), _share(counts[token], found.tokens), _share(lasts[token], ends))
            for token, text in shown
        ),
    )


def _examples(
    documents: Documents, found: Measurement, tokenizer: Tokenizer | None, masks: Items | None
) -> Iterator[tuple[str, Runs]]:
    drawn = np.linspace(0, found.documents - 1, SHOWN_EXAMPLES).astype(int).tolist() if found.documents else []
    reasons = [(document, f"{copies:,} copies") for document, copies in found.repeated]
    for reason, numbers in (("longest", found.longest), ("shortest", found.shortest), ("at regular intervals", drawn)):
        reasons += [(document, reason) for document in dict.fromkeys(numbers)]
    for document in dict.fromkeys(document for document, _ in reasons):
        begin, end = documents.span(document)
        ids = documents.tokens[begin : min(end, begin + EXAMPLE_TOKENS)].tolist()
        mask = np.zeros(len(ids), bool) if masks is None else np.asarray(masks[begin : begin + len(ids)]) != 0
        borders = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
        runs = [
            (_text(tokenizer, ids[first:last]), bool(mask[first])) for first, last in pairwise(borders) if last > first
        ]
        why = ", ".join(reason for other, reason in reasons if other == document)
        more = [(" …", False)] if end - begin > EXAMPLE_TOKENS else []
        yield f"Document {document:,}: {count(end - begin, 'token')}, {why}", (*runs, *more)


def _text(tokenizer: Tokenizer | None, ids: list[int]) -> str:
    return " ".join(map(str, ids)) if tokenizer is None else text_of(tokenizer, ids)


def _show_datasets(sections: Sequence[Section]) -> Table:
    total = sum(each.tokens or 0 for each in sections)
    rows = (
        (each.name, each.documents, each.tokens, _share(each.tokens, total), _share(each.repetitions, each.documents))
        for each in sections
        if each.tokens is not None and each.documents is not None
    )
    head = ("dataset", "documents", "tokens", "share of tokens", "share repeated")
    return Table(caption="Datasets", head=head, rows=tuple(rows))


def _show_split(drawn: DrawnSplit) -> Table:
    total = sum(each.num_samples for each in drawn.datasets)
    rows, warnings = list[tuple[Cell, ...]](), list[str]()
    for each in drawn.datasets:
        read = each.num_samples * drawn.sequence_length
        epochs = f"{read / each.part_tokens:,.2f}" if each.part_tokens else None
        if epochs is not None and read > MANY_EPOCHS * (each.part_tokens or 0):
            warnings.append(f"{each.prefix} is read {epochs} times; repeated tokens teach less than new ones")
        short, cut = each.short_documents or (0, 0)
        share = _share(each.num_samples, total)
        rows.append((each.prefix, each.num_samples, share, each.intended, epochs, _share(cut, short)))
    return Table(
        caption=f"What {drawn.split} draws: {count(total, 'sample')} of {drawn.sequence_length:,} tokens",
        head=("dataset", "samples", "share drawn", "intended", "epochs", "short documents split"),
        rows=tuple(rows),
        warnings=tuple(warnings),
        stack=2 if len(rows) > 1 else None,
    )
