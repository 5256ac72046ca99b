"""What a job returns: a report that prints itself, on the command line and in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.amounts import count
from dsindex.engine.standard_streams import show_lines
from dsindex.json_text import show_name

if TYPE_CHECKING:
    from collections.abc import Iterable


class Report:
    """The result of a job: `str` has all facts, `repr` fits on one line."""

    __slots__ = ()

    def lines(self) -> list[str]:
        """Return the closing summary for people."""
        raise NotImplementedError

    def __str__(self) -> str:
        return show_lines(self.lines()).rstrip("\n")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({show_name(self.lines()[0])})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ANN401, ARG002 - as IPython calls it
        """Show all facts in a notebook."""
        printer.text(str(self))


def show_datasets(report: Report, datasets: Iterable[tuple[str, int, int]]) -> str:
    """Return a report on one line, from the name, documents and tokens of each dataset."""
    shown = (
        f"{name}: {count(documents, 'document')}, {count(tokens, 'token')}" for name, documents, tokens in datasets
    )
    return f"{type(report).__name__}({'; '.join(shown)})"
