"""`dsindex trace`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from dsindex.amounts import count
from dsindex.cli.options import enter_stores, read_config, requests_since
from dsindex.datasets.instruction import Packs
from dsindex.datasets.samples import Batches
from dsindex.errors import InputError
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.option_problems import show_value
from dsindex.options.config import UsageError
from dsindex.options.datasets import TraceConfig
from dsindex.options.mix_amounts import show_percent
from dsindex.tools.delivery import cache_and_prefixes, is_delivery
from dsindex.tools.trace import open_samples, trace_consumed, trace_document, trace_forward, trace_line
from dsindex.tools.verify_source import TracedTexts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from dsindex.store.requests import RequestCounts
    from dsindex.tools.trace import BackwardReport, ConsumedReport, ForwardReport, ShownPart, TracedDocument

DESCRIPTION = """\
Show which documents and lines of the inputs a training sample or step consists of, or which
samples and steps have a document or a line. Works on the index caches of dsindex and Megatron,
and on packs of `dsindex instruct`: P_packing_L, or the folder of the export bridge or sft-packed.

Samples and documents count from 0; steps, epochs and lines from 1. Token ranges such as 12:140
end before the second number, and count from the document's first token. A step is one of
Megatron's iterations with --dataloader-type single and a fixed --global-batch-size."""
EXAMPLES = (
    "dsindex trace out/cache --sample 3",
    "dsindex trace out/cache --step 1200 --global-batch-size 1024",
    "dsindex trace out/cache --line docs.jsonl:180",
    "dsindex trace out/cache --consumed 400000",
    "dsindex trace out/chat_packing_4096 --line chat.jsonl:7",
)
OPTIONS = (TraceConfig,)

Report = TypeVar("Report", "ForwardReport", "BackwardReport", "ConsumedReport")


def run(options: argparse.Namespace) -> int:
    """Trace, and print what was found."""
    config = read_config(options, TraceConfig)
    before = enter_stores(config)
    batches = _batches(config)
    texts = TracedTexts(config.tokenizer_model)
    numbers: Sequence[int] | None = config.sample
    document = None if config.document is None else _parse_place(config.document, "--document", "[PREFIX:]N")
    line = None if config.line is None else _parse_place(config.line, "--line", "FILE:LINE")
    cache, prefixes = config.cache, config.prefix
    if is_delivery(cache):
        cache, prefixes = cache_and_prefixes(cache, config.split or "train")
    samples = open_samples(cache, split=config.split, prefixes=prefixes)
    if isinstance(samples, Packs) and (config.consumed is not None or batches is not None):
        raise InputError(f"{cache}: packs have no steps, as trainers shuffle them; give --sample, --document or --line")
    if config.consumed is not None and not isinstance(samples, Packs):
        _print(config, trace_consumed(samples, config.consumed), describe_consumed, before)
        return 0
    if config.step is not None and batches is not None:
        try:
            numbers = batches.samples(config.step, len(samples), rank=config.data_parallel_rank)
        except ValueError as error:
            raise InputError(f"{config.cache}: {error}") from error
    if numbers is not None:
        forward = trace_forward(samples, numbers, texts=texts, batches=batches, shown_tokens=config.text_tokens)
        _print(config, forward, describe_forward, before)
        return 0
    if document is not None:
        prefix, number = document
        backward = trace_document(samples, number, prefix=prefix or None, batches=batches, texts=texts)
    elif line is not None:
        backward = trace_line(samples, line[0], line[1], batches=batches, texts=texts)
    _print(config, backward, describe_backward, before)
    return 0


def _batches(config: TraceConfig) -> Batches | None:
    """Return how samples are dealt out to steps, if that is given.

    Raises:
        UsageError: If the sizes contradict each other.
    """
    if config.global_batch_size is None:
        return None
    try:
        return Batches(
            global_batch_size=config.global_batch_size,
            micro_batch_size=config.micro_batch_size,
            data_parallel_size=config.data_parallel_size,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def describe_forward(report: ForwardReport) -> list[str]:
    """Return a report about samples as text."""
    lines = []
    for sample in report.samples:
        tokens = sum(part.end - part.begin for part in sample.parts)
        place = _place(sample.step, sample.rank)
        documents = count(len({(part.dataset, part.document) for part in sample.parts}), "document")
        lines.append(f"sample {sample.sample} of {report.num_samples:,}{place}: {count(tokens, 'token')}, {documents}")
        lines += [line for part in sample.parts for line in _describe_part(part)]
    lines += [f"note: {note}" for note in report.notes]
    return lines


def describe_consumed(report: ConsumedReport) -> list[str]:
    """Return a report about what was read as text."""
    lines = [f"after {report.consumed:,} of {count(report.num_samples, 'sample')}:"]
    for each in report.datasets:
        lines.append(f"{each.prefix}: {count(each.num_samples, 'sample')}")
        total = max(1, sum(each.tokens_by_times.values()))
        lines += [
            f"  read {times} time{'s' * (times != 1)}: {count(tokens, 'token')}, {show_percent(tokens / total)}"
            for times, tokens in each.tokens_by_times.items()
        ]
    if report.placeholders:
        lines.append(
            f"note: {count(report.placeholders, 'placeholder')}: the caches of the job before know what it read"
        )
    return lines


def describe_backward(report: BackwardReport) -> list[str]:
    """Return a report about documents as text."""
    lines = [line for document in report.documents for line in _describe_document(document, report.num_samples)]
    lines += [f"note: {note}" for note in report.notes]
    return lines


def _describe_part(part: ShownPart) -> list[str]:
    line = f"  {part.prefix}, document {part.document}, tokens {part.begin}:{part.end}{_describe_origin(part)}"
    more = "…" if part.end - part.begin > len(part.tokens) else ""
    if not part.tokens:
        return [line]
    if part.text is None:
        shown = [line, f"    tokens {' '.join(map(str, part.tokens))}{more}"]
        if part.document_text is not None:
            shown.append(f"    of the document {json.dumps(part.document_text, ensure_ascii=False)}")
        return shown
    return [line, f"    {json.dumps(part.text, ensure_ascii=False)}{more}"]


def _describe_document(document: TracedDocument, num_samples: int) -> list[str]:
    head = (
        f"{document.prefix}, document {document.document}: {count(document.num_tokens, 'token')}"
        f"{_describe_origin(document)}"
    )
    if not document.occurrences:
        return [head, f"  in none of the {count(num_samples, 'sample')}"]
    return [
        head,
        *(
            f"  epoch {each.epoch}: sample {each.sample}{_place(each.step, each.rank)}, tokens {each.begin}:{each.end}"
            for each in document.occurrences
        ),
    ]


def _describe_origin(of: ShownPart | TracedDocument) -> str:
    part = "" if of.part is None else f", document {of.part.document} of {of.part.prefix}"
    return part if of.source is None else f"{part}, from {of.source.path}, line {of.source.line}"


def _place(step: int | None, rank: int | None) -> str:
    return ("" if step is None else f", step {step}") + ("" if rank is None else f", rank {rank}")


def _parse_place(given: str, flag: str, form: str) -> tuple[str, int]:
    """Return what is before the last colon, and the number after it."""
    name, _, number = given.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,18}", number) or (flag == "--line" and (not name or int(number) < 1)):
        raise UsageError(f"{flag}: expected {form}, got {show_value(given)}")
    return name, int(number)


def _print(config: TraceConfig, report: Report, describe: Callable[[Report], list[str]], before: RequestCounts) -> None:
    if config.as_json:
        write_json(sys.stdout, asdict(report))
    else:
        write_lines(describe(report) + requests_since(before))
