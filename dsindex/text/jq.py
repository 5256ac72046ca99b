"""jq patterns that name a field of a record, or select messages that are excluded from training.

`.conversations | select(.from == "human")` is read in two parts. The part before the first `|` names the field. The
rest is a jq filter, which is applied to **each element** if the field is a list, otherwise to its value. An element is
selected if the filter returns anything but `null` and `false` for it (`select` returns the element itself or nothing).
Without a filter every element is selected. `.conversations[] | …` means the same.

Names that reach beyond the record are refused: the environment, the clock, other inputs, files.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError, RecordProblem
from dsindex.text.fields import MAX_NESTING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_REFUSED = frozenset(
    {
        *("ENV", "env", "now", "localtime", "strflocaltime", "input", "inputs", "input_filename", "input_line_number"),
        *("include", "import", "modulemeta", "get_search_list"),
        *("debug", "stderr", "halt", "halt_error"),
    }
)
_CODE = re.compile(
    r"""(?P<quote>") | (?P<open>\() | (?P<close>\)) | (?P<comment>\#) | \.[A-Za-z_]\w* | \$\s*(?P<variable>\w+)
      | (?P<name>[A-Za-z_]\w*) | .""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_STRING = re.compile(r'(?P<quote>")|(?P<open>\\\()|\\.|.', re.DOTALL)
_HEAD = re.compile(
    r"""\s*\.(?:(?P<name>[A-Za-z_]\w*)|(?P<quoted>"[^"\\]+")|\[\s*(?P<bracket>"[^"\\]+")\s*\])
        \s*(?:\[\s*\]\s*)?(?:\|(?P<rest>.*))?\s*$""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WHOLE_LIST = re.compile(
    r"""\.\s*\[ \s* (?:-?\d+ | -?\d*\s*:\s*-?\d*) \s*\]
      | (?:map|first|last|nth|limit|until|reverse|flatten|indices|sort|sort_by|group_by|unique|unique_by|min_by|max_by)
        (?![\w:])""",
    re.VERBOSE,
)
"""The beginning of a filter that fails on a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPattern:
    """A jq pattern that selects one value of a record."""

    name: str
    """Name by which the value is looked up."""
    pattern: str

    def __post_init__(self) -> None:
        check_pattern(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPattern:
    """A pattern for what is excluded from training: a field, or elements of it. Made by `parse_mask_pattern`."""

    pattern: str
    field: str
    rest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternAnswers:
    """The results of patterns for one record."""

    fields: Mapping[str, dict[str, Any]]
    """By name; none if a condition does not hold."""
    masks: Sequence[dict[str, Any] | None]
    conditions: Sequence[dict[str, Any]] = ()

    def holds(self) -> bool:
        """Return whether every condition holds for the record.

        Raises:
            RecordProblem: If a condition fails on this record.
        """
        return all(_value_of(answer) for answer in self.conditions)

    def value(self, name: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value of a field, or None if it is missing or null.

        Raises:
            RecordProblem: If the pattern fails on this record, or returns several values.
        """
        return _value_of(self.fields[name])

    def selected(self, number: int) -> list[bool]:
        """Return for each element of a mask's field, or for its single value, whether the mask selects it.

        Args:
            number: Number of the mask in the order passed to `Patterns`; its field must have a value.

        Raises:
            RecordProblem: If the filter fails on an element.
        """
        answer = self.masks[number]
        if answer is None:
            raise ValueError(f"expected a mask whose field has a value, got mask {number}")
        selected: list[bool] = _value_of(answer)
        return selected


class Patterns:
    """Patterns that are evaluated on the same records. Picklable and thread-safe.

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
        for condition in conditions:
            check_pattern(condition)
        self._arguments = (fields, masks, conditions)
        self._program = _compile_jointly(conditions, [field.pattern for field in fields])
        self._selects = [_compile_mask(mask) for mask in masks]
        names = [field.name for field in fields]
        self._mask_fields = [names.index(mask.field) for mask in masks]

    def __reduce__(self) -> tuple[type[Patterns], tuple[Any, ...]]:
        return Patterns, self._arguments

    def read(self, record: Mapping[str, Any] | bytes) -> PatternAnswers:
        """Evaluate the patterns on one record, or its JSON in UTF-8.

        Raises:
            RecordProblem: If the record nests too deeply to be written as JSON.
        """
        line = record if isinstance(record, bytes) else write_record(record)
        fields, masks, conditions = self._arguments
        try:
            [found] = self._program.input_text(line.decode()).all()
        except (ValueError, TypeError, RecursionError) as error:
            failed = {"error": str(error)}
            found = {"conditions": [failed] * len(conditions), "fields": [failed] * len(fields)}
        # There are no fields if a condition does not hold.
        values = [_read_value(field.pattern, each) for field, each in zip(fields, found["fields"], strict=False)]
        return PatternAnswers(
            conditions=[_read_value(*each) for each in zip(conditions, found["conditions"], strict=True)],
            fields=dict(zip((field.name for field in fields), values, strict=False)),
            masks=[
                _select(mask.pattern, values[number], select)
                for mask, number, select in zip(masks, self._mask_fields, self._selects, strict=True)
                if values
            ],
        )

    def read_all(self, records: Sequence[bytes]) -> Iterator[PatternAnswers]:
        """Evaluate the patterns on records, each one JSON value in UTF-8, in order."""
        return map(self.read, records)


@functools.lru_cache(maxsize=16)
def open_patterns(
    fields: tuple[FieldPattern, ...], masks: tuple[MaskPattern, ...] = (), conditions: tuple[str, ...] = ()
) -> Patterns:
    """Return the process-wide Patterns for these arguments: jq takes 20 ms to compile a program.

    Raises:
        InputError: If a pattern is not jq.
    """
    return Patterns(fields, masks, conditions)


def write_record(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON in the form that `Patterns.read_all` expects.

    Raises:
        RecordProblem: If it nests too deeply, or a text contains a lone surrogate.
    """
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise RecordProblem("bad-field", "expected a record of usual depth, got one nested too deep") from None
    except UnicodeEncodeError:
        raise RecordProblem("bad-text", "expected Unicode text, got a lone surrogate") from None


def parse_field_patterns(patterns: Mapping[str, str] | Sequence[str]) -> tuple[FieldPattern, ...]:
    """Parse patterns given by name, or as a list in which the last part of each path is its name.

    Raises:
        InputError: If a pattern is refused, or its name cannot be determined.

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
        InputError: If the pattern does not begin with a single field, or is refused.

    >>> parse_mask_pattern('.conversations | select(.from == "human")').field
    'conversations'
    """
    check_pattern(pattern)
    found = _HEAD.match(pattern)
    if found is None:
        raise InputError(
            f"jq pattern {pattern!r}: expected the name of one field first, as in `.role` or `.messages | select(…)`"
        )
    name = found["name"] or (found["quoted"] or found["bracket"]).strip('"')
    return MaskPattern(pattern=pattern, field=name, rest=_element_filter(pattern, found["rest"]))


def _element_filter(pattern: str, rest: str | None) -> str | None:
    """Return the filter for one element: without `.[] |` in front, or `map(…)` around it, which plain jq needs.

    Raises:
        InputError: If the filter begins with something that only a whole list has.
    """
    if rest is None:
        return None
    rest = rest.strip()
    if iterated := re.match(r"\.\s*\[\s*\]\s*(?:\|(?P<rest>.*))?$", rest, re.DOTALL):
        return iterated["rest"].strip() if iterated["rest"] is not None else None
    if (mapped := re.match(r"map\s*(?P<inner>\(.*\))\s*$", rest, re.DOTALL)) and _is_one_group(mapped["inner"]):
        return mapped["inner"][1:-1].strip()
    if found := _WHOLE_LIST.match(rest):
        raise InputError(
            f"jq pattern {pattern!r}: {found[0].strip()!r} is for a whole list, but the filter is applied to each "
            'message; write a condition for one message, as in `.conversations | select(.from == "human")`'
        )
    return rest


def _is_one_group(text: str) -> bool:
    """Tell whether the parenthesis at a text's beginning is closed at its end."""
    return next((end for _, _, num_open, end in _scan(text) if num_open == 0), None) == len(text)


def check_pattern(pattern: str) -> None:
    """Refuse patterns that reach beyond the record. jq checks the syntax later, when it compiles them.

    Raises:
        InputError: Naming what is refused.
    """
    for kind, text, _, _ in _scan(pattern):
        if kind == "comment":
            raise InputError(f"jq pattern {pattern!r}: expected a pattern without comments; leave them out")
        if (kind == "name" and text in _REFUSED) or (kind == "variable" and text == "ENV"):
            raise InputError(
                f"jq pattern {pattern!r}: {text!r} is not allowed, since output must depend on the record alone; "
                "if it is a key, write it in quotes"
            )


def _scan(pattern: str) -> Iterator[tuple[str | None, str, int, int]]:
    """Yield the tokens of a jq program, those of interpolated strings too: kind, text, open parentheses and end."""
    depths = [0]  # open parentheses in the program, and in each enclosing interpolation
    position, in_string = 0, False
    while found := (_STRING if in_string else _CODE).match(pattern, position):
        position = found.end()
        kind = found.lastgroup
        if kind == "quote":
            in_string = not in_string
        elif kind == "open" and in_string:
            depths.append(0)
            in_string = False
        elif kind == "close" and depths[-1] == 0 and len(depths) > 1:
            depths.pop()
            in_string = True
        elif kind in {"open", "close"}:
            depths[-1] += 1 if kind == "open" else -1
        yield kind, found[kind or 0], len(depths) - 1 + in_string + sum(depths), position


def _value_of(answer: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    if "problem" in answer:
        raise RecordProblem("pattern-error", answer["problem"])
    return answer["value"]


Answer = dict[str, Any]
_SHOWN_CHARACTERS = 1000
"""Limit on jq's error messages, which may quote the record."""


def _compile(program: str, pattern: str) -> Any:  # noqa: ANN401 - jq has no types
    import jq  # of all readers, only those of patterns need it

    try:
        return jq.compile(program)
    except ValueError as error:
        raise InputError(f"jq pattern {pattern!r}: {_shorten(str(error))}") from error


def _compile_mask(mask: MaskPattern) -> Any:  # noqa: ANN401 - as above
    if mask.rest is None:
        return None
    # Compiled alone first, so that an unbalanced bracket cannot affect the program around it.
    _compile(mask.rest, mask.pattern)
    return _compile(f"[.[] | try ([({mask.rest})] | any) catch {{error: .}}]", mask.pattern)


def _compile_jointly(conditions: Sequence[str], fields: Sequence[str]) -> Any:  # noqa: ANN401 - as above
    """Compile conditions and fields as one program, which parses a record once.

    The fields are read only if all conditions hold. For the condition `.a` and the field `.b`:

        [(try {value: ([(.a)] | any)} catch {error: .})] as $holds
        | {conditions: $holds,
           fields: (if ($holds | all(.value)) then [(try {values: [(.b)]} catch {error: .})] else [] end)}
    """
    for pattern in (*conditions, *fields):
        _compile(pattern, pattern)  # alone, so that an unbalanced bracket cannot affect the program around it
    holds = ", ".join(f"(try {{value: ([({pattern})] | any)}} catch {{error: .}})" for pattern in conditions)
    values = ", ".join(f"(try {{values: [({pattern})]}} catch {{error: .}})" for pattern in fields)
    return _compile(
        f"[{holds}] as $holds | "
        f"{{conditions: $holds, fields: (if ($holds | all(.value)) then [{values}] else [] end)}}",
        " or ".join([*conditions, *fields]),
    )


def _read_value(pattern: str, answer: Answer) -> Answer:
    """Return the `value` or the `problem` of a condition or a field."""
    if "error" in answer:
        error = answer["error"]
        shown = error if isinstance(error, str) else f"(not a string): {json.dumps(error, ensure_ascii=False)}"
        return _fails(pattern, shown)
    values = answer.get("values")
    if values is None:
        return answer
    if len(values) > 1:
        return {"problem": f"pattern `{pattern}`: expected one value, got {len(values)}; leave out `[]`"}
    if _is_too_deep(values):
        return {"problem": f"pattern `{pattern}`: expected at most {MAX_NESTING} objects and lists inside each other"}
    return {"value": values[0] if values else None}


def _select(pattern: str, field: Answer, program: Any) -> Answer | None:  # noqa: ANN401 - as above
    """Return for each element of a list, or for a single value, whether it is selected."""
    value = field.get("value")
    if value is None:
        return None
    elements = value if isinstance(value, list) else [value]
    if program is None:
        return {"value": [True] * len(elements)}
    try:
        [selected] = program.input_value(elements).all()
    except (ValueError, TypeError, RecursionError) as error:
        return _fails(pattern, str(error))
    for number, answer in enumerate(selected, 1):
        if isinstance(answer, dict):
            reason = str(answer["error"])[:_SHOWN_CHARACTERS]
            return {"problem": f"pattern `{pattern}` fails on element {number}: {reason}"}
    return {"value": selected}


def _is_too_deep(values: list[Any]) -> bool:
    level: list[Any] = values
    for _ in range(MAX_NESTING + 1):
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [item for items in inner for item in items]
        if not level:
            return False
    return True


def _fails(pattern: str, message: str) -> Answer:
    return {"problem": f"pattern `{pattern}` fails: {_shorten(message)}"}


def _shorten(message: str) -> str:
    return message.strip().partition("\n")[0].removeprefix("jq: error: ").removesuffix(":")[:_SHOWN_CHARACTERS]
