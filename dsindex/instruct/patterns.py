"""jq patterns that name a field of a record, or select messages that are not learnt.

`.conversations | select(.from == "human")`, as the spec writes it, is read in two parts. Up to the first `|` stands the
field. The rest is a jq filter; where the field is a list it is asked about **each element** on its own, else about the
field's value. An element is selected if the filter gives anything but `null` and `false` for it (`select` gives the
element itself or nothing). Without a rest every element is selected. `.conversations[] | …` means the same.

jq can run for ever (`def f: f; f`, `range(1e18)`), read the environment and the clock, and it holds Python's global
lock while it runs, so that no deadline in this process could stop it. Patterns therefore use a part of jq in which
every filter ends, in time polynomial in the record: paths, comparisons, `and or not`, `if`, `select`, `map`, tests of
texts; at most three iterations (`[]`, `..`, `,`, `map`, `any`, `all`) and eight `+`. All else is refused by name.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.instruct.records import RecordProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_PATTERN_CHARACTERS = 500
MAX_ITERATIONS = 3
MAX_SUMS = 8

# In alphabetical order within each line: logic, elements, texts.
_WORDS = frozenset(
    {
        *(
            "all",
            "and",
            "any",
            "elif",
            "else",
            "empty",
            "end",
            "false",
            "if",
            "not",
            "null",
            "or",
            "select",
            "then",
            "true",
        ),
        *("arrays", "first", "has", "keys", "last", "length", "map", "objects", "strings", "type", "values"),
        *("ascii_downcase", "ascii_upcase", "contains", "endswith", "index", "inside", "join", "ltrim", "ltrimstr"),
        *("rtrim", "rtrimstr", "startswith", "tostring", "trim"),
    }
)
_LEXEME = re.compile(
    r"""(?P<space>\s+) | (?P<string>"(?:[^"\\]|\\[^(])*") | (?P<iterate>\[\s*\]|\.\.|,) | (?P<sum>\+)
      | (?P<field>\.[A-Za-z_]\w*) | (?P<word>[A-Za-z_]\w*) | (?P<number>\d+(?:\.\d+)?)
      | (?P<sign>//|[!=]=|[<>]=?|[-.|()\[\]?:])""",
    re.VERBOSE | re.ASCII,
)
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

    def read(self, record: Mapping[str, Any]) -> object:
        """Give the value, or None where the record has none or a null.

        Raises:
            RecordProblem: If the pattern fails on this record, or gives several values.
        """
        return self._only(_run(self.pattern, record, self.pattern))

    def read_line(self, line: str) -> object:
        """Give the value of a record that is still text: JSON, and known to be.

        Raises:
            RecordProblem: As `read`.
        """
        with _named_problem(self.pattern):
            values: list[Any] = _compile(self.pattern).input_text(line).all()
        return self._only(values)

    def _only(self, values: list[Any]) -> object:
        if len(values) > 1:
            raise RecordProblem(
                "pattern-error", f"pattern `{self.pattern}`: expected one value, got {len(values)}; leave out `[]`"
            )
        return values[0] if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPattern:
    """A pattern that selects what is not learnt: a field, or elements of it. Made by `parse_mask_pattern`."""

    pattern: str
    field: str
    rest: str | None

    def select(self, value: object) -> list[bool]:
        """Say for each element of a list, or for the one value, whether it is selected.

        Raises:
            RecordProblem: If the filter fails on an element.
        """
        elements = value if isinstance(value, list) else [value]
        if self.rest is None:
            return [True] * len(elements)
        program = f"[.[] | try ([({self.rest})] | any) catch {{error: .}}]"
        answers = _run(program, elements, self.pattern)[0]
        for number, answer in enumerate(answers, 1):
            if isinstance(answer, dict):
                raise RecordProblem(
                    "pattern-error", f"pattern `{self.pattern}` fails on element {number}: {answer['error']}"
                )
        return [bool(answer) for answer in answers]


def parse_field_patterns(patterns: Mapping[str, str] | Sequence[str]) -> tuple[FieldPattern, ...]:
    """Read patterns given by name, or as a list where the last part of each path is its name.

    Raises:
        InputError: If a pattern is not allowed, is not jq, or its name cannot be told.

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
        InputError: If the pattern does not begin with one field, is not allowed, or is not jq.

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
    rest = found["rest"].strip() if found["rest"] is not None else None
    if rest is not None:
        # By itself, so that no unbalanced bracket can reach the program around it.
        check_pattern(rest)
    return MaskPattern(pattern=pattern, field=name, rest=rest)


def check_pattern(pattern: str) -> None:
    """Refuse what is not jq, and the parts of jq that may never end or that see more than the record.

    Raises:
        InputError: With the word or sign that is refused, or jq's own message.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InputError(f"jq pattern of {len(pattern)} characters: expected at most {MAX_PATTERN_CHARACTERS}")
    position, iterations, sums = 0, 0, 0
    while position < len(pattern):
        found = _LEXEME.match(pattern, position)
        if found is None:
            raise InputError(f"jq pattern {pattern!r}: {pattern[position]!r} is not allowed in patterns")
        word = found["word"]
        if word is not None and word not in _WORDS:
            raise InputError(
                f"jq pattern {pattern!r}: {word!r} is not allowed; allowed are {', '.join(sorted(_WORDS))}"
            )
        iterations += found["iterate"] is not None or word in {"map", "any", "all"}
        sums += found["sum"] is not None
        position = found.end()
    if iterations > MAX_ITERATIONS or sums > MAX_SUMS:
        raise InputError(
            f"jq pattern {pattern!r}: expected at most {MAX_ITERATIONS} iterations (`[]`, `..`, `,`, map, any, all) "
            f"and {MAX_SUMS} `+`, got {iterations} and {sums}"
        )
    try:
        _compile(pattern)
    except ValueError as error:
        raise InputError(f"jq pattern {pattern!r}: {_first_line(error)}") from error


def _run(program: str, value: object, shown: str) -> list[Any]:
    with _named_problem(shown):
        outputs: list[Any] = _compile(program).input_value(value).all()
    return outputs


@contextlib.contextmanager
def _named_problem(shown: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordProblem("pattern-error", f"pattern `{shown}` fails: {_first_line(error)}") from error


@functools.lru_cache(maxsize=256)
def _compile(program: str) -> Any:  # noqa: ANN401  (jq has no types)
    """Compile once per process: a compiled program cannot be pickled."""
    import jq

    return jq.compile(program)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].removeprefix("jq: error: ")
