"""jq patterns that name a field of a record, or select messages that are excluded from training.

`.conversations | select(.from == "human")` is read in two parts. The part before the first `|` names the field. The
rest is a jq filter, which is applied to **each element** if the field is a list, otherwise to its value. An element is
selected if the filter returns anything but `null` and `false` for it (`select` returns the element itself or nothing).
Without a filter every element is selected. `.conversations[] | …` means the same.

jq runs in guarded processes (`jq_programs.py`), so a pattern may be any jq program. Names that reach beyond the record
are refused: the environment, the clock, other inputs, files.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError, RecordProblem
from dsindex.guarded.process import GuardedWork, LimitReachedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.guarded.limits import Limits

_REFUSED = frozenset(
    {
        *("ENV", "env", "now", "input", "inputs", "input_filename", "input_line_number"),
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
        is_joint: Parse each record once for all fields and conditions; needed for conditions, and not with masks.
        limits: Time and memory limits for one record; None for the defaults.

    Raises:
        InputError: If a pattern is not jq.
    """

    def __init__(
        self,
        fields: Sequence[FieldPattern],
        masks: Sequence[MaskPattern] = (),
        *,
        conditions: Sequence[str] = (),
        is_joint: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if (masks and is_joint) or (conditions and not is_joint):
            raise ValueError("expected conditions with is_joint, and masks without it")
        for condition in conditions:
            check_pattern(condition)
        self._names = [field.name for field in fields]
        patterns = [field.pattern for field in fields] + [mask.pattern for mask in masks if mask.rest is not None]
        patterns += conditions
        shown = " or ".join(f"`{pattern}`" for pattern in patterns)
        definition = {
            "fields": [field.pattern for field in fields],
            "masks": [
                {"pattern": mask.pattern, "field": self._names.index(mask.field), "rest": mask.rest} for mask in masks
            ],
            "conditions": list(conditions),
            "is_joint": is_joint,
        }
        try:
            self._work = GuardedWork(
                "dsindex.text.jq_programs", definition, subject=f"the jq pattern {shown}", limits=limits
            )
        except LimitReachedError as error:
            raise InputError(f"{error.reason}; change it") from error
        if self._work.facts["refused"] is not None:
            pattern, reason = self._work.facts["refused"]
            raise InputError(f"jq pattern {pattern!r}: {reason}")

    def read(self, record: Mapping[str, Any]) -> PatternAnswers:
        """Evaluate the patterns on one record.

        Raises:
            RecordProblem: If the record nests too deeply to be written as JSON.
            LimitReachedError: If it takes too much time or memory.
        """
        [answers] = self.read_all([write_record(record)])
        return answers

    def read_all(self, records: Sequence[bytes]) -> Iterator[PatternAnswers]:
        """Evaluate the patterns on records, in order.

        Args:
            records: Each one JSON value in UTF-8, without a newline; a few MiB together.

        Raises:
            LimitReachedError: At the first record that takes too much time or memory.
        """
        for answer in self._work.run(records):
            # There are no fields if a condition does not hold.
            fields = dict(zip(self._names, answer["fields"], strict=bool(answer["fields"])))
            yield PatternAnswers(fields=fields, masks=answer["masks"], conditions=answer["conditions"])


@functools.lru_cache(maxsize=16)
def open_patterns(
    fields: tuple[FieldPattern, ...],
    masks: tuple[MaskPattern, ...] = (),
    limits: Limits | None = None,
    conditions: tuple[str, ...] = (),
    *,
    is_joint: bool = False,
) -> Patterns:
    """Return the process-wide Patterns for these arguments, so that all tasks share their child processes.

    Raises:
        InputError: If a pattern is not jq.
    """
    return Patterns(fields, masks, conditions=conditions, is_joint=is_joint, limits=limits)


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
    depth, position, in_string = 0, 0, False
    while position < len(text):
        character = text[position]
        if in_string:
            position += character == "\\"
            in_string = character != '"'
        elif character == '"':
            in_string = True
        else:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return position == len(text) - 1
        position += 1
    return False


def check_pattern(pattern: str) -> None:
    """Refuse patterns that reach beyond the record. jq checks the syntax later, when it compiles them.

    Raises:
        InputError: Naming what is refused.
    """
    for name in _names_in(pattern):
        if name in _REFUSED:
            raise InputError(
                f"jq pattern {pattern!r}: {name!r} is not allowed, since output must depend on the record alone; "
                "if it is a key, write it in quotes"
            )


def _names_in(pattern: str) -> Iterator[str]:
    """Yield the names that a jq program uses, including those in interpolated strings, except names of fields."""
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
        elif kind == "open":
            depths[-1] += 1
        elif kind == "close" and depths[-1] == 0 and len(depths) > 1:
            depths.pop()
            in_string = True
        elif kind == "close":
            depths[-1] -= 1
        elif kind == "comment":
            raise InputError(f"jq pattern {pattern!r}: expected a pattern without comments; leave them out")
        elif kind == "name" or (kind == "variable" and found["variable"] == "ENV"):
            yield found[kind]


def _value_of(answer: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    if "problem" in answer:
        raise RecordProblem("pattern-error", answer["problem"])
    return answer["value"]
