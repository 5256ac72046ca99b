"""jq patterns that name a field of a record, or select messages that are not trained on.

`.conversations | select(.from == "human")`, as the spec writes it, is read in two parts. Up to the first `|` stands the
field. The rest is a jq filter; where the field is a list it is asked about **each element** on its own, else about the
field's value. An element is selected if the filter gives anything but `null` and `false` for it (`select` gives the
element itself or nothing). Without a rest every element is selected. `.conversations[] | …` means the same.

jq runs in guarded processes (`jq_programs.py`), so a pattern may be any jq. Refused by name is what sees more than the
record: the environment, the clock, other inputs, files.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPattern:
    """A jq pattern that gives one value of a record."""

    name: str
    """What the value is called from here on."""
    pattern: str

    def __post_init__(self) -> None:
        check_pattern(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPattern:
    """A pattern that selects what is not trained on: a field, or elements of it. Made by `parse_mask_pattern`."""

    pattern: str
    field: str
    rest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternAnswers:
    """What patterns found in one record."""

    fields: Mapping[str, dict[str, Any]]
    masks: Sequence[dict[str, Any] | None]

    def value(self, name: str) -> Any:  # noqa: ANN401  (any JSON value)
        """Return the value of a field, or None where the record has none or a null.

        Raises:
            RecordProblem: If the pattern fails on this record, or gives several values.
        """
        return _value_of(self.fields[name])

    def selected(self, number: int) -> list[bool]:
        """Tell for each element of a mask's field, or for its one value, whether the mask selects it.

        Args:
            number: Of the mask, in the order given to `Patterns`; its field must have a value.

        Raises:
            RecordProblem: If the filter fails on an element.
        """
        answer = self.masks[number]
        if answer is None:
            raise ValueError(f"expected a mask whose field has a value, got mask {number}")
        selected: list[bool] = _value_of(answer)
        return selected


class Patterns:
    """Patterns that are asked about the same records. Can be pickled; safe in threads.

    Args:
        fields: What is read of a record.
        masks: What is selected; their fields must be among `fields`.
        limits: What one record may cost; the usual ones where None.

    Raises:
        InputError: If a pattern is not jq.
    """

    def __init__(
        self, fields: Sequence[FieldPattern], masks: Sequence[MaskPattern] = (), *, limits: Limits | None = None
    ) -> None:
        self._names = [field.name for field in fields]
        patterns = [field.pattern for field in fields] + [mask.pattern for mask in masks if mask.rest is not None]
        shown = " or ".join(f"`{pattern}`" for pattern in patterns)
        definition = {
            "fields": [field.pattern for field in fields],
            "masks": [
                {"pattern": mask.pattern, "field": self._names.index(mask.field), "rest": mask.rest} for mask in masks
            ],
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
        """Ask about one record.

        Raises:
            RecordProblem: If the record nests too deep to be written as JSON.
            LimitReachedError: If it takes too much time or memory.
        """
        [answers] = self.read_all([write_record(record)])
        return answers

    def read_all(self, records: Sequence[bytes]) -> Iterator[PatternAnswers]:
        """Ask about records in order.

        Args:
            records: Each one JSON value in UTF-8, without a newline; a few MiB together.

        Raises:
            LimitReachedError: In place of the first one that takes too much time or memory.
        """
        for answer in self._work.run(records):
            fields = dict(zip(self._names, answer["fields"], strict=True))
            yield PatternAnswers(fields=fields, masks=answer["masks"])


@functools.lru_cache(maxsize=16)
def open_patterns(
    fields: tuple[FieldPattern, ...], masks: tuple[MaskPattern, ...] = (), limits: Limits | None = None
) -> Patterns:
    """Return the process-wide Patterns of these arguments, so that all tasks share their child processes.

    Raises:
        InputError: If a pattern is not jq.
    """
    return Patterns(fields, masks, limits=limits)


def write_record(record: Mapping[str, Any]) -> bytes:
    """Write a record as `Patterns.read_all` takes it.

    Raises:
        RecordProblem: If it nests too deep, or a text holds a lone surrogate.
    """
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise RecordProblem("bad-field", "expected a record of usual depth, got one nested too deep") from None
    except UnicodeEncodeError:
        raise RecordProblem("bad-text", "expected Unicode text, got a lone surrogate") from None


def parse_field_patterns(patterns: Mapping[str, str] | Sequence[str]) -> tuple[FieldPattern, ...]:
    """Read patterns given by name, or as a list where the last part of each path is its name.

    Raises:
        InputError: If a pattern is refused, or its name cannot be told.

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
                f"jq pattern {pattern!r}: expected a path with a name of its own at its end; "
                "give the patterns as a mapping of name to pattern"
            )
        named[found[1]] = pattern
    return parse_field_patterns(named)


def parse_mask_pattern(pattern: str) -> MaskPattern:
    """Read `.field` or `.field | filter`.

    Raises:
        InputError: If the pattern does not begin with one field, or is refused.

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
    return MaskPattern(pattern=pattern, field=name, rest=found["rest"].strip() if found["rest"] is not None else None)


def check_pattern(pattern: str) -> None:
    """Refuse what sees more than the record. Whether the rest is jq, jq says when it compiles it.

    Raises:
        InputError: With the name that is refused.
    """
    for name in _names_in(pattern):
        if name in _REFUSED:
            raise InputError(
                f"jq pattern {pattern!r}: {name!r} is not allowed, since output must depend on the record alone; "
                "write it in quotes where it is a key"
            )


def _names_in(pattern: str) -> Iterator[str]:
    """Walk through the names that a jq program uses, those in interpolated strings included; not those of fields."""
    depths = [0]  # Of open parentheses: of the program, and of each interpolation that it is in.
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


def _value_of(answer: dict[str, Any]) -> Any:  # noqa: ANN401
    if "problem" in answer:
        raise RecordProblem("pattern-error", answer["problem"])
    return answer["value"]
