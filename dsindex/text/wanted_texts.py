"""The values that are wanted of a record, how one line is read, and how values become columns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dsindex.text.fields import read_fields
from dsindex.text.joining import join_texts
from dsindex.text.nested_columns import are_disjoint
from dsindex.text.record_blocks import RecordBlock, TextColumn
from dsindex.text.token_ids import TokenColumn, build_token_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.fields import Path, Texts
    from dsindex.text.patterns import TextPattern
    from dsindex.text.selection import Judgement, Selection

MAX_PATH_KEYS = 64
"""Keys of a path that the fast parsers follow."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_TEXT = pa.large_string()


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTexts:
    """The values to read from a record: texts by their keys, the one text of a pattern, or those of a selection."""

    path: str
    begin: int = 0
    """Where the part begins."""
    keys: tuple[str, ...]
    pattern: TextPattern | None = None
    selection: Selection | None = None

    def read_line(self, line: bytes) -> Judgement:
        """Return the values of a line, or the reason why it is no record."""
        return next(self.read_lines([line]))

    def read_lines(self, lines: Sequence[bytes]) -> Iterator[Judgement]:
        """Yield for each line what `read_line` returns."""
        if self.selection is not None:
            return self.selection.read_lines(lines)
        if self.pattern is not None:
            return self.pattern.read_lines(lines)
        return (read_fields(line, self.keys) for line in lines)

    @property
    def vocabulary_size(self) -> int | None:
        """Size of the vocabulary if the values are token ids; None for texts."""
        return None if self.selection is None else self.selection.vocabulary_size

    @property
    def paths(self) -> dict[str, Path] | None:
        """The path of each key; None if a whole block cannot be read at once.

        That is so with jq, with keys that are not Unicode, and with paths through more than MAX_PATH_KEYS objects.
        """
        paths: dict[str, Path] = {}
        if self.pattern is not None:
            paths = {} if self.pattern.key is None else {self.pattern.column: (self.pattern.key,)}
        elif self.selection is None:
            paths = {key: (key,) for key in self.keys}
        elif not self.selection.needs_jq:
            paths = {key.name: key.path for key in self.selection.keys if key.path is not None}
        is_plain = not any(len(path) > MAX_PATH_KEYS or any(map(_SURROGATE.search, path)) for path in paths.values())
        return paths if paths and is_plain and are_disjoint(list(paths.values())) else None

    def build_column(self, values: Sequence[Any]) -> TextColumn | TokenColumn:
        """Return the column of one key's values."""
        return _build_column(values) if self.vocabulary_size is None else build_token_column(values)

    def finish(self, block: RecordBlock) -> RecordBlock:
        """Return a block with the columns that were asked for: one if the texts of all keys are joined."""
        if self.selection is None or self.selection.join is None:
            return block
        columns = [column for column in block.columns.values() if isinstance(column, TextColumn)]
        joined = join_texts([(column.texts, column.texts_per_record) for column in columns], self.selection.join)
        [name] = self.selection.outputs
        return replace(block, columns={name: TextColumn(texts=joined, texts_per_record=None)})


def _build_column(values: Sequence[Texts]) -> TextColumn:
    if not any(isinstance(value, list) for value in values):
        return TextColumn(texts=pa.array(values, _TEXT), texts_per_record=None)
    lists = [value if isinstance(value, list) else [value] for value in values]
    return TextColumn(
        texts=pa.array([text for texts in lists for text in texts], _TEXT),
        texts_per_record=np.array([len(texts) for texts in lists], np.int64),
    )
