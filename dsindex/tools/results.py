"""What the tools found, as plain models, and how each is shown."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from dsindex.amounts import count, format_size, short_number, show_percent
from dsindex.engine.report import Line, Report, Table
from dsindex.json_text import show_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.datasets.origins import DocumentOrigin
    from dsindex.tools.documents import LengthSummary
    from dsindex.tools.token_text import Piece

WIDTH = 100
"""Columns where the output is no terminal."""
BORDER = "│"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A run of tokens, or a line."""

    title: str
    num_tokens: int
    """Tokens of the whole document or part."""
    pieces: tuple[Piece, ...] = ()
    """Shown tokens with their text, which is None without a tokenizer."""
    document: int | None = None
    origin: DocumentOrigin | None = None
    mask: tuple[int, ...] | None = None
    """Of instruction data: 1 for each token shown that is trainable, else 0."""
    text: str | None = None
    """The line of a raw index, instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCounts:
    """The counts of an intact index."""

    documents: int
    empty_documents: int
    sequences: int
    tokens: int
    token_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A check that was made."""

    name: str
    findings: tuple[str, ...]
    """Sentences with a place and a remedy; none if nothing is wrong."""

    @classmethod
    def of(cls, name: str, findings: Iterable[str]) -> Self:
        """Return the result of a check."""
        return cls(name=name, findings=tuple(findings))


Verdict = Literal["intact", "sound", "different", "damaged", "missing"]
VERDICTS: dict[Verdict, str] = {
    "intact": "intact",
    "sound": "structure is sound; nothing to compare the tokens with",
    "different": "DIFFERENT",
    "damaged": "DAMAGED",
    "missing": "MISSING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a verification of one dataset."""

    path: str
    kind: str | None
    """None if there is no dataset."""
    version: str | None = None
    """Version of a `.pbin`."""
    counts: DatasetCounts | None = None
    """None if the index is damaged."""
    checks: tuple[CheckResult, ...] = ()
    compared: bool = False
    """Whether the tokens were compared with a manifest, the source, or another dataset."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be checked, and why."""

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings of all checks."""
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def verdict(self) -> Verdict:
        """The verdict; a dataset is intact only if its tokens were compared with something."""
        failed = [check for check in self.checks if check.findings]
        if self.kind is None:
            return "missing"
        if failed:
            is_other = all(check.name.startswith(SAME_AS) for check in failed)
            return "different" if is_other else "damaged"
        return "intact" if self.compared else "sound"

    def lines(self) -> Iterator[str]:
        """Return the verdict, the counts, the checks and the findings."""
        yield f"{self.path}: {VERDICTS[self.verdict]}"
        if self.counts is not None:
            of = f" of type {self.counts.token_type}" + (
                f" in a .pbin of version {self.version}" if self.version else ""
            )
            yield (
                f"  {count(self.counts.documents, 'document')} ({self.counts.empty_documents:,} empty), "
                f"{count(self.counts.sequences, 'sequence')}, {count(self.counts.tokens, 'token')}{of}"
            )
        yield from (f"  checked: {check.name}" for check in self.checks if not check.findings)
        yield from (f"  note: {note}" for note in self.notes)
        yield from self.failures()

    def failures(self) -> Iterator[str]:
        """Return the checks that failed, and their findings."""
        yield from (f"  FAILED: {check.name}" for check in self.checks if check.findings)
        yield from (f"  FOUND: {finding}" for finding in self.findings)


SAME_AS = "the same documents as"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VerifyResult(Report):
    """The findings of a verification; true if there are none."""

    reports: tuple[VerifyReport, ...]
    """One per dataset, in the order given."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets that were verified."""
        return tuple(report.path for report in self.reports)

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings about any dataset."""
        return all(report.is_whole for report in self.reports)

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings about all datasets, each a sentence."""
        return tuple(finding for report in self.reports for finding in report.findings)

    def __bool__(self) -> bool:
        return self.is_whole

    @property
    def ok(self) -> bool:
        """Whether there are no findings about any dataset."""
        return self.is_whole

    def lines(self) -> Iterator[Line]:
        """Return the verdict, the checks and the findings; of several datasets, a table of the verdicts first."""
        if len(self.reports) == 1:
            yield from self.reports[0].lines()
            return
        yield Table(
            rows=tuple(
                (report.verdict, report.path, *_short_counts(report.counts), count(len(report.checks), "check"))
                for report in self.reports
            ),
            num_texts=2,
        )
        yield from (f"note: {note}" for note in dict.fromkeys(note for each in self.reports for note in each.notes))
        for report in self.reports:
            if report.findings:
                yield from ("", f"{report.path}: {VERDICTS[report.verdict]}", *report.failures())


@dataclass(slots=True, kw_only=True, repr=False)
class InspectResult(Report):
    """What was seen."""

    path: str
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Of an overview: name -> number, text, list of texts, or sizes of files by path."""
    lengths: dict[str, LengthSummary] = field(default_factory=dict)
    """`documents` and `sequences`, in tokens."""
    excerpts: list[Excerpt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings

    def lines(self) -> Iterator[str]:
        """Return what was seen; trainable tokens are in brackets."""
        yield f"{self.path}: {self.kind}"
        for name, value in self.facts.items():
            yield from _fact(name, value)
        for what, summary in self.lengths.items():
            yield from _lengths(what, summary)
        for excerpt in self.excerpts:
            yield from _excerpt(excerpt)
        yield from (f"  note: {note}" for note in self.notes)
        yield from (f"  FOUND: {finding}" for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A run of a sample's tokens within one document."""

    prefix: str
    dataset: int
    """Number of the dataset in the blend."""
    document: int
    begin: int
    """First token, within the document."""
    end: int
    """One past the last token."""
    origin: DocumentOrigin
    text: str | None
    """The text of the first tokens; None if there is no tokenizer."""
    tokens: tuple[int, ...]
    """The first tokens, of which `text` is the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A sample."""

    sample: int
    step: int | None
    rank: int | None
    parts: tuple[ShownPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDataset:
    """What samples have of a dataset."""

    prefix: str
    num_samples: int
    num_tokens: int
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TracedSamples(Report):
    """Where samples come from."""

    num_samples: int
    """Samples of the cache, or packs."""
    samples: tuple[ShownSample, ...]
    datasets: tuple[ShownDataset, ...]
    """What the samples have of each dataset, the most tokens first."""
    notes: tuple[str, ...]

    def lines(self) -> Iterator[Line]:
        """Return the samples, after a summary if there are several."""
        if len(self.samples) > 1:
            total = max(1, sum(each.num_tokens for each in self.datasets))
            yield f"{_steps(self.samples)}{count(len(self.samples), 'sample')}, {count(total, 'token')}"
            head = ("dataset", "of tokens", "tokens", "samples", "documents")
            rows = (
                (
                    each.prefix,
                    show_percent(each.num_tokens / total),
                    each.num_tokens,
                    each.num_samples,
                    each.num_documents,
                )
                for each in self.datasets
            )
            yield Table(head=head, rows=tuple(rows))
        for sample in self.samples:
            tokens = sum(part.end - part.begin for part in sample.parts)
            documents = count(len({(part.dataset, part.document) for part in sample.parts}), "document")
            place = _step(sample.step, sample.rank)
            yield f"sample {sample.sample} of {self.num_samples:,}{place}: {count(tokens, 'token')}, {documents}"
            for part in sample.parts:
                yield from _part(part)
        yield from (f"note: {note}" for note in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTokens:
    """How often the tokens of a dataset were read."""

    prefix: str
    num_samples: int
    """Samples of it that were read."""
    tokens_by_times: tuple[int, ...]
    """Tokens that were read, as inputs, not at all, once, twice, …"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumedTokens(Report):
    """How often the tokens of each dataset were read."""

    num_samples: int
    """Samples of the cache."""
    consumed: int
    datasets: tuple[ReadTokens, ...]

    def lines(self) -> Iterator[Line]:
        """Return what was read."""
        yield f"after {self.consumed:,} of {count(self.num_samples, 'sample')}:"
        rows = [
            (each.prefix, each.num_samples, times, tokens, show_percent(tokens / max(1, sum(each.tokens_by_times))))
            for each in self.datasets
            for times, tokens in enumerate(each.tokens_by_times)
            if tokens
        ]
        yield Table(head=("dataset", "samples", "times read", "tokens", "of its tokens"), rows=tuple(rows))


def _short_counts(counts: DatasetCounts | None) -> tuple[str, str]:
    if counts is None:
        return "", ""
    return f"{short_number(counts.documents)} documents", f"{short_number(counts.tokens)} tokens"


def _fact(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - values of JSON
    if isinstance(value, dict):
        value = [f"{path} {format_size(size)}" for path, size in value.items()]
    values = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else str(value)]
    for number, each in enumerate(values):
        title = f"  {name}: " if number == 0 else " " * (len(name) + 4)
        yield f"{title}{each}"


def _lengths(what: str, summary: LengthSummary) -> Iterator[str]:
    mean = f", {summary.total / summary.count:,.1f} on average" if summary.count else ""
    yield f"  tokens of {what}: {summary.total:,}{mean}, {summary.empty:,} empty"
    if summary.quantiles:
        yield "    " + "  ".join(f"{share}%: {value:,}" for share, value in summary.quantiles.items())


def _excerpt(excerpt: Excerpt) -> Iterator[str]:
    head = f"  {excerpt.title}"
    if excerpt.text is not None:
        yield from (head, f"    {excerpt.text}")
        return
    yield f"{head}: {count(excerpt.num_tokens, 'token')}{_origin(excerpt.origin)}"
    yield from (f"    {line}" for line in _tokens(excerpt))


def _tokens(excerpt: Excerpt) -> Iterator[str]:
    line, width, place, most = "", 0, 0, min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH) - 4
    for piece in excerpt.pieces:
        learnt = excerpt.mask is not None and any(excerpt.mask[place : place + len(piece.ids)])
        place += len(piece.ids)
        text = "+".join(map(str, piece.ids)) if piece.text is None else piece.text
        shown = f"[{show_name(text)}]" if learnt else show_name(text)
        if line and width + len(shown) + 1 > most:
            yield line
            line, width = "", 0
        line += f"{shown}{BORDER}"
        width += len(shown) + 1
        if piece.text is not None and "\n" in piece.text:
            yield line
            line, width = "", 0
    line += f" … {count(excerpt.num_tokens - place, 'more token')}" if excerpt.num_tokens > place else ""
    if line:
        yield line


def _steps(samples: Sequence[ShownSample]) -> str:
    steps = [each.step for each in samples if each.step is not None]
    span = sorted({min(steps), max(steps)}) if steps else []
    return f"{'steps' if len(span) > 1 else 'step'} {' to '.join(map(str, span))}: " if span else ""


def _part(part: ShownPart) -> Iterator[str]:
    origin = _origin(part.origin)
    yield f"  {part.prefix}, document {part.document}, tokens {part.begin}:{part.end}{origin}"
    more = "…" if part.end - part.begin > len(part.tokens) else ""
    if part.text is not None:
        yield f"    {json.dumps(part.text, ensure_ascii=False)}{more}"
    elif part.tokens:
        yield f"    tokens {' '.join(map(str, part.tokens))}{more}"


def _origin(origin: DocumentOrigin | None) -> str:
    if origin is None:
        return ""
    part = "" if origin.part is None else f", document {origin.part.document:,} of {origin.part.prefix}"
    return part if origin.source is None else f"{part}, from {origin.source.path}, line {origin.source.line:,}"


def _step(step: int | None, rank: int | None) -> str:
    return ("" if step is None else f", step {step}") + ("" if rank is None else f", rank {rank}")
