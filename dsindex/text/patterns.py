"""Select the one text of a record with a jq pattern: a field by its name, which is fast, or any jq program.

`.key`, `."key"` and `.["key"]` are read like any other key (see `fields.py` and `whole_blocks.py`). Any other pattern
is run by jq on every line, in guarded processes; `dsindex.text.jq` says what a pattern must not contain.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING

from dsindex.errors import RecordProblem
from dsindex.guarded.limits import Limits, default_limits
from dsindex.text.fields import Texts, read_fields, type_name
from dsindex.text.jq import FieldPattern, open_patterns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.jq import PatternAnswers

_FIELD = re.compile(
    r"""\s*\.\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<quoted>"[^"\\]*")|\[\s*(?P<bracket>"[^"\\]*")\s*\])\s*""", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPattern:
    """A jq pattern that selects one text of a record."""

    pattern: str
    key: str | None
    """The top-level key, if the pattern only names one."""
    field: FieldPattern

    limits: Limits = dataclass_field(default_factory=default_limits)
    """jq's time and memory limits for one line."""

    @property
    def column(self) -> str:
        """Name of the column of texts."""
        return self.pattern if self.key is None else self.key

    def read_line(self, line: bytes) -> list[Texts] | str:
        """Read the text of one line.

        Args:
            line: The line without newline and BOM; not blank.

        Returns:
            The text, alone in a list; or a string with the reason why the line is not a record.

        Raises:
            LimitReachedError: If jq takes too much time or memory.

        >>> parse_text_pattern(".meta.text").read_line(b'{"meta": {"text": "a"}}')
        ['a']
        """
        [fields] = self.read_lines([line])
        return fields

    def read_lines(self, lines: Sequence[bytes]) -> Iterator[list[Texts] | str]:
        """Read the texts of lines in order; much faster than one by one.

        Yields:
            The same as `read_line` for each line.

        Raises:
            LimitReachedError: At the first line for which jq takes too much time or memory.
        """
        # jq accepts more than JSON lines, so it does not decide whether a line is a record.
        keys = () if self.key is None else (self.key,)
        parsed = [read_fields(line, keys) for line in lines]
        if self.key is not None:
            yield from (_check_text(fields, self.key) for fields in parsed)
            return
        patterns = open_patterns((self.field,), limits=self.limits)
        records = [line for line, fields in zip(lines, parsed, strict=True) if not isinstance(fields, str)]
        answers = patterns.read_all(records)
        for fields in parsed:
            yield fields if isinstance(fields, str) else self._text_of(next(answers))

    def _text_of(self, answers: PatternAnswers) -> list[Texts] | str:
        try:
            value = answers.value(self.field.name)
        except RecordProblem as problem:
            return problem.reason
        if isinstance(value, str):
            return [value]
        return f"expected a string from the jq pattern {self.pattern!r}, got {type_name(value)}"


def parse_text_pattern(pattern: str) -> TextPattern:
    """Parse a pattern.

    Raises:
        InputError: If it is not jq, or uses a part of jq that is not allowed.

    >>> parse_text_pattern('.["raw text"]').key, parse_text_pattern(".a.b").key
    ('raw text', None)
    """
    found = _FIELD.fullmatch(pattern)
    key = None
    if found is not None:
        key = found["name"] or json.loads(found["quoted"] or found["bracket"])
    parsed = TextPattern(pattern=pattern, key=key, field=FieldPattern(name="text", pattern=pattern))
    if key is None:
        open_patterns((parsed.field,), limits=parsed.limits)  # raises now if jq cannot compile it
    return parsed


def _check_text(fields: list[Texts] | str, key: str) -> list[Texts] | str:
    if isinstance(fields, str) or isinstance(fields[0], str):
        return fields
    return f"expected a string under the key {key!r}, got a list"
