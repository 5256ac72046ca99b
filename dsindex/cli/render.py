"""Print results: one function per result class returns lines and tables, and rich lays them out.

Every line and cell is escaped here, so no text can control the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsindex.messages import count, format_size, short_number, show_epochs, show_name, show_percent
from dsindex.runtime.dispatch import WORKER_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.commands import api, build, convert, findings, index, instruct, merge, mix, pack, report, results
    from dsindex.commands.token_data import LengthSummary
    from dsindex.datasets.lineage import DocumentOrigin
    from dsindex.datasets.samples import TracedPart
    from dsindex.runtime.preflight import Estimate

Line: TypeAlias = str | Table
UNCHANGED: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "force_jupyter": False}
"""Console settings that show text unchanged, also in the HTML of a notebook."""
UNBROKEN = 10_000
"""Width without a terminal: lines are not broken, so that grep finds them."""
STYLES = {"green": "intact", "yellow": "note|warning|sound", "red": "(?i:damaged|missing|different)|FAILED|FOUND"}
"""Colour → words that have it at the beginning of a line or cell, or after the last colon."""
SHOWN_REASONS, MANY_BAD = 5, 0.01
"""Number of reasons for bad records in a summary, and the share of bad records above which it warns."""
TOKEN_COLUMNS = 100
"""Width of a line of tokens."""
BORDER = "│"
"""Separates tokens."""
VERDICTS = {
    "intact": "intact",
    "sound": "structure is sound; nothing to compare the tokens with",
    "different": "DIFFERENT",
    "damaged": "DAMAGED",
    "missing": "MISSING",
}


def show(result: object, file: TextIO | None = None) -> None:
    """Print a result as its command does, with colours if the output is a terminal."""
    file = sys.stdout if file is None else file
    is_terminal = file.isatty()
    console = Console(file=file, width=None if is_terminal else UNBROKEN, force_terminal=is_terminal, **UNCHANGED)
    with console.capture() as capture:
        for line in describe(result):
            if isinstance(line, Table):
                console.print(line)
            else:
                console.print(*_wrap(show_name(line), console.width), sep="\n", soft_wrap=True)
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())
    file.flush()


def describe(result: object) -> Iterator[Line]:
    """Yield the lines and tables that show a result."""
    return VIEWS[type(result).__name__](result)


def _wrap(line: str, width: int) -> list[Text]:
    """Break a line between words; a line of flags stays whole, so that it can be pasted into a shell."""
    parts = [line]
    if len(line) > width and not line.startswith("--"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        parts = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return list(map(_style, parts))


def _style(text: str) -> Text:
    styled_text = Text(text)
    for style, words in STYLES.items():
        styled_text.highlight_regex(rf"^ *({words})(?=:|$)|(?<=: )({words})$", style)
    styled_text.highlight_regex(r"\[\[.*?\]\]", "green")  # text that is trained on
    return styled_text


def _make_table(rows: Iterable[Sequence[str | int]], head: Sequence[str] = (), *, num_texts: int = 1) -> Table:
    """Return a table: columns of text, which are folded if space is short, then columns of numbers."""
    rows = list(rows)
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(head), header_style="")
    for number, name in enumerate(head or [""] * len(rows[0])):
        is_text = number < num_texts
        grid.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
        grid.columns[-1].overflow = "fold" if is_text else "ellipsis"  # "fold" would cut off digits unseen
    for row in rows:
        grid.add_row(*(_style(show_name(cell if isinstance(cell, str) else f"{cell:,}")) for cell in row))
    return grid


# Commands that write datasets and caches.


def _show_text_job(result: results.TextResult, *, scope: str = "", engine: str = "") -> Iterator[str]:
    """Yield how much input was read, how fast, and how many records were kept."""
    run, counts = result.run, result.counts
    if result.already_complete:
        yield f"already complete{scope}"
    else:
        is_part = 0 < result.made_bytes < result.input_bytes
        made_text = f" ({format_size(result.made_bytes)} in this run)" if is_part else ""
        speed = f"{format_size(result.made_bytes / max(result.seconds, 1e-6))}/s" if result.made_bytes else ""
        facts = [
            f"done in {result.seconds:.1f} s: {format_size(result.input_bytes)} of input{made_text}",
            *(speed, count(run.shards, "shard"), f"{run.executor} executor", count(run.workers, "worker"), engine),
        ]
        yield ", ".join(filter(None, facts))
    filtered = [f"{counts.filtered:,} filtered"] if counts.filtered else []
    parts = [f"{counts.kept:,} kept", *filtered, f"{counts.quarantined:,} quarantined", f"{counts.blank:,} blank"]
    yield f"{count(counts.lines, 'line')} = {' + '.join(parts)}"
    for bad in result.bad_records[:SHOWN_REASONS]:
        yield f"  {bad.number:,} × {bad.reason} ({bad.file}, line {bad.line:,})"
    if result.quarantines:
        num_others, path = len(result.bad_records) - SHOWN_REASONS, result.quarantines[0]
        suffix = f" and {len(result.quarantines) - 1:,} more" if len(result.quarantines) > 1 else ""
        yield f"  {f'and {num_others:,} other reasons, ' if num_others > 0 else ''}all in {path}{suffix}"
    if (share := counts.quarantined / max(1, counts.records)) > MANY_BAD:
        yield f"warning: {show_percent(share)} of the records are quarantined"
    if result.already_complete:  # otherwise they were shown when the work began
        yield from _show_notes(result.notes)


def _show_dataset(dataset: results.MadeDataset) -> Iterator[str]:
    """Yield a dataset's sizes, and its digests, by which two people can compare their datasets."""
    sizes = f"{count(dataset.num_documents, 'document')}, {count(dataset.num_sequences, 'sequence')}"
    yield f"{dataset.prefix}: {sizes}, {count(dataset.num_tokens, 'token')}"
    for suffix in ("bin", "idx", "pbin"):
        if suffix in dataset.files:
            yield f"  .{suffix:4} {dataset.files[suffix].digest}"


def _show_build(result: build.BuildResult) -> Iterator[Line]:
    yield from _show_pack(result)
    yield from chain.from_iterable(map(_show_index, result.indices))


def _show_merge(result: merge.MergeResult) -> Iterator[Line]:
    if result.already_complete:
        yield "already complete"
    yield from chain.from_iterable(map(_show_dataset, result.datasets))
    yield from _show_notes(result.notes)


def _show_index(result: index.IndexResult) -> Iterator[Line]:
    for cache in result.results:
        epochs = ""
        if cache.num_epochs is not None and cache.tokens_per_epoch is not None:
            epochs = f" of {count(cache.num_epochs, 'epoch')} of {count(cache.tokens_per_epoch, 'token')}"
        disk, memory = format_size(cache.file_bytes), format_size(cache.memory_bytes)
        outcome = f"takes {disk} on disk and {memory} of memory"
        if cache.seconds is not None:
            outcome = "was there already" if cache.reused else f"{disk}, {cache.seconds:.1f} s"
        yield f"{cache.name}: {count(cache.num_samples, 'sample')}{epochs}; {outcome}"
    for finding in result.findings:
        verdict = "ready" if finding.found and finding.sound else "found" if finding.found else "NOT found"
        yield f"{finding.name}: {verdict}"
        yield from (f"  {sentence}" for sentence in finding.sentences)
    yield from _show_notes(result.notes)
    yield result.verdict


def _show_pack(result: pack.PackResult | build.BuildResult) -> Iterator[Line]:
    yield from _show_text_job(result, engine=result.engine)
    if result.counts.empty_documents:
        yield f"{count(result.counts.empty_documents, 'text')} without tokens"
    yield from chain.from_iterable(map(_show_dataset, result.datasets))


def _show_instruct(result: instruct.InstructResult) -> Iterator[Line]:
    has_new_exports = not all(export.already_complete for export in result.exports)
    outputs = [*(["packs"] if result.packed else []), *(["exports"] if has_new_exports else [])]
    scope = f": only {' and '.join(outputs)} were made" if outputs else ""
    yield from _show_text_job(result, scope=scope)
    yield from chain.from_iterable(map(_show_split, result.splits))
    yield from chain.from_iterable(map(_show_dataset, result.datasets))
    for export in result.exports:
        state = ", already complete" if export.already_complete else ""
        yield f"{export.path}/: export {export.kind}{state}"
        for name, sums in export.splits.items():
            yield f"  {name}: {count(sums['rows'], 'row')}, {sums['tokens']:,} tokens, {sums['targets']:,} targets"


def _show_split(split: instruct.BuiltSplit) -> Iterator[str]:
    from dsindex.chat.statistics import explain_note  # only needed here

    counts, conversations = split.statistics, count(split.statistics.conversations, "conversation")
    share = 100 * counts.trainable / counts.tokens if counts.tokens else 0.0
    shortened = f", {counts.shortened:,} too long and truncated or split" if counts.shortened else ""
    sizes = f"{conversations}, {count(counts.sequences, 'sequence')}, {count(counts.tokens, 'token')}"
    yield f"{split.prefix}: {sizes}, {counts.trainable:,} trainable ({share:.1f} %), {counts.cut:,} cut off{shortened}"
    for note, number in sorted(counts.notes.items()):
        yield f"  note: {note} in {number:,} of {conversations}: {explain_note(note)}"
    if (packing := split.packing) is not None:
        between = f" ({packing.between:,} to multiples of {packing.pad_to_multiple})" if packing.between else ""
        blocks = f"{count(packing.blocks, 'block')} of {packing.sequence_length:,}"
        yield f"  {blocks}: {packing.padding:,} padding{between}, fill {100 * packing.fill:.2f} %"
        if packing.dropped is not None:
            tokens = count(packing.dropped_tokens or 0, "token")
            yield f"  {count(packing.dropped, 'longer sequence')} with {tokens} left out of the blocks"


def _show_convert(result: convert.ConvertResult) -> Iterator[Line]:
    return chain.from_iterable(map(_show_dataset, result.datasets))


def _show_raw_index(result: api.RawIndexResult) -> Iterator[Line]:
    entries, dropped = result.account.num_entries, result.account.num_dropped
    yield f"{result.account.index_path}: {count(entries, 'line')}, {dropped:,} faulty left out"
    yield from (f"  left out: {result.file}, line {line} (byte {byte})" for line, byte in result.account.dropped)
    if dropped > len(result.account.dropped):
        yield f"  and {dropped - len(result.account.dropped):,} more"


def _show_join(result: api.JoinResult) -> Iterator[Line]:
    tokens = f"{count(result.header.num_tokens, 'token')} of {count(result.header.token_bytes, 'byte')}"
    yield f"{result.path}: {tokens}, from {count(result.num_files, 'file')}"


def _show_notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"note: {note}" for note in notes)


# Commands that read.


def _show_estimate(result: build.EstimateResult) -> Iterator[Line]:
    size, outputs = format_size(result.bin_bytes + result.idx_bytes), format_size(result.bin_bytes)
    documents, tokens = (_round(result.estimate, getattr(result.estimate, name)) for name in ("documents", "tokens"))
    rows = {
        "inputs": f"{result.num_inputs:,}, {format_size(result.input_bytes)}",
        "shards": f"{result.num_shards:,} of at most {format_size(result.largest_shard_bytes)} of input",
        "documents": f"about {documents}",
        "tokens": f"about {tokens}, {result.token_dtype}, encoded by {result.engine}",
        "output": f"about {size}: .bin {outputs}, .idx {format_size(result.idx_bytes)}",
        "work folder": f"at most about {format_size(result.work_bytes)}, removed at the end",
        "memory": f"about {format_size(WORKER_MEMORY_BYTES)} for each of {count(result.workers, 'worker')}",
    }
    if result.bad_records:
        number = sum(bad.number for bad in result.bad_records)
        rows["bad records"] = f"{number:,} in the sample: see --on-bad-record"
    yield _make_table(rows.items(), num_texts=2)
    yield from (f"  {bad.number:,} × {bad.reason} ({bad.file})" for bad in result.bad_records[:SHOWN_REASONS])
    yield from _show_notes(result.notes)
    yield from result.limits


def _round(estimate: Estimate, value: float) -> str:
    """Format a number, rounded to two digits unless all input was read."""
    return f"{value if estimate.is_exact else float(f'{value:.2g}'):,.0f}"


def _show_mix(result: mix.MixResult) -> Iterator[Line]:
    datasets, total = result.datasets, sum(dataset.tokens for dataset in result.datasets)
    amount: Callable[[int], int | str] = short_number if max(total, result.tokens) >= 10**7 else int
    splits = [name for name in ("valid", "test") if any(getattr(dataset, f"{name}_tokens") for dataset in datasets)]
    rows = []
    for dataset in datasets:
        drawn_cells = (amount(dataset.tokens_drawn), show_percent(dataset.share), show_epochs(dataset.epochs))
        split_tokens = (amount(getattr(dataset, f"{split}_tokens")) for split in splits)
        rows.append((dataset.prefix, amount(dataset.tokens), *drawn_cells, *split_tokens))
    sums = (amount(sum(getattr(dataset, f"{split}_tokens") for dataset in datasets)) for split in splits)
    rows.append(("total", amount(total), amount(result.tokens), "100%", show_epochs(result.tokens / total), *sums))
    yield _make_table(rows, ("dataset", "tokens", "drawn", "of drawn", "epochs", *splits))
    part = "all of each dataset" if result.split is None else f"the train split of {result.split!r}"
    samples = f"{count(result.num_samples, 'sample')} of {result.sequence_length:,} tokens"
    iterations = "" if result.num_iterations is None else f", {count(result.num_iterations, 'iteration')}"
    yield ""
    yield f"draws {samples} from {part}{iterations}: --train-samples {result.num_samples}"
    yield from _first_to_run_out(result)
    yield from (f"warning: {warning}" for warning in result.warnings)
    yield ""
    yield from result.flags


def _first_to_run_out(result: mix.MixResult) -> Iterator[str]:
    dataset = result.first_to_run_out
    after = int(result.tokens / dataset.epochs) if dataset.epochs else result.tokens
    if dataset.tokens_drawn <= dataset.tokens + result.sequence_length:
        yield f"nothing runs out before the end; {dataset.prefix} would be the first, after {after:,} tokens"
        return
    batch = result.num_samples // (result.num_iterations or result.num_samples)
    iteration = f", at iteration {after // (result.sequence_length * batch):,}" if result.num_iterations else ""
    yield f"first to run out: {dataset.prefix}, after {after:,} of {result.tokens:,} tokens{iteration}"
    if dataset.epochs_shuffled_together > 1:
        together = f"{dataset.epochs_shuffled_together:,} epochs are shuffled together"
        yield f"  its {together}, so some tokens repeat before the first epoch ends"


def _show_verify(result: findings.VerifyResult) -> Iterator[Line]:
    if len(result.reports) == 1:
        [report] = result.reports
        yield from _show_verified_dataset(report)
        return
    rows = []
    for report in result.reports:
        sizes = ("", "") if report.counts is None else (report.counts.documents, report.counts.tokens)
        rows.append((report.verdict, report.path, *sizes, len(report.checks)))
    yield _make_table(rows, ("verdict", "dataset", "documents", "tokens", "checks"), num_texts=2)
    yield from _show_notes(dict.fromkeys(note for report in result.reports for note in report.notes))
    checks = [check for report in result.reports for check in report.checks if not check.findings]
    yield from dict.fromkeys(f"checked: {check.name}" for check in checks if check.name.startswith("index cache "))
    for report in result.reports:
        if report.findings:
            yield from ("", f"{report.path}: {VERDICTS[report.verdict]}", *_show_failures(report))


def _show_verified_dataset(report: findings.VerifyReport) -> Iterator[str]:
    yield f"{report.path}: {VERDICTS[report.verdict]}"
    if report.counts is not None:
        documents = f"{count(report.counts.documents, 'document')} ({report.counts.empty_documents:,} empty)"
        version = f" in a .pbin of version {report.counts.version}" if report.counts.version else ""
        tokens = f"{count(report.counts.tokens, 'token')} of type {report.counts.token_type}{version}"
        yield f"  {documents}, {count(report.counts.sequences, 'sequence')}, {tokens}"
    yield from (f"  checked: {check.name}" for check in report.checks if not check.findings)
    yield from (f"  {note}" for note in _show_notes(report.notes))
    yield from _show_failures(report)


def _show_failures(report: findings.VerifyReport) -> Iterator[str]:
    yield from (f"  FAILED: {check.name}" for check in report.checks if check.findings)
    yield from (f"  FOUND: {finding}" for finding in report.findings)


def _show_inspect(result: findings.InspectResult) -> Iterator[Line]:
    yield f"{result.path}: {result.kind}"
    for name, value in result.facts.items():
        yield from _show_fact(name, value)
    for unit, summary in result.lengths.items():
        yield from _show_lengths(unit, summary)
    for excerpt in result.excerpts:
        if excerpt.text is not None:
            yield from (f"  {excerpt.title}", *(f"    {line}" for line in excerpt.text.split("\n")))
        else:
            yield f"  {excerpt.title}: {count(excerpt.num_tokens, 'token')}{_origin_text(excerpt.origin)}"
            yield from (f"    {line}" for line in _show_tokens(excerpt))
    yield from (f"  {note}" for note in _show_notes(result.notes))
    yield from (f"  FOUND: {finding}" for finding in result.findings)


def _show_fact(name: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = [f"{path} {format_size(size)}" for path, size in value.items()]
    values = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else str(value)]
    for number, text in enumerate(values):
        title = f"  {name}: " if number == 0 else " " * (len(name) + 4)
        yield f"{title}{text}"


def _show_lengths(unit: str, summary: LengthSummary) -> Iterator[str]:
    mean = f", {summary.total / summary.count:,.1f} on average" if summary.count else ""
    yield f"  tokens of {unit}: {summary.total:,}{mean}, {summary.empty:,} empty"
    if summary.quantiles:
        yield "    " + "  ".join(f"{share}%: {value:,}" for share, value in summary.quantiles.items())


def _show_tokens(excerpt: findings.Excerpt) -> Iterator[str]:
    """Yield lines of tokens; brackets mark tokens that are trained on. A token with a newline ends its line."""
    line, width, position = "", 0, 0
    columns = min(shutil.get_terminal_size((TOKEN_COLUMNS, 0)).columns, TOKEN_COLUMNS) - 4
    for piece in excerpt.pieces:
        is_trained = excerpt.mask is not None and any(excerpt.mask[position : position + len(piece.ids)])
        position += len(piece.ids)
        text = "+".join(map(str, piece.ids)) if piece.text is None else piece.text
        cell = f"[{show_name(text)}]" if is_trained else show_name(text)
        if line and width + len(cell) + 1 > columns:
            yield line
            line, width = "", 0
        line += f"{cell}{BORDER}"
        width += len(cell) + 1
        if piece.text is not None and "\n" in piece.text:
            yield line
            line, width = "", 0
    suffix = f" … {count(excerpt.num_tokens - position, 'more token')}" if excerpt.num_tokens > position else ""
    if width + len(suffix) > columns:
        yield line
        line = ""
    if line or suffix:
        yield line + suffix


def _show_trace(result: findings.TracedSamples) -> Iterator[Line]:
    if len(result.samples) > 1:
        total = max(1, sum(draw.num_tokens for draw in result.datasets))
        yield f"{count(len(result.samples), 'sample')}, {count(total, 'token')}"
        rows = (
            (draw.prefix, show_percent(draw.num_tokens / total), draw.num_tokens, draw.num_samples, draw.num_documents)
            for draw in result.datasets
        )
        yield _make_table(rows, ("dataset", "of tokens", "tokens", "samples", "documents"))
    for sample in result.samples:
        tokens = sum(part.num_tokens for part in sample.parts)
        documents = count(len({(part.dataset, part.document) for part in sample.parts}), "document")
        step = "" if sample.step is None else f", step {sample.step}"
        yield f"sample {sample.sample:,} of {result.num_samples:,}{step}: {count(tokens, 'token')}, {documents}"
        for part in sample.parts:
            yield from _show_part(part)
    yield from _show_notes(result.notes)


def _show_part(part: TracedPart) -> Iterator[str]:
    tokens = f"tokens {part.offset}:{part.offset + part.num_tokens}"
    yield f"  {part.prefix}, document {part.document:,}, {tokens}{_origin_text(part.origin)}"
    suffix = "…" if part.num_tokens > len(part.tokens) else ""
    if part.text is not None:
        yield f"    {json.dumps(part.text, ensure_ascii=False)}{suffix}"
    elif part.tokens:
        yield f"    tokens {' '.join(map(str, part.tokens))}{suffix}"


def _origin_text(origin: DocumentOrigin | None) -> str:
    if origin is None:
        return ""
    part = "" if origin.part is None else f", document {origin.part.document:,} of {origin.part.prefix}"
    return part if origin.source is None else f"{part}, from {origin.source.path}, line {origin.source.line:,}"


def _show_consumed(result: findings.ConsumedTokens) -> Iterator[Line]:
    yield f"after {result.consumed:,} of {count(result.num_samples, 'sample')}:"
    rows = [
        (counts.prefix, counts.num_samples, times, tokens, show_percent(tokens / max(1, sum(counts.tokens_by_times))))
        for counts in result.datasets
        for times, tokens in enumerate(counts.tokens_by_times)
        if tokens
    ]
    yield _make_table(rows, ("dataset", "samples", "times read", "tokens", "of its tokens"))


def _show_report(result: report.ReportResult) -> Iterator[Line]:
    yield f"{result.output}: {count(len(result.datasets), 'dataset')}, {format_size(result.size_bytes)}"
    for section in result.datasets:
        summary = "not read"
        if section.documents is not None and section.tokens is not None:
            summary = f"{count(section.documents, 'document')}, {count(section.tokens, 'token')}, "
            summary += count(section.repetitions, "repetition")
        yield f"  {section.name}: {summary}"
        yield from (f"    {note}" for note in _show_notes(section.notes))
        yield from (f"    FOUND: {finding}" for finding in section.findings)
    yield from (f"  FOUND: {finding}" for finding in result.findings)


VIEWS: dict[str, Callable[[Any], Iterator[Line]]] = {
    view.__annotations__["result"].split(" | ")[0].partition(".")[2]: view
    for view in (
        *(_show_build, _show_consumed, _show_convert, _show_estimate, _show_index, _show_inspect, _show_instruct),
        *(_show_join, _show_merge, _show_mix, _show_pack, _show_raw_index, _show_report, _show_trace, _show_verify),
    )
}
"""Result class → function. Keys are names of classes, so that a command imports only its own results."""
