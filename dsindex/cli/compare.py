"""`dsindex compare`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.cli.options import enter_stores, read_config, requests_since
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.options.config import UsageError
from dsindex.options.datasets import CompareConfig
from dsindex.tools.compare import are_caches, compare_caches, run_compare

if TYPE_CHECKING:
    import argparse

    from dsindex.tools.compare import CacheReport, CompareReport, Edges, Excerpt, IndexDifference, SplitComparison

DESCRIPTION = """\
Tell whether two datasets have the same tokens, and if not, where they first differ and by which rule:
what ends and begins documents (EOD, BOS), what became of empty texts, where documents end, or the
tokens of a text themselves. Both may be of any tool: MMIDIDX pairs or .pbin files. Where there are
manifests, differences of inputs, tokenizer, options and counts are listed, too.

Instruction data is compared with its loss masks and block layouts. Of two index caches, which may be
Megatron's own, every index is compared, and the settings in their descriptions.

The exit code is 1 if they differ."""
EXAMPLES = (
    "dsindex compare out/docs_text_document /old/docs_text_document",
    "dsindex compare out/cache /old/cache",
)
OPTIONS = (CompareConfig,)


def run(options: argparse.Namespace) -> int:
    """Compare two datasets or index caches and print what was found."""
    config = read_config(options, CompareConfig)
    before = enter_stores(config)
    if are_caches(config.first, config.second):
        if config.tokenizer_model is not None:
            raise UsageError("--tokenizer-model does not apply to index caches, which have no texts")
        caches = compare_caches(config.first, config.second)
        if config.as_json:
            write_json(sys.stdout, {"is_same": caches.is_same, **asdict(caches)})
        else:
            write_lines(describe_caches(caches))
        return 0 if caches.is_same else 1
    with make_reporter() as reporter:
        report = run_compare(config.first, config.second, tokenizer=config.tokenizer_model, reporter=reporter)
    if config.as_json:
        write_json(sys.stdout, {"is_same": report.is_same, **_plain(report)})
    else:
        write_lines(describe_comparison(report) + requests_since(before))
    return 0 if report.is_same else 1


def _plain(report: CompareReport) -> dict[str, object]:
    sides = [
        {"path": side.path, "documents": side.num_documents, "tokens": side.num_tokens, "dtype": side.dtype}
        for side in report.sides
    ]
    return {
        "sides": sides,
        "comparison": asdict(report.comparison),
        "first_difference": [None if excerpt is None else asdict(excerpt) for excerpt in report.excerpts],
        "same_text": report.same_text,
        "settings": [{"name": name, "a": a, "b": b} for name, a, b in report.settings],
        **({} if report.masks is None else {"masks": asdict(report.masks)}),
    }


def describe_comparison(report: CompareReport) -> list[str]:
    """Return the result as text."""
    lines = [
        f"{name}  {side.path}: {count(side.num_documents, 'document')}, {count(side.num_tokens, 'token')} "
        f"of type {side.dtype}"
        for name, side in zip("AB", report.sides, strict=True)
    ]
    lines += ["the same" if report.is_same else "DIFFERENT", *_describe_rules(report)]
    lines += _describe_difference(report)
    lines += _describe_masks(report)
    if report.settings:
        width = max(len(name) for name, _, _ in report.settings)
        lines += ["settings and counts:"]
        lines += [f"  {name:{width}}  A {a} · B {b}" for name, a, b in report.settings]
    return lines


def _describe_rules(report: CompareReport) -> list[str]:
    comparison = report.comparison
    if comparison.is_same:
        return [] if report.is_same else ["  the tokens are the same"]
    lines = []
    if comparison.same_tokens:
        is_of_documents = comparison.difference is not None or comparison.edges[0] != comparison.edges[1]
        what = "documents" if is_of_documents else "sequences within documents"
        lines.append(f"  the tokens are the same one after the other; the boundaries of {what} differ")
    if comparison.empty_sequences is not None:
        found = [count(number, "sequence") for number in comparison.empty_sequences]
        lines.append(f"  rule: empty texts: A has {found[0]} without tokens, B has {found[1]}; that is all")
    a, b = comparison.edges
    lines += [f"  rule: {sentence}" for sentence in _describe_edges(a, b)]
    if not lines and comparison.difference is not None:
        lines.append("  no rule for the edges of documents explains it")
    elif comparison.difference is None and not comparison.same_tokens:
        lines.append("  that is all: apart from it every document has the same tokens")
    return lines


def _describe_edges(a: Edges, b: Edges) -> list[str]:
    sentences = []
    for place, mine, other in (("end", a.last, b.last), ("begin", a.first, b.first)):
        name = {"end": "EOD", "begin": "BOS"}[place]
        if mine != other:
            sentences += [
                f"{side} {place}s documents with token {token} ({name}?), {elsewhere} does not"
                for side, token, elsewhere in (("A", mine, "B"), ("B", other, "A"))
                if token is not None
            ]
    if (a.num_empty, a.num_edges_only) != (b.num_empty, b.num_edges_only):
        sentences.append(f"empty texts: A has {_describe_empty(a)}, B has {_describe_empty(b)}")
    return sentences


def _describe_empty(edges: Edges) -> str:
    parts = []
    if edges.num_empty:
        rule = "" if edges.last is None else " (as --empty-documents keep)"
        parts.append(f"{count(edges.num_empty, 'empty document')}{rule}")
    if edges.num_edges_only:
        is_eod = edges.first is None and edges.last is not None
        rule = " (as --empty-documents eod)" if is_eod else ""
        parts.append(f"{count(edges.num_edges_only, 'document')} of such tokens only{rule}")
    return " and ".join(parts) or "none"


def _describe_difference(report: CompareReport) -> list[str]:
    if report.comparison.difference is None:
        return []
    lines = ["  first difference:" if not report.comparison.is_explained else "  difference:"]
    for name, excerpt in zip("AB", report.excerpts, strict=True):
        lines += _describe_excerpt(name, excerpt)
    if report.same_text:
        lines.append("    both tokenize the same text: another tokenizer, or special tokens read in another way")
    elif report.same_text is False:
        lines.append("    the texts differ, too")
    return lines


def _describe_excerpt(name: str, excerpt: Excerpt | None) -> list[str]:
    if excerpt is None:
        return [f"    {name}  has no further document"]
    place = f"document {excerpt.document:,}" + ("" if excerpt.source is None else f" ({excerpt.source})")
    ids = f"… {' '.join(map(str, excerpt.before))} | {' '.join(map(str, excerpt.ids)) or 'end'}"
    text = [] if excerpt.text is None else [f"       {excerpt.text!r}"]
    return [f"    {name}  {place}: {ids}", *text]


def _describe_masks(report: CompareReport) -> list[str]:
    masks = report.masks
    if masks is None:
        return []
    lines = ["  the loss masks are the same"]
    if masks.difference is not None:
        a, b = masks.trainable
        places = [
            f"{side} document {number:,}" + ("" if source is None else f" ({source})")
            for side, number, source in zip("AB", masks.difference.documents, report.mask_sources, strict=True)
            if number is not None
        ]
        lines = [
            f"  the loss masks differ: A has {count(a, 'trainable token')}, B has {b:,}",
            f"    first in {' and '.join(places)}, at token {masks.difference.token:,}",
        ]
    says = {True: "is the same", False: "differs", None: "is there on one side only"}
    return lines + [f"  the block layout {name} {says[same]}" for name, same in masks.layouts.items()]


def describe_caches(report: CacheReport) -> list[str]:
    """Return the result of comparing index caches as text."""
    lines = [f"{side}  {path}" for side, path in zip("AB", report.paths, strict=True)]
    lines.append("the same" if report.is_same else "DIFFERENT")
    for split in report.splits:
        lines += _describe_split(split)
    return lines


def _describe_split(split: SplitComparison) -> list[str]:
    if None in split.paths:
        side = "A" if split.paths[1] is None else "B"
        return [f"  {split.split}: only {side} has a cache of this split"]
    lines = [f"  {split.split}: {_describe_index(each)}" for each in split.differences]
    if not lines:
        lines = [f"  {split.split}: all {split.num_indices} indices are the same"]
    return lines + [f"  {split.split}: {name}  A {a} · B {b}" for name, a, b in split.settings]


def _describe_index(each: IndexDifference) -> str:
    name = each.index if each.dataset is None else f"{each.index} of dataset {each.dataset}"
    a, b = each.lengths
    if each.position is None or each.values is None:
        begins = "" if 0 in each.lengths else ", which begin the same"
        return f"{name}: A has {count(a, 'item')}, B has {b:,}{begins}"
    sizes = f"{a:,} items" if a == b else f"A's {a:,} and B's {b:,} items"
    mine, theirs = ("·".join(map(str, values)) for values in each.values)
    return f"{name} first differs at item {each.position:,} of {sizes}: A {mine}, B {theirs}"
