"""What is said of documents: their lengths, their sources, and those that are unusual."""

from __future__ import annotations

import calendar
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from markupsafe import escape

from dsindex.amounts import count, format_speed, format_token_speed, short_number, split_names
from dsindex.datasets.decoding import has_id
from dsindex.datasets.tails import describe_tails
from dsindex.execution.progress.progress_file import PROGRESS_SUFFIX, SERIES_FIELDS, read_progress
from dsindex.tools.page.page import (
    COLOURS,
    NARROW,
    Block,
    Example,
    Picture,
    Table,
    distinct,
    draw,
    number,
    percent,
    seconds,
    show_lines,
    size,
)
from dsindex.tools.page.pictures import (
    draw_drawn,
    draw_lengths,
    draw_lengths_of_many,
    draw_ranks,
    draw_shares,
    quantitative,
)
from dsindex.tools.report_measures import DRAWN
from dsindex.tools.token_text import cut_pieces, show_text, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.manifest import Content, Manifest, RecordedInput, Run
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.kinds import TokenStore
    from dsindex.tools.lengths import LengthBin
    from dsindex.tools.report_measures import DrawnCaches, Measurement, SourceTotals, TokenCounts


# What is said of a dataset's tokens: the most frequent ones, unused vocabulary, and how documents end.

SHOWN_UNUSED = 48
SHOWN_RUNS = 8
SHOWN_LAST = 5
_COVERED = (50, 90, 99)
_ANCHORS = 64
"""Frequent ids among which one is looked for that is a word, after which others are decoded."""


class TokenTexts:
    """Texts of single tokens, as they are within a text.

    Args:
        tokenizer: The dataset's tokenizer; None if it is not known.
        frequent: Ids by descending frequency.
    """

    def __init__(self, tokenizer: Tokenizer | None, frequent: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._before: tuple[int, ...] = ()
        if tokenizer is not None:
            words = (token for token in frequent[:_ANCHORS] if (self._text((), token) or "").strip().isalpha())
            self._before = tuple(words)[:1]

    def of(self, token: int) -> str:
        """Return the text of a token with visible spaces; what it is instead, if it has none by itself."""
        if self._tokenizer is None:
            return ""
        text = self._text(self._before, token)
        if text is None:
            return "(not in the tokenizer)"
        if "\ufffd" in text:
            return "(part of a character)"
        return show_text(text).replace(" ", "␣") or "(no text)"

    def _text(self, before: tuple[int, ...], token: int) -> str | None:
        return None if self._tokenizer is None else cut_pieces(self._tokenizer, [token], before=before)[0].text


def show_tokens(counts: TokenCounts, tokenizer: Tokenizer | None, vocabulary_size: int | None, *, shown: int) -> Block:
    """Return what is said of the tokens.

    Args:
        counts: How often each id occurs.
        tokenizer: The dataset's tokenizer; None if it is not known.
        vocabulary_size: Number of its ids; None if it is not known.
        shown: The number of frequent ids to list.
    """
    by_id = counts.by_id
    total = int(by_id.sum()) + counts.others
    order = np.lexsort((np.arange(len(by_id)), -by_id))
    order = order[: int(np.count_nonzero(by_id))]
    if not len(order):
        return Block(title="Tokens")
    texts = TokenTexts(tokenizer, order[:_ANCHORS].tolist())
    ranked = by_id[order].tolist()
    sentences = [_describe_use(len(order), vocabulary_size), _describe_cover(ranked, total)]
    head = ("id", "text", "occurrences", "share") if tokenizer is not None else ("id", "occurrences", "share")
    text_columns = frozenset({1}) if tokenizer is not None else frozenset()

    def row(token: int, amount: int, of: int) -> tuple[str, ...]:
        text = (texts.of(token),) if tokenizer is not None else ()
        return (str(token), *text, number(amount), percent(amount, of))

    tables = [
        Table(
            caption=f"The {min(shown, len(order)):,} most frequent tokens",
            head=head,
            rows=tuple(row(int(token), int(by_id[token]), total) for token in order[:shown]),
            texts=text_columns,
            code=text_columns,
        )
    ]
    last = counts.last_by_id
    ends = np.lexsort((np.arange(len(last)), -last))[:SHOWN_LAST]
    num_ends = int(last.sum())
    tables.append(
        Table(
            caption="The most frequent last tokens of documents",
            head=(*head[:-2], "documents", "share"),
            rows=tuple(row(int(token), int(last[token]), num_ends) for token in ends if last[token]),
            texts=text_columns,
            code=text_columns,
        )
    )
    if vocabulary_size is not None:
        tables += _unused(by_id, vocabulary_size, texts if tokenizer is not None else None)
    return Block(
        title="Tokens",
        sentences=tuple(sentences),
        pictures=(draw_ranks(ranked),) if len(ranked) > 1 else (),
        tables=tuple(tables),
    )


def find_foreign_ids(counts: TokenCounts, vocabulary_size: int | None, tokenizer: Tokenizer | None) -> list[str]:
    """Return sentences about ids that no tokenizer, or not the dataset's, has."""
    found = []
    if counts.others and counts.other_ids is not None:
        low, high = counts.other_ids
        found.append(
            f"expected ids of a vocabulary, got {count(counts.others, 'token')} with ids from {low:,} to {high:,}"
        )
    beyond = np.flatnonzero(counts.by_id[vocabulary_size:]) + vocabulary_size if vocabulary_size is not None else ()
    foreign = [int(token) for token in beyond if tokenizer is None or not has_id(tokenizer, int(token))]
    if foreign:
        found.append(
            f"expected ids below the {vocabulary_size:,} of the tokenizer, got "
            f"{count(int(counts.by_id[foreign].sum()), 'token')} with larger ids, up to {foreign[-1]:,}"
        )
    return found


def _describe_use(used: int, vocabulary_size: int | None) -> str:
    if vocabulary_size is None:
        return f"{count(used, 'id')} occur; the size of the vocabulary is not known."
    unused = max(vocabulary_size - used, 0)
    share = percent(min(used, vocabulary_size), vocabulary_size)
    return f"{number(used)} of {number(vocabulary_size)} ids occur ({share}); {number(unused)} are not used."


def _describe_cover(ranked: Sequence[int], total: int) -> str:
    sums = np.cumsum(np.array(ranked, np.int64))
    parts = []
    for share in _COVERED:
        needed = min(int(np.searchsorted(sums, -(-total * share // 100))) + 1, len(ranked))
        parts.append(f"{share}% of all tokens are of the {number(needed)} most frequent ids")
    return f"{parts[0]}, {', '.join(part.replace(' of all tokens are', '') for part in parts[1:])}."


def _unused(by_id: NDArray[np.int64], vocabulary_size: int, texts: TokenTexts | None) -> list[Table]:
    is_unused = np.ones(vocabulary_size, bool)
    size = min(len(by_id), vocabulary_size)
    is_unused[:size] = by_id[:size] == 0
    unused = np.flatnonzero(is_unused)
    if not len(unused):
        return []
    cuts = np.flatnonzero(np.diff(unused) > 1) + 1
    begins, ends = unused[np.concatenate([[0], cuts])], unused[np.concatenate([cuts - 1, [len(unused) - 1]])]
    longest = np.sort(np.lexsort((begins, begins - ends))[:SHOWN_RUNS])
    runs = tuple(
        (f"{begins[place]}-{ends[place]}", number(int(ends[place] - begins[place]) + 1))
        for place in longest
        if ends[place] > begins[place]
    )
    caption = "The longest runs of unused ids"
    tables = [Table(caption=caption, head=("ids", "unused"), rows=runs, is_folded=True)] if runs else []
    if texts is not None:
        some = unused[np.unique(np.linspace(0, len(unused) - 1, min(SHOWN_UNUSED, len(unused))).astype(np.int64))]
        which = "Unused tokens" if len(some) == len(unused) else f"{len(some)} unused tokens, drawn evenly"
        rows = tuple((str(token), texts.of(token)) for token in some.tolist())
        code = frozenset({1})
        tables.append(Table(caption=which, head=("id", "text"), rows=rows, texts=code, code=code, is_folded=True))
    return tables


# What is said of splits, epochs and blends.


MOST_BARS = 30


def show_caches(folder: str, caches: DrawnCaches) -> list[Block]:
    """Return what the caches in a folder draw from the datasets."""
    blocks = []
    if caches.splits:
        prefixes = list(dict.fromkeys(each.prefix for each in caches.splits))
        begin, names, end = split_names(prefixes)
        short = dict(zip(prefixes, names, strict=True))
        rows = tuple(
            (
                short[each.prefix],
                each.split,
                "-" if each.intended is None else f"{each.intended:.2%}",
                f"{each.part_tokens / each.dataset_tokens:.2%}" if each.dataset_tokens else "-",
                number(each.part_tokens),
                f"{number(each.num_samples)} of {number(each.sequence_length)}",
                f"{each.epochs:,.3f}",
                f"{each.cuts.short_share:.2%}",
            )
            for each in caches.splits
        )
        table = Table(
            caption="What each split draws",
            head=(
                *(f"dataset {begin}…{end}" if begin or end else "dataset", "split", "share of sequences intended"),
                *("share of tokens", "tokens of the split"),
                *("samples of tokens", "epochs", "documents cut"),
            ),
            rows=rows,
            texts=frozenset({0, 1}),
        )
        sentence = (
            f"By the index caches in {folder}. An epoch is all tokens of the split once. Documents cut are those that "
            "would fit a sample and are divided among two."
        )
        if caches.blends:
            sentence += " These are what each index has; blends below may draw less of it."
        ends = {(each.prefix, *each.part) for each in caches.splits if each.split == "valid" and each.intended}
        tails = describe_tails(sorted(ends))
        sentences = (sentence,) if tails is None else (sentence, f"{tails[0].upper()}{tails[1:]}.")
        blocks.append(Block(title="Splits and epochs", sentences=sentences, tables=(table,)))
    tokens_of = {(each.prefix, each.split): each.part_tokens for each in caches.splits}
    for blend in caches.blends:
        total = sum(blend.num_samples)
        shares = [num / total if total else 0.0 for num in blend.num_samples]
        names = distinct(blend.prefixes)
        largest = sorted(range(len(names)), key=lambda place: (-blend.intended[place], place))[:MOST_BARS]
        picture = draw_drawn(
            f"Drawn and intended shares, split {blend.split}",
            {names[place]: blend.intended[place] for place in largest},
            {names[place]: shares[place] for place in largest},
        )
        table = Table(
            caption=f"What the blend of {blend.split} draws",
            head=("dataset", "samples", "tokens", "epochs", "drawn", "intended"),
            rows=tuple(
                (
                    name,
                    number(num),
                    number(num * blend.sequence_length),
                    _epochs(num * blend.sequence_length, tokens_of.get((prefix, blend.split))),
                    f"{drawn:.3%}",
                    f"{share:.3%}",
                )
                for name, prefix, num, drawn, share in zip(
                    names, blend.prefixes, blend.num_samples, shares, blend.intended, strict=True
                )
            ),
        )
        sentence = (
            f"{count(len(names), 'dataset')}, {count(total, 'sample')} of {number(blend.sequence_length)} tokens. "
            "A sample has tokens of one dataset only, so shares of samples are shares of tokens."
        )
        blocks.append(
            Block(title=f"Blend of {blend.split}", sentences=(sentence,), pictures=(picture,), tables=(table,))
        )
    if caches.findings:
        blocks.append(Block(title="Caches that cannot be read", sentences=caches.findings))
    return blocks


def _epochs(tokens: int, part_tokens: int | None) -> str:
    return f"{tokens / part_tokens:,.3f}" if part_tokens else "-"


# How a dataset was made: its run, with the stages in the progress file, the records of its inputs, and digests.

MOST_INTERVALS = 60
"""Intervals over which a speed is averaged."""
STARTED_APART_SECONDS = 120
"""How far the start of a job and that of its progress file may be apart."""
SHOWN_INPUTS = 30
MOST_STAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """A finished stage of a job."""

    name: str
    unit: str
    done: int
    tokens: int
    seconds: float
    retries: int
    lost_workers: int
    stragglers: int
    series: tuple[tuple[float, ...], ...]
    """Points of SERIES_FIELDS."""

    def describe(self) -> str:
        """Return its amounts and speeds in a few words."""
        amount = size(self.done) if self.unit == "bytes" else f"{number(self.done)} {self.unit}"
        words = [f"{amount} in {seconds(self.seconds)}"]
        if self.seconds and self.unit == "bytes":
            words.append(format_speed(self.done / self.seconds))
        if self.seconds and self.tokens:
            words.append(format_token_speed(self.tokens / self.seconds))
        return ", ".join(words)

    def speeds(self) -> list[tuple[float, float, float]]:
        """Return begin, end, and units per second of up to MOST_INTERVALS equal intervals."""
        if len(self.series) < 2 or self.series[-1][0] <= 0:
            return []
        times, amounts = [point[0] for point in self.series], [point[1] for point in self.series]
        edges = np.linspace(0.0, times[-1], min(MOST_INTERVALS, len(times) - 1) + 1)
        speeds = np.maximum(np.diff(np.interp(edges, times, amounts)), 0.0) / np.diff(edges)
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), speeds.tolist(), strict=True))

    def events(self) -> list[tuple[float, str]]:
        """Return when tasks were retried and workers lost."""
        found = []
        retries = lost = 0.0
        for point in self.series:
            if point[2] > retries:
                found.append((point[0], count(round(point[2] - retries), "repeated task")))
            if point[3] > lost:
                found.append((point[0], count(round(point[3] - lost), "lost worker")))
            retries, lost = point[2], point[3]
        return found


def read_stages(prefix: str, run: Run) -> tuple[list[StageRecord], str | None]:
    """Return the stages of the run that made a dataset, from the progress file beside it, and why there are none."""
    folder, name = os.path.split(prefix)
    while name:  # without the names of key and kind, one after the other: out/x_text_document, out/x
        path = os.path.join(folder, f"{name}.{PROGRESS_SUFFIX}")
        entry = read_progress(path)
        if entry is not None:
            began, file_began = _seconds_of(run.started), _seconds_of(entry.get("started"))
            is_own = began is not None and file_began is not None and abs(began - file_began) <= STARTED_APART_SECONDS
            if not is_own or entry.get("state") != "done":
                return [], f"{path} is of another run, so its throughput over time is not known"
            stages = entry.get("finished_stages")
            found = map(_stage, stages if isinstance(stages, list) else [])
            return [stage for stage in found if stage is not None], None
        name = name.rpartition("_")[0]
    return [], "there is no progress file beside the dataset, so its throughput over time is not known"


def _seconds_of(text: object) -> int | None:
    try:
        return calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None


def _stage(value: object) -> StageRecord | None:
    """Return a stage of a progress file; None if it is damaged."""
    if not isinstance(value, dict):
        return None
    amounts = [value.get(name, 0) for name in ("done", "tokens", "seconds", "retries", "lost_workers", "stragglers")]
    if not _are_amounts(amounts):
        return None
    series = value.get("series", [])
    points = series[:1000] if isinstance(series, list) else []
    done, tokens, took, retries, lost_workers, stragglers = amounts
    return StageRecord(
        name=str(value.get("stage"))[:80],
        unit=str(value.get("unit"))[:40],
        done=int(done),
        tokens=int(tokens),
        seconds=float(took),
        retries=int(retries),
        lost_workers=int(lost_workers),
        stragglers=int(stragglers),
        series=tuple(
            tuple(map(float, point))
            for point in points
            if isinstance(point, list) and len(point) == len(SERIES_FIELDS) and _are_amounts(point)
        ),
    )


def _are_amounts(values: Sequence[object]) -> bool:
    return all(type(value) in {int, float} and 0 <= value < 2**63 for value in values)  # type: ignore[operator]


def draw_throughput(stage: StageRecord) -> Picture:
    """Return the speed of a stage over its time, with marks where tasks were retried or workers lost."""
    speeds, events = stage.speeds(), stage.events()
    scale, unit = 1.0, f"{stage.unit} per second"
    if stage.unit == "bytes":
        largest = max(speed for _, _, speed in speeds)
        scale, unit = (1e6, "MB per second") if largest >= 1e6 else (1e3, "kB per second")
    values = [{"t": begin, "speed": speed / scale} for begin, _, speed in speeds]
    values.append({"t": speeds[-1][1], "speed": speeds[-1][2] / scale})
    marks = [{"t": time, "what": what} for time, what in events]

    def chart(width: int) -> dict[str, Any]:
        axis = {"title": "seconds", "grid": False, "tickCount": 5 if width == NARROW else 10, "labelOverlap": True}
        x = quantitative("t", axis, scale={"domain": [0, stage.seconds], "nice": False})
        area = {"type": "area", "interpolate": "step-after", "fill": COLOURS[0], "fillOpacity": 0.25}
        line = {
            "data": {"values": values},
            "mark": {**area, "line": {"stroke": COLOURS[0]}},
            "encoding": {"x": x, "y": quantitative("speed", {"title": unit, "tickCount": 4, "format": "~s"})},
        }
        rules = {
            "data": {"values": marks},
            "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
            "encoding": {"x": x},
        }
        return {"width": width, "height": 150, "layer": [line, rules] if marks else [line]}

    happened = "; ".join(f"{what} at {time:,.1f} s" for time, what in events[:5])
    title = f"Throughput of {stage.name}"
    rows = [(f"{begin:,.1f}-{end:,.1f}", f"{speed / scale:,.1f}") for begin, end, speed in speeds]
    return Picture(
        title=title,
        description=f"{stage.describe()}. {f'Dashed lines: {happened}.' if happened else 'Nothing was repeated.'}",
        drawing=draw(chart),
        table=Table(caption=title, head=("seconds", unit), rows=tuple(rows)),
    )


def show_run(prefix: str, manifest: Manifest) -> Block:
    """Return when, where and how fast a dataset was made."""
    run = manifest.run
    where = f" on {run.host}" if run.host else ""
    when = (
        f"Made {run.started or 'at an unknown time'}{where} in {seconds(run.seconds)} by dsindex {run.dsindex or '?'}"
    )
    amounts = f"{count(run.workers, 'worker')}, {count(run.shards, 'shard')}"
    troubles = f"{count(run.lost_workers, 'lost worker')}, {count(run.stragglers, 'straggler')}"
    sentences = [
        f"{when}; {run.executor or 'unknown'} executor, {amounts}.",
        f"Tasks that were repeated: {number(run.retries)}; {troubles}.",
    ]
    if run.engine is not None:
        texts = count(run.engine.reference_texts, "text")
        sentences.append(f"Engine: {run.engine.name} {run.engine.version}; the reference encoded {texts}.")
    stages, problem = read_stages(prefix, run)
    stages = stages[:MOST_STAGES]
    if problem is not None:
        sentences.append(f"{problem[0].upper()}{problem[1:]}.")
    tables = []
    if stages:
        rows = [
            (stage.name, stage.describe(), *map(number, (stage.retries, stage.lost_workers, stage.stragglers)))
            for stage in stages
        ]
        head = ("stage", "amount and speed", "retries", "lost workers", "stragglers")
        tables.append(
            Table(caption="Stages of the run that finished it", head=head, rows=tuple(rows), texts=frozenset({0, 1}))
        )
    return Block(
        title="Run",
        sentences=tuple(sentences),
        pictures=tuple(draw_throughput(stage) for stage in stages if len(stage.speeds()) > 2),
        tables=tuple(tables),
    )


def show_records(content: Content) -> Block:
    """Return what became of the records of each input."""
    account = content.account
    if account is None:
        return Block(title="Records")
    parts = {"kept": account.kept, "filtered": account.filtered, "quarantined": account.quarantined}
    parts["of another split"] = account.elsewhere
    shown = ", ".join(
        f"{number(amount)} {name} ({percent(amount, account.records)})"
        for name, amount in parts.items()
        if amount or name in {"kept", "quarantined"}
    )
    sentences = [f"{number(account.lines)} lines, {number(account.blank)} of them blank: {shown}."]
    if content.options.split_name is not None:
        sentences.append(_describe_split(content, account.kept, account.elsewhere))
    tables = [_records_table(content.inputs)] if len(content.inputs) > 1 else []
    for caption, amounts in (("Messages and tokens by role", content.statistics), ("Bad records", content.bad_records)):
        if amounts:
            rows = tuple((name, number(amount)) for name, amount in amounts.items())[:SHOWN_INPUTS]
            tables.append(Table(caption=caption, head=("kind", "amount"), rows=rows))
    return Block(title="Records", sentences=tuple(sentences), tables=tuple(tables))


def _describe_split(content: Content, kept: int, elsewhere: int) -> str:
    options = content.options
    names = ("train", "valid", "test")
    intended = ""
    if options.split is not None and options.split_name in names and sum(options.split) > 0:
        place = names.index(options.split_name)
        share = options.split[place] if place < len(options.split) else 0.0
        intended = f" {percent(share, sum(options.split))} intended,"
    return f"Split {options.split_name}:{intended} {percent(kept, kept + elsewhere)} of the records taken."


def _records_table(inputs: Sequence[RecordedInput]) -> Table:
    names = ("lines", "blank", "kept", "filtered", "quarantined", "elsewhere")
    ordered = sorted(range(len(inputs)), key=lambda place: -(inputs[place].quarantined or 0))
    shown = [inputs[place] for place in sorted(ordered[:SHOWN_INPUTS])]
    others = [inputs[place] for place in ordered[SHOWN_INPUTS:]]
    used = [name for name in names if any(getattr(file, name) for file in inputs)]
    rows = [(file.path, *(number(getattr(file, name) or 0) for name in used)) for file in shown]
    if others:
        sums = (number(sum(getattr(file, name) or 0 for file in others)) for name in used)
        rows.append((f"{count(len(others), 'other input')} with fewer quarantined records", *sums))
    return Table(caption="Records by source", head=("source", *used), rows=tuple(rows))


def show_digests(content: Content) -> Block:
    """Return the digests of a dataset's files."""
    rows = tuple((f".{suffix}", size(file.size_bytes), file.digest) for suffix, file in sorted(content.digests.items()))
    table = Table(
        caption="XXH3-128 over blocks of 64 MiB, as the manifest has them; dsindex verify compares them with the files",
        head=("file", "size", "digest"),
        rows=rows,
        texts=frozenset({0, 2}),
        code=frozenset({2}),
    )
    return Block(title="Digests", tables=(table,))


# Documents of a report to read: their texts, cut so that the page stays small.

SAMPLED_TOKENS = 2000
"""Tokens decoded of a document to measure the bytes of its text."""
BEGINNING = 80
"""Characters that name a document."""
BEGINNING_TOKENS = 64
TOKENS_PER_BYTE = 1.5
"""Tokens decoded for each byte that an example may have; some tokens have no text."""
LONGEST_EXAMPLE = 4000
"""Bytes of an example on the page, at most."""


class DocumentTexts:
    """The texts of documents that were chosen before.

    Args:
        store: The dataset.
        spans: First token, and one past the last, of each chosen document.
        tokenizer: The dataset's tokenizer; None if it is not known, so that ids stand for texts.
    """

    def __init__(self, store: TokenStore, spans: Mapping[int, tuple[int, int]], tokenizer: Tokenizer | None) -> None:
        self._store = store
        self._spans = spans
        self._tokenizer = tokenizer

    def num_tokens(self, document: int) -> int:
        """Return the number of tokens of a document."""
        begin, end = self._spans[document]
        return end - begin

    def text(self, document: int, max_tokens: int) -> str:
        """Return the text of the first tokens of a document, or their ids."""
        begin, end = self._spans[document]
        ids = self._store.tokens[begin : min(end, begin + max_tokens)].tolist()
        return " ".join(map(str, ids)) if self._tokenizer is None else text_of(self._tokenizer, ids)

    def beginning(self, document: int) -> str:
        """Return some characters on one line."""
        text = show_text(self.text(document, BEGINNING_TOKENS))
        return text if len(text) <= BEGINNING else f"{text[: BEGINNING - 1]}…"

    def bytes_per_token(self, documents: Iterable[int]) -> float | None:
        """Return the bytes of text per token of documents; None without tokens or a tokenizer."""
        num_bytes = tokens = 0
        for document in documents if self._tokenizer is not None else ():
            num_bytes += len(self.text(document, SAMPLED_TOKENS).encode(errors="replace"))
            tokens += min(self.num_tokens(document), SAMPLED_TOKENS)
        return num_bytes / tokens if tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBytes:
    """The bytes of text per token, which are the same wherever the page has them."""

    by_source: dict[int, float]
    """Of the largest sources that have tokens."""
    whole: float | None
    """Of the dataset; if it was not counted, the mean of the sources by their tokens."""
    is_counted: bool = False
    """Whether the build counted them; otherwise they are those of documents that were drawn."""

    @classmethod
    def of(cls, totals: Sequence[SourceTotals], texts: DocumentTexts, content: Content | None) -> Self:
        """Return what the build counted, or measure the documents drawn of the largest sources."""
        if content is not None and content.bytes_per_token is not None:
            sizes = [file.tokenized_bytes or 0 for file in content.inputs]
            counted: dict[int, float] = {}
            if len(sizes) == len(totals):  # else the sources are not the inputs
                counted = {place: sizes[place] / each.tokens for place, each in enumerate(totals) if each.tokens}
            return cls(by_source=counted, whole=content.bytes_per_token, is_counted=True)
        used = [place for place in largest_sources(totals)[0] if totals[place].tokens]
        shares = ((place, texts.bytes_per_token(totals[place].drawn)) for place in used)
        known = {place: share for place, share in shares if share is not None}
        tokens = sum(totals[place].tokens for place in known)
        whole = sum(share * totals[place].tokens for place, share in known.items()) / tokens if tokens else None
        return cls(by_source=known, whole=whole)


def largest_sources(totals: Sequence[SourceTotals]) -> tuple[list[int], list[int]]:
    """Return the numbers of the sources to show, by descending tokens, and those of the others."""
    order = sorted(range(len(totals)), key=lambda place: (-totals[place].tokens, place))
    return order[:SHOWN_SOURCES], order[SHOWN_SOURCES:]


def draw_evenly(num_documents: int, num: int) -> list[int]:
    """Return up to `num` numbers of documents at even distances.

    >>> draw_evenly(10, 4), draw_evenly(2, 4)
    ([1, 3, 6, 8], [0, 1])
    """
    num = min(num, num_documents)
    return [(2 * place + 1) * num_documents // (2 * num) for place in range(num)]


def choose_examples(found: Measurement, drawn: Sequence[int], each: int) -> dict[int, list[str]]:
    """Return the documents to show, and for each why.

    Args:
        found: The measurement.
        drawn: Documents that were drawn.
        each: The largest number of longest, shortest and repeated documents.
    """
    repeated = [document.first for document in found.repeats.most[:each]]
    chosen: dict[int, list[str]] = {}
    groups = {"longest": found.longest[:each], "shortest": found.shortest[:each], "repeated": repeated, "drawn": drawn}
    for kind, documents in groups.items():
        for document in documents:
            chosen.setdefault(document, []).append(kind)
    return dict(sorted(chosen.items()))


def make_examples(
    chosen: Mapping[int, Sequence[str]],
    texts: DocumentTexts,
    found: Measurement,
    *,
    source_of: Callable[[int], str | None],
    room_bytes: int,
) -> tuple[Example, ...]:
    """Return the chosen documents with the beginnings of their texts.

    Args:
        chosen: Documents, and why each was chosen.
        texts: Their texts.
        found: The measurement, which knows the copies.
        source_of: Returns where a document comes from; None if that is not recorded.
        room_bytes: Bytes that all texts may have together.
    """
    copies = {each.first: each.copies for each in found.repeats.most}
    most_bytes = min(LONGEST_EXAMPLE, room_bytes // max(len(chosen), 1))
    examples = []
    for document, kinds in chosen.items():
        max_tokens = int(most_bytes * TOKENS_PER_BYTE)
        text = texts.text(document, max_tokens)
        short = cut_to_fit(text, most_bytes)
        source = source_of(document)
        facts = [source] if source is not None else []
        facts += [f"{number(copies[document])} copies"] if document in copies else []
        examples.append(
            Example(
                document=document,
                num_tokens=texts.num_tokens(document),
                kinds=tuple(kinds),
                facts=(count(texts.num_tokens(document), "token"), *facts),
                text=short,
                is_cut=short != text or texts.num_tokens(document) > max_tokens,
            )
        )
    return tuple(examples)


def cut_to_fit(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that takes at most so many bytes on the page, with its escapes."""
    room = most_bytes
    while True:
        short = cut_text(text, room)
        size = len(escape(show_lines(short)).encode())
        if size <= most_bytes:
            return short
        room = room * most_bytes // (size + 1)


def cut_text(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that has at most so many bytes in UTF-8.

    >>> cut_text("naïve", 3), cut_text("naïve", 4)
    ('na', 'naï')
    """
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= most_bytes else encoded[:most_bytes].decode("utf-8", "ignore")


# Several datasets side by side.

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
    extra_tokens: int
    bytes_per_token: float | None
    used_ids: int
    vocabulary_size: int | None
    lengths: tuple[LengthBin, ...]
    tokenizer: str | None
    digest: str | None


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


SHOWN_SOURCES = 25
SHOWN_BARS = 10
SHORT, LONG = (2, 8, 32, 128), (4096, 32768, 131072, 1048576)
"""Bounds by which documents are called short and long, in tokens; powers of two, which begin bins."""


def show_lengths(found: Measurement) -> Block:
    """Return how long documents are."""
    title, summary = "Document lengths", found.lengths
    if not summary.bins:
        return Block(title=title, sentences=(f"{count(found.documents, 'document')}, none of them with tokens.",))
    quantiles = Table(
        caption="Quantiles: this share of the documents has at most this many tokens",
        head=("share", *(f"{share}%" for share in summary.quantiles)),
        rows=(("tokens", *map(number, summary.quantiles.values())),),
    )
    mean = f"{found.tokens / max(found.documents, 1):,.1f} tokens on average"
    return Block(
        title=title,
        sentences=(f"{count(found.documents, 'document')}, {number(found.lengths.empty)} of them empty; {mean}.",),
        pictures=(draw_lengths(summary.bins),),
        tables=(quantiles,),
    )


def show_unusual(found: Measurement, texts: DocumentTexts) -> Block:
    """Return the short, long and repeated documents."""
    repeats = found.repeats
    about = "" if repeats.one_of == 1 else "about "
    sentence = "No document with tokens occurs more than once, by a digest of its tokens."
    if repeats.num_repeated:
        documents = f"{about}{count(repeats.num_extra, 'document')} ({percent(repeats.num_extra, found.documents)})"
        tokens = f"{about}{count(repeats.extra_tokens, 'token')} ({percent(repeats.extra_tokens, found.tokens)})"
        sentence = (
            f"Documents that occur more than once, by a digest of their tokens: {about}{number(repeats.num_repeated)}. "
            f"Their repetitions are {documents} with {tokens}."
        )
    if about:
        sentence += (
            f" Of every {number(repeats.one_of)} different documents, one was looked for in the whole dataset, chosen "
            "by its digest, as were those that are frequent in an even sample; the rest is estimated."
        )
    bounds = [("1" if bound == 2 else f"1 to {bound - 1:,}", 1, bound) for bound in SHORT]
    longest = found.lengths.bins[-1].end if found.lengths.bins else 0
    bounds += [(f"{bound:,} or more", bound, 2**63) for bound in LONG if bound == LONG[0] or bound < longest]
    rows = []
    for name, least, most in bounds:
        bins = [each for each in found.lengths.bins if least <= each.begin and each.end <= most]
        rows.append((name, sum(each.documents for each in bins), sum(each.tokens for each in bins)))
    tables = [
        Table(
            caption="Short and long documents",
            head=("tokens of a document", "documents", "share", "tokens", "share"),
            rows=(
                ("none", number(found.lengths.empty), percent(found.lengths.empty, found.documents), "0", "-"),
                *(
                    (name, *_amount_and_share(documents, found.documents), *_amount_and_share(tokens, found.tokens))
                    for name, documents, tokens in rows
                ),
            ),
        )
    ]
    if repeats.most:
        tables.append(
            Table(
                caption="The most repeated documents",
                head=("first at", "begins with", "copies", "tokens of each"),
                rows=tuple(
                    (
                        f"document {number(each.first)}",
                        texts.beginning(each.first),
                        number(each.copies),
                        number(each.num_tokens),
                    )
                    for each in repeats.most
                ),
                texts=frozenset({0, 1}),
                code=frozenset({1}),
            )
        )
    return Block(title="Short, long and repeated documents", sentences=(sentence,), tables=tuple(tables))


def _amount_and_share(amount: int, total: int) -> tuple[str, str]:
    return number(amount), percent(amount, total)


def show_sources(totals: Sequence[SourceTotals], names: Sequence[str], text_bytes: TextBytes) -> Block:
    """Return the documents and tokens of each source.

    Args:
        totals: What there is of each source.
        names: Names of the sources.
        text_bytes: Their bytes of text per token.
    """
    shown, rest = largest_sources(totals)
    tokens = sum(each.tokens for each in totals)
    head = ["source", "documents", "tokens", "share", "tokens per document"]
    has_masks = any(each.learned is not None for each in totals)
    head += ["learned tokens", "share learned"] if has_masks else []
    head += ["bytes of text per token"] if text_bytes.by_source else []

    def row(name: str, places: Sequence[int]) -> tuple[str, ...]:
        documents = sum(totals[place].documents for place in places)
        own = sum(totals[place].tokens for place in places)
        cells = [name, number(documents), *_amount_and_share(own, tokens)]
        cells.append(short_number(own / documents) if documents else "-")
        if has_masks:
            cells += _amount_and_share(sum(totals[place].learned or 0 for place in places), own)
        if text_bytes.by_source:
            share = text_bytes.by_source.get(places[0]) if len(places) == 1 else None
            cells.append("-" if share is None else f"{share:.2f}")
        return tuple(cells)

    rows = [row(names[place], [place]) for place in shown]
    rows += [row(count(len(rest), "smaller source"), rest)] if rest else []
    pictures = []
    if len(totals) > 1 and tokens:
        bars = {names[place]: totals[place].tokens for place in shown[:SHOWN_BARS]}
        others = [*shown[SHOWN_BARS:], *rest]
        remaining = (count(len(others), "other source"), sum(totals[place].tokens for place in others))
        picture = draw_shares("Tokens by source", "source", bars, unit="tokens", rest=remaining if others else None)
        pictures.append(picture)
    said = f"Bytes of text are of up to {DRAWN} documents of each source, drawn evenly and decoded."
    if text_bytes.is_counted:
        said = "Bytes of text are those of the texts in UTF-8, counted by the build; the tokens include EOD."
    return Block(
        title="Sources",
        sentences=(said,) if text_bytes.by_source else (),
        pictures=tuple(pictures),
        tables=(Table(caption="Documents and tokens by source", head=tuple(head), rows=tuple(rows)),),
    )
