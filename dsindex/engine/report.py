"""What a job returns: a report that prints itself, on the command line, in Python and in notebooks, and as JSON.

A report says what it holds in lines and tables; rich lays them out. Nothing in them can control the terminal: every
line and cell is escaped here.
"""

from __future__ import annotations

import dataclasses
import io
import numbers
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from dsindex.amounts import count, format_size
from dsindex.json_text import encode_json, show_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    from dsindex.engine.job import Job
    from dsindex.engine.source import TextSource
    from dsindex.formats.manifest import RecordCounts, Run

UNBROKEN = 10_000
"""Columns where there is no terminal: lines stay whole, for grep and for files."""
STYLES = {"green": "intact", "yellow": "note|warning|sound", "red": "(?i:damaged|missing|different)|FAILED|FOUND"}
"""Words in colour where they begin a line or a cell, or end a line after a colon."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a head; columns of texts come first, and numbers, which are aligned to the right, after them."""

    head: tuple[str, ...] = ()
    rows: tuple[tuple[str | int, ...], ...]
    num_texts: int = 1


Line: TypeAlias = str | Table


class Report:
    """The result of a job: `str` has all facts, `repr` fits on one line."""

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what was looked at; otherwise the command's exit code is 1."""
        return True

    def lines(self) -> Iterable[Line]:
        """Return the closing summary for people."""
        raise NotImplementedError

    def __str__(self) -> str:
        file = io.StringIO()
        show(self.lines(), file)
        return file.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        first = next((line for line in self.lines() if isinstance(line, str) and line), "")
        return f"{type(self).__name__}({show_name(first)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ANN401, ARG002 - as IPython calls it
        """Show all facts in a notebook."""
        printer.text(str(self))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextResult(Report):
    """What the results of every job have that reads records."""

    already_complete: bool
    counts: RecordCounts
    """Record counts of all datasets together."""
    input_bytes: int
    made_bytes: int
    """The part of the inputs whose shards this run made."""
    seconds: float
    run: Run
    input_notes: tuple[str, ...]
    """Sentences about inputs that are given more than once."""

    def first_lines(self, *, complete: str, engine: str | None = None, quarantined: Sequence[str] = ()) -> list[str]:
        """Return what was read, how fast, and what became of the records.

        Args:
            complete: The first line if nothing was done.
            engine: Name of the engine.
            quarantined: Lines about bad records.
        """
        run, counts = self.run, self.counts
        made = f" ({format_size(self.made_bytes)} in this run)" if 0 < self.made_bytes < self.input_bytes else ""
        facts = [
            f"done in {self.seconds:.1f} s: {format_size(self.input_bytes)} of input{made}",
            *([f"{format_size(self.made_bytes / max(self.seconds, 1e-6))}/s"] if self.made_bytes else []),
            count(run.shards, "shard"),
            f"{run.executor} executor",
            count(run.workers, "worker"),
            *filter(None, [engine]),
        ]
        filtered = [f"{counts.filtered:,} filtered"] if counts.filtered else []
        parts = [f"{counts.kept:,} kept", *filtered, f"{counts.quarantined:,} quarantined", f"{counts.blank:,} blank"]
        return [
            complete if self.already_complete else ", ".join(facts),
            f"{count(counts.lines, 'line')} = {' + '.join(parts)}",
            *quarantined,
            *self.input_notes,
        ]


def outcome_fields(source: TextSource, job: Job) -> dict[str, Any]:
    """Return the fields of TextResult but the counts."""
    return {
        "already_complete": job.already_complete,
        "input_bytes": source.total_bytes,
        "made_bytes": job.made_bytes,
        "seconds": job.seconds,
        "run": job.manifests[0].run,
        "input_notes": source.notes,
    }


def show_datasets(report: Report, datasets: Iterable[tuple[str, int, int]]) -> str:
    """Return a report on one line, from the name, documents and tokens of each dataset."""
    shown = (
        f"{name}: {count(documents, 'document')}, {count(tokens, 'token')}" for name, documents, tokens in datasets
    )
    return f"{type(report).__name__}({'; '.join(shown)})"


def print_report(report: Report, *, as_json: bool) -> None:
    """Write the result of a command to standard output."""
    if as_json:
        sys.stdout.write(encode_json(plain(report), newline=True, ascii_only=True).decode())
    else:
        show(report.lines(), sys.stdout)


def plain(value: object) -> object:
    """Return a value as JSON has it; of a model, all fields and public properties.

    >>> plain(Table(head=("a",), rows=(("b", 1),)))
    {'head': ['a'], 'rows': [['b', 1]], 'num_texts': 1}
    """
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        names += [name for name in dir(type(value)) if isinstance(getattr(type(value), name), property)]
        return {name: plain(getattr(value, name)) for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return value if value is None or isinstance(value, str | float | bool) else str(value)


def show(lines: Iterable[Line], file: TextIO) -> None:
    """Write lines and tables; to a terminal in its width and colours."""
    from rich.console import Console  # loads what `--json` and a help text do not need

    console = Console(file=file, width=None if file.isatty() else UNBROKEN, markup=False, highlight=False, emoji=False)
    with console.capture() as laid_out:
        for line in lines:
            for part in [_grid(line)] if isinstance(line, Table) else _wrap(show_name(line), console):
                console.print(part, soft_wrap=not isinstance(line, Table))
    file.writelines(f"{line.rstrip()}\n" for line in laid_out.get().splitlines())


def _grid(table: Table) -> Grid:
    """Return a table as rich lays it out: names are folded where the terminal is narrow, numbers are not."""
    from rich.table import Table as Grid

    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(table.head), header_style="")
    for place, name in enumerate(table.head or table.rows[0]):
        is_text = place < table.num_texts
        grid.add_column(str(name), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in table.rows:
        grid.add_row(*(_styled(show_name(cell if isinstance(cell, str) else f"{cell:,}")) for cell in row))
    return grid


def _wrap(line: str, console: Console) -> Iterable[Text]:
    """Break a line between words; that of flags stays whole, so that it can be pasted into a shell."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    if len(line) > console.width and not line.startswith("--"):
        parts = textwrap.wrap(
            line, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    else:
        parts = [line]
    return map(_styled, parts)


def _styled(text: str) -> Text:
    from rich.text import Text

    shown = Text(text)
    for style, words in STYLES.items():
        shown.highlight_regex(rf"^ *({words})(?=:|$)|(?<=: )({words})$", style)
    return shown
