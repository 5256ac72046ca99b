"""`dsindex inspect`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_size
from dsindex.cli.options import enter_stores, read_config, requests_since
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.json_text import encode_json
from dsindex.options.datasets import InspectConfig
from dsindex.tools.inspect import run_inspect, show_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from dsindex.tools.inspect import Excerpt, Inspection
    from dsindex.tools.inspect_origin import LengthSummary

DESCRIPTION = """\
Show what a path is, told from its files: a dataset of .bin and .idx, a .pbin of any version, a raw
index, an index cache, instruction data, the work folder of a job, or a manifest. Without a choice:
type, sizes, origin, quantiles of the documents' lengths, and the first documents as text.

Tokens are divided by │, and characters that control a terminal are escaped. The tokenizer is the
one in the manifest, if it is unchanged; without one, ids are shown. Tokens of instruction data that
are trained on are green in a terminal, and in brackets elsewhere.

Exit code 0: readable. 1: damaged; each finding is one line."""
EXAMPLES = (
    "dsindex inspect out/docs_text_document",
    "dsindex inspect out/docs_text_document --find 'some words'",
    "dsindex inspect out/cache --sample 3",
)
OPTIONS = (InspectConfig,)
WIDTH = 100
BORDER = "│"
STYLES = {"border": "2", "name": "1", "escape": "33", "found": "7", "learnt": "32", "damage": "31"}


def run(options: argparse.Namespace) -> int:
    """Look at one path and print what was seen."""
    config = read_config(options, InspectConfig)
    before = enter_stores(config)
    seen = run_inspect(config)
    if not config.as_json:
        is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        shown = describe_inspection(seen, ids=config.ids, colored=is_colored, brief=not config.is_overview)
        sys.stdout.write(shown)
        write_lines(requests_since(before))
    elif sys.stdout.isatty():  # C1 control characters, which JSON allows, may control a terminal
        sys.stdout.write(encode_json(asdict(seen), newline=True, ascii_only=True).decode())
    else:
        write_json(sys.stdout, asdict(seen))
    return 1 if seen.findings else 0


def describe_inspection(seen: Inspection, *, ids: bool = False, colored: bool = False, brief: bool = False) -> str:
    """Return what was seen as text, in which nothing from the files can control a terminal.

    Args:
        seen: What was seen.
        ids: Show the id before the text of each token.
        colored: Use the colours of a terminal.
        brief: Leave out sizes and origin.
    """
    page = _Page(ids=ids, colored=colored)
    return "".join(f"{line}\n" for line in page.lines(seen, brief=brief))


class _Page:
    """Lays out an inspection; every text goes through `_text`, which escapes it."""

    def __init__(self, *, ids: bool, colored: bool) -> None:
        self._ids = ids
        self._colored = colored

    def lines(self, seen: Inspection, *, brief: bool) -> Iterator[str]:
        yield self._text(f"{seen.path}: {seen.kind}", "name")
        for name, value in () if brief else seen.facts.items():
            yield from self._fact(name, value)
        for what, summary in seen.lengths.items():
            yield from self._lengths(what, summary)
        if seen.matches is not None:
            yield f"  {count(seen.matches, 'occurrence') if seen.matches else 'no occurrence'}"
        for excerpt in seen.excerpts:
            yield from self._excerpt(excerpt)
        yield from (f"  note: {self._text(note)}" for note in seen.notes)
        yield from (f"  {self._text('FOUND:', 'damage')} {self._text(finding)}" for finding in seen.findings)

    def _fact(self, name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - values of JSON
        if isinstance(value, dict):
            value = [f"{path} {format_size(size)}" for path, size in value.items()]
        values = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else str(value)]
        title = f"  {self._text(name, 'name')}: "
        for number, each in enumerate(values):
            yield f"{title if number == 0 else ' ' * (len(name) + 4)}{self._text(str(each))}"

    def _lengths(self, what: str, summary: LengthSummary) -> Iterator[str]:
        mean = f", {summary.total / summary.count:,.1f} on average" if summary.count else ""
        yield f"  {self._text('tokens of ' + what, 'name')}: {summary.total:,}{mean}, {summary.empty:,} empty"
        if summary.quantiles:
            yield "    " + "  ".join(f"{share}%: {value:,}" for share, value in summary.quantiles.items())

    def _excerpt(self, excerpt: Excerpt) -> Iterator[str]:
        head = f"  {self._text(excerpt.title, 'name')}"
        if excerpt.text is not None:
            yield head
            yield f"    {self._text(excerpt.text)}"
            return
        head += f": {count(excerpt.num_tokens, 'token')}"
        if excerpt.part is not None:
            head += f", document {excerpt.part.document:,} of {self._text(excerpt.part.prefix)}"
        if excerpt.source is not None:
            source = excerpt.source
            head += f", {self._text(source.input)}, line {source.line:,}"
            head += f" ({self._text('the input is ' + source.problem, 'damage')})" if source.problem else ""
        yield head
        yield from (f"    {line}" for line in self._tokens(excerpt))

    def _tokens(self, excerpt: Excerpt) -> Iterator[str]:
        line, width, place = "…" if excerpt.begin else "", 0, excerpt.begin
        for piece in excerpt.pieces:
            marked = excerpt.marked is not None and excerpt.marked[0] <= place < excerpt.marked[1]
            learnt = excerpt.mask is not None and any(excerpt.mask[place : place + len(piece.ids)])
            place += len(piece.ids)
            ids = "+".join(map(str, piece.ids))
            text = ids if piece.text is None else f"{ids}:{piece.text}" if self._ids else piece.text
            shown = show_text(text)
            if (marked or learnt) and not self._colored:
                shown = f"[{shown}]"
            if line and width + len(shown) + 1 > WIDTH:
                yield line
                line, width = "", 0
            style = "found" if marked else "learnt" if learnt else "escape" if shown != text else None
            line += self._styled(shown, style) + self._styled(BORDER, "border")
            width += len(shown) + 1
            if piece.text is not None and "\n" in piece.text:
                yield line
                line, width = "", 0
        rest = excerpt.num_tokens - excerpt.end
        if rest > 0 and excerpt.marked is None:
            line += f" … {count(rest, 'more token')}"
        elif rest > 0:
            line += "…"
        if line:
            yield line

    def _text(self, text: str, style: str | None = None) -> str:
        return self._styled(show_text(text), style)

    def _styled(self, text: str, style: str | None) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self._colored and style is not None else text
