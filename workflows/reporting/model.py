"""What a report shows, in the order of the page; all text is plain and is escaped when the page is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflows.reporting.drawing import Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose first column names the row."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: frozenset[int] = frozenset({0})
    """Columns of text; the others hold numbers."""
    code: frozenset[int] = frozenset()
    """Columns with text of a dataset, in which every space counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture, and the same as a sentence and as a table."""

    title: str
    description: str
    drawing: Drawing
    table: Table


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of which those that occur several times are numbered.

    >>> distinct(["a", "b", "a"])
    ['a (1)', 'b', 'a (2)']
    """
    total = Counter(names)
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if total[name] == 1 else f"{name} ({seen[name]})")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a section under one heading."""

    title: str
    sentences: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to show."""
        return not (self.sentences or self.pictures or self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A document to read."""

    document: int
    num_tokens: int
    kinds: tuple[str, ...]
    """Why it was chosen: drawn, longest, shortest, repeated."""
    facts: tuple[str, ...]
    """What is known of it, such as its source and its number of copies."""
    text: str
    """The beginning of its text, or of its ids without a tokenizer."""
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One dataset."""

    name: str
    kind: str
    tiles: tuple[tuple[str, str], ...] = ()
    """The main numbers: name and value."""
    facts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name and values."""
    notes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report."""

    title: str
    version: str
    """Version of dsindex that wrote it."""
    overview: tuple[Block, ...] = ()
    """What compares the datasets with each other."""
    sections: tuple[Section, ...] = ()
    closing: tuple[Block, ...] = ()
    """What is about all of them: splits, epochs and blends."""
