"""jq patterns that name a field of a record, or select messages that are excluded from training.

`.conversations | select(.from == "human")` is read in two parts. The part before the first `|` names the field. The
rest is a jq filter, which is applied to **each element** if the field is a list, otherwise to its value. An element is
selected if the filter returns anything but `null` and `false` for it (`select` returns the element itself or nothing).
Without a filter every element is selected. `.conversations[] | …` means the same.

What reaches beyond the record is refused when it is called: the environment, the clock, other inputs, files.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError, RecordProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOT_ALLOWED = "is not allowed, since output must depend on the record alone"
_REFUSED = (
    *("env", "now", "localtime", "strflocaltime(f)", "input", "inputs", "input_filename", "input_line_number"),
    *("modulemeta", "get_search_list", "debug", "debug(f)", "stderr", "halt", "halt_error", "halt_error(f)"),
)
_PRELUDE = " ".join(f"def {name}: error(\"'{name.removesuffix('(f)')}' {_NOT_ALLOWED}\");" for name in _REFUSED)
"""Stands before the program, in place of jq's own functions of these names; `import` may only be the very first."""
_HEAD = re.compile(
    r"""\s*\.(?:(?P<name>[A-Za-z_]\w*)|(?P<quoted>"[^"\\]+")|\[\s*(?P<bracket>"[^"\\]+")\s*\])
        \s*(?:\[\s*\]\s*)?(?:\|(?P<rest>.*))?\s*$""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WHOLE_LIST = re.compile(
    r"""\s*(?: \.\s*\[ [\s\d:-]* \]
      | (?:map|first|last|nth|limit|until|reverse|flatten|indices|sort|sort_by|group_by|unique|unique_by|min_by|max_by)
        (?![\w:]))""",
    re.VERBOSE,
)
"""The beginning of a filter that fails on a message."""
_SHOWN_CHARACTERS = 1000
"""Limit on jq's error messages, which may quote the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPattern:
    """A jq pattern that selects one value of a record."""

    name: str
    """Name by which the value is looked up."""
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPattern:
    """A pattern for what is excluded from training: a field, or elements of it. Made by `parse_mask_pattern`."""

    pattern: str
    field: str
    rest: str | None
    """The filter of an element; None for every element."""


class Patterns:
    """Patterns that are evaluated on the same records. Picklable and thread-safe.

    They are one jq program, which parses a record once. Fields are read only if all conditions hold, and masks look at
    the fields. For the condition `.a`, the field `.b` and the mask `.b | .c`:

        [(try {value: ([(.a)] | any)} catch {error: .})] as $holds
        | (if ($holds | all(.value)) then [(try {values: [(.b)]} catch {error: .})] else [] end) as $fields
        | {conditions: $holds, fields: $fields, masks: [[
            ($fields[0].values[0]? | if type == "array" then .[] else . end | try ([(.c)] | any) catch {error: .})]]}

    Args:
        fields: Values to read from each record.
        masks: Selections; their fields must be among `fields`.
        conditions: Programs of which a record must satisfy every one: at least one of a program's results must be
            neither null nor false.

    Raises:
        InputError: If a pattern is not jq.
    """

    def __init__(
        self, fields: Sequence[FieldPattern], masks: Sequence[MaskPattern] = (), conditions: Sequence[str] = ()
    ) -> None:
        self.fields, self.masks, self.conditions = tuple(fields), tuple(masks), tuple(conditions)
        for pattern in (*conditions, *(field.pattern for field in fields)):
            _compile(pattern, pattern)  # alone, so that an unbalanced bracket cannot affect the program around it
        for mask in masks:
            _compile(_element_filter(mask), mask.pattern)
        names = [field.name for field in fields]
        holds = [f"(try {{value: ([({pattern}\n)] | any)}} catch {{error: .}})" for pattern in conditions]
        values = [f"(try {{values: [({field.pattern}\n)]}} catch {{error: .}})" for field in fields]
        selected = [
            f'[($fields[{names.index(mask.field)}].values[0]? | if type == "array" then .[] else . end'
            f" | try ([({_element_filter(mask)}\n)] | any) catch {{error: .}})]"
            for mask in masks
        ]
        self._program = _compile(
            f"{_PRELUDE} null as $ENV | [{', '.join(holds)}] as $holds"
            f" | (if ($holds | all(.value)) then [{', '.join(values)}] else [] end) as $fields"
            f" | {{conditions: $holds, fields: $fields, masks: [{', '.join(selected)}]}}",
            " or ".join([*conditions, *(field.pattern for field in fields)]),
        )

    def __reduce__(self) -> tuple[type[Patterns], tuple[Any, ...]]:
        return Patterns, (self.fields, self.masks, self.conditions)

    def read(self, record: Mapping[str, Any] | bytes) -> PatternAnswers:
        """Evaluate the patterns on one record, or its JSON in UTF-8.

        Raises:
            RecordProblem: If the record nests too deeply to be written as JSON.
        """
        text = record.decode() if isinstance(record, bytes) else _write_record(record)
        try:
            [found] = self._program.input_text(text).all()
        except (ValueError, TypeError, RecursionError) as error:
            failed = {"error": str(error)}
            found = {"conditions": [failed] * len(self.conditions), "fields": [failed] * len(self.fields)}
        return PatternAnswers(self, found)


class PatternAnswers:
    """The results of patterns for one record."""

    def __init__(self, patterns: Patterns, found: dict[str, Any]) -> None:
        self._patterns, self._found = patterns, found

    def holds(self) -> bool:
        """Return whether every condition holds for the record.

        Raises:
            RecordProblem: If a condition fails on this record.
        """
        answers = zip(self._patterns.conditions, self._found["conditions"], strict=True)
        return all(_checked(pattern, answer)["value"] for pattern, answer in answers)

    def value(self, name: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value of a field, or None if it is missing or null.

        Raises:
            RecordProblem: If the pattern fails on this record, or returns several values.
        """
        for field, answer in zip(self._patterns.fields, self._found["fields"], strict=True):
            if field.name == name:
                values = _checked(field.pattern, answer)["values"]
                if len(values) > 1:
                    shown = f"pattern `{field.pattern}`: expected one value, got {len(values)}; leave out `[]`"
                    raise RecordProblem("pattern-error", shown)
                return values[0] if values else None
        raise KeyError(name)

    def selected(self, number: int) -> list[bool]:
        """Return for each element of a mask's field, or for its single value, whether the mask selects it.

        Args:
            number: Number of the mask in the order passed to `Patterns`; its field must have a value.

        Raises:
            RecordProblem: If the filter fails on an element.
        """
        selected: list[Any] = self._found["masks"][number]
        for place, answer in enumerate(selected, 1):
            if isinstance(answer, dict):
                _checked(self._patterns.masks[number].pattern, answer, f" on element {place}")
        return selected


def _element_filter(mask: MaskPattern) -> str:
    return "true" if mask.rest is None else mask.rest


def _checked(pattern: str, answer: dict[str, Any], place: str = "") -> dict[str, Any]:
    if "error" not in answer:
        return answer
    error = answer["error"]
    shown = error if isinstance(error, str) else f"(not a string): {json.dumps(error, ensure_ascii=False)}"
    if shown.endswith(_NOT_ALLOWED):
        raise InputError(f"jq pattern {pattern!r}: {shown}; if it is a key, write it with a dot or in quotes")
    raise RecordProblem("pattern-error", f"pattern `{pattern}` fails{place}: {_shorten(shown)}")


def _compile(program: str, pattern: str) -> Any:  # noqa: ANN401 - jq has no types
    import jq  # of all readers, only those of patterns need it

    try:
        return jq.compile(program)
    except ValueError as error:
        raise InputError(f"jq pattern {pattern!r}: {_shorten(str(error))}") from error


def _shorten(message: str) -> str:
    return message.strip().partition("\n")[0].removeprefix("jq: error: ").removesuffix(":")[:_SHOWN_CHARACTERS]


@functools.lru_cache(maxsize=16)
def open_patterns(fields: tuple[FieldPattern, ...], conditions: tuple[str, ...] = ()) -> Patterns:
    """Return the process-wide Patterns for these arguments: jq takes 20 ms to compile a program.

    Raises:
        InputError: If a pattern is not jq.
    """
    return Patterns(fields, conditions=conditions)


def _write_record(record: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except RecursionError:
        raise RecordProblem("bad-field", "expected a record of usual depth, got one nested too deep") from None
    except UnicodeEncodeError:
        raise RecordProblem("bad-text", "expected Unicode text, got a lone surrogate") from None
    return text


def parse_field_patterns(patterns: Mapping[str, str] | Sequence[str]) -> tuple[FieldPattern, ...]:
    """Parse patterns given by name, or as a list in which the last part of each path is its name.

    Raises:
        InputError: If the name of a pattern cannot be determined.

    >>> [field.name for field in parse_field_patterns([".conversations", ".meta.role"])]
    ['conversations', 'role']
    """
    if isinstance(patterns, Mapping):
        return tuple(FieldPattern(name=name, pattern=pattern) for name, pattern in patterns.items())
    named: dict[str, str] = {}
    for pattern in patterns:
        found = re.search(r"\.([A-Za-z_]\w*)\s*$", pattern)
        if found is None or found[1] in named:
            raise InputError(
                f"jq pattern {pattern!r}: expected a path that ends in a unique name; "
                "write the patterns as a mapping of name to pattern"
            )
        named[found[1]] = pattern
    return parse_field_patterns(named)


def parse_mask_pattern(pattern: str) -> MaskPattern:
    """Parse `.field` or `.field | filter`.

    Raises:
        InputError: If the pattern does not begin with a single field, or the filter with something that only a whole
            list has.

    >>> parse_mask_pattern('.conversations | select(.from == "human")').field
    'conversations'
    """
    found = _HEAD.match(pattern)
    if found is None:
        raise InputError(
            f"jq pattern {pattern!r}: expected the name of one field first, as in `.role` or `.messages | select(…)`"
        )
    name = found["name"] or (found["quoted"] or found["bracket"]).strip('"')
    if whole := _WHOLE_LIST.match(found["rest"] or ""):
        raise InputError(
            f"jq pattern {pattern!r}: {whole[0].strip()!r} is for a whole list, but the filter is applied to each "
            'message; write a condition for one message, as in `.conversations | select(.from == "human")`'
        )
    return MaskPattern(pattern=pattern, field=name, rest=found["rest"] and found["rest"].strip())
