"""The one text that a jq pattern gives of a record: a field by its name, which is fast, or whatever else jq finds.

`.key`, `."key"` and `.["key"]` are read as keys are everywhere (see `fields.py` and `records.py`). Any other pattern is
run by jq on every line; what of jq may stand in it says `dsindex.instruct.patterns`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dsindex.instruct.patterns import FieldPattern
from dsindex.instruct.records import RecordProblem, type_name
from dsindex.text.fields import Texts, read_fields

_FIELD = re.compile(
    r"""\s*\.\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<quoted>"[^"\\]*")|\[\s*(?P<bracket>"[^"\\]*")\s*\])\s*""", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPattern:
    """A jq pattern that gives one text of a record."""

    pattern: str
    key: str | None
    """The top-level key that the pattern names, where it does nothing else."""
    field: FieldPattern

    @property
    def column(self) -> str:
        """What the texts are called from here on."""
        return self.pattern if self.key is None else self.key

    def read_line(self, line: bytes) -> list[Texts] | str:
        """Read the text of one line.

        Args:
            line: The line without newline and BOM; not blank.

        Returns:
            The text, alone in a list; or, as a string, the reason why the line is no record.

        >>> parse_text_pattern(".meta.text").read_line(b'{"meta": {"text": "a"}}')
        ['a']
        """
        # Whether the line is a record at all is never left to jq, which reads more than JSON lines.
        fields = read_fields(line, () if self.key is None else (self.key,))
        if isinstance(fields, str):
            return fields
        if self.key is not None:
            if isinstance(fields[0], str):
                return fields
            return f"expected a string under the key {self.key!r}, got a list"
        try:
            value = self.field.read_line(line.decode("utf-8"))
        except RecordProblem as problem:
            return problem.reason
        if isinstance(value, str):
            return [value]
        return f"expected a string from the jq pattern {self.pattern!r}, got {type_name(value)}"


def parse_text_pattern(pattern: str) -> TextPattern:
    """Read a pattern.

    Raises:
        InputError: If it is no jq, or of a part of jq that is not allowed.

    >>> parse_text_pattern('.["raw text"]').key, parse_text_pattern(".a.b").key
    ('raw text', None)
    """
    found = _FIELD.fullmatch(pattern)
    key = None
    if found is not None:
        key = found["name"] or json.loads(found["quoted"] or found["bracket"])
    return TextPattern(pattern=pattern, key=key, field=FieldPattern(name="text", pattern=pattern))
