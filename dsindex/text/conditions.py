"""Simple jq conditions without jq: comparisons of paths and literals, joined by `and`, `or` and `not`.

A filter of this part of jq has one result for each input, so it is a function from a JSON value to a JSON value. Where
jq would fail, or compares numbers in more digits than a double has, the function raises `UncertainError`, and jq reads
the record.

    filter  = or ("|" or)*                      "and" binds closer than "or", as in jq
    or      = and ("or" and)*
    and     = compare ("and" compare)*
    compare = term (("==" | "!=" | "<" | "<=" | ">" | ">=") term)?
    term    = "." | path | number | string | "true" | "false" | "null" | "not" | "(" filter ")"
            | ("startswith" | "endswith" | "test") "(" string ")"
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from dsindex.errors import DsindexError

Filter: TypeAlias = Callable[[Any], Any]

_TOKEN = re.compile(
    r"""\s*(?: (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])
      | (?P<path>(?=\.)(?:\.[A-Za-z_]\w*|\."[^"\\]*"|\.?\[\s*"[^"\\]*"\s*\])+)
      | (?P<string>"[^"\\]*") | (?P<name>[A-Za-z_]\w*(?!\w|::)) | (?P<sign>[=!]=|[<>]=?|[.|()]) )""",
    re.VERBOSE | re.ASCII,
)
_KEY = re.compile(r"""\.([A-Za-z_]\w*) | \.?\[?\s*"([^"]*)"\s*\]?""", re.VERBOSE | re.ASCII)
_COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_LITERALS = {"true": True, "false": False, "null": None}
_RANKS = {type(None): 0, bool: 1, int: 3, float: 3, str: 4, list: 5, dict: 6}
"""jq's order of types; true is after false by value."""
_EXACT = 1 << 53
_MAX_DEPTH = 100
_PATTERN = re.compile(r"[\\.^$|?*+()\[\]{}#]")
"""Characters that have a meaning in regular expressions."""


class UncertainError(DsindexError):
    """A filter cannot tell the result that jq has."""


class _UnknownError(Exception):
    """The text has a part of jq that is not read here."""


@functools.lru_cache(maxsize=16)
def parse_condition(text: str) -> Callable[[Any], bool] | None:
    """Return what tells whether a record satisfies a condition; None if only jq can evaluate it.

    For some records it raises UncertainError.

    Args:
        text: Valid jq.

    >>> parse_condition('.meta.lang == "en" and (.score < 0.5 | not)')({"meta": {"lang": "en"}, "score": 0.7})
    True
    >>> parse_condition(".tags | length > 1") is None
    True
    """
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            return None
        tokens.append((found.lastgroup, found[found.lastgroup]))
        position = found.end()
    tokens.append(("end", ""))
    tokens.reverse()
    try:
        result = _parse_pipe(tokens, 0)
    except _UnknownError:
        return None
    return (lambda record: _is_true(result(record))) if len(tokens) == 1 else None


def _parse_pipe(tokens: list[tuple[str, str]], depth: int) -> Filter:
    if depth > _MAX_DEPTH:
        raise _UnknownError
    first = _parse_either(tokens, depth, "or")
    if tokens[-1][1] != "|":
        return first
    tokens.pop()
    then = _parse_pipe(tokens, depth + 1)
    return lambda value: then(first(value))


def _parse_either(tokens: list[tuple[str, str]], depth: int, word: str) -> Filter:
    """Read terms joined by `or` or `and`, which stop at the first that decides."""
    terms: list[Filter] = []
    while not terms or tokens[-1] == ("name", word):
        if terms:
            tokens.pop()
        terms.append(_parse_either(tokens, depth, "and") if word == "or" else _parse_comparison(tokens, depth))
    if len(terms) == 1:
        return terms[0]
    if word == "or":
        return lambda value: any(_is_true(term(value)) for term in terms)
    return lambda value: all(_is_true(term(value)) for term in terms)


def _parse_comparison(tokens: list[tuple[str, str]], depth: int) -> Filter:
    left = _parse_term(tokens, depth)
    compare = _COMPARE.get(tokens[-1][1]) if tokens[-1][0] == "sign" else None
    if compare is None:
        return left
    tokens.pop()
    right = _parse_term(tokens, depth)
    return lambda value: compare(_order(left(value), right(value)), 0)


def _parse_term(tokens: list[tuple[str, str]], depth: int) -> Filter:
    kind, text = tokens.pop()
    if kind == "path":
        return functools.partial(_find, [name or quoted for name, quoted in _KEY.findall(text)])
    if text == "(":
        inner = _parse_pipe(tokens, depth + 1)
        if tokens.pop()[1] != ")":
            raise _UnknownError
        return inner
    if text == ".":
        return lambda value: value
    if text == "not":
        return lambda value: not _is_true(value)
    if kind in {"number", "string"} or text in _LITERALS:
        literal = _LITERALS[text] if kind == "name" else json.loads(text)
        return lambda _: literal
    return _parse_call(text, tokens)


def _parse_call(name: str, tokens: list[tuple[str, str]]) -> Filter:
    calls: dict[str, Callable[[str, str], bool]] = {
        "startswith": str.startswith, "endswith": str.endswith, "test": operator.contains
    }  # fmt: skip
    call, call_tokens = calls.get(name), [tokens.pop() for _ in range(min(3, len(tokens)))]
    kinds = [token if kind == "sign" else kind for kind, token in call_tokens]
    if call is None or kinds != ["(", "string", ")"]:
        raise _UnknownError
    wanted = json.loads(call_tokens[1][1])
    if name == "test" and (not wanted or _PATTERN.search(wanted)):
        raise _UnknownError

    def applied(value: Any) -> bool:  # noqa: ANN401 - any JSON value
        if not isinstance(value, str):
            raise UncertainError("expected a string")
        return call(value, wanted)

    return applied


def _find(keys: list[str], value: Any) -> Any:  # noqa: ANN401 - any JSON value
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif value is not None:
            raise UncertainError("expected an object")
    return value


def _is_true(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return value is not None and value is not False


def _order(left: Any, right: Any) -> int:  # noqa: ANN401 - any JSON values
    """Return a number below, equal to or above 0, as jq orders two values."""
    if type(left) is str and type(right) is str:
        return int(left > right) - int(left < right)
    rank, other = _RANKS[type(left)], _RANKS[type(right)]
    if rank != other or rank == 0:
        return rank - other
    if rank >= _RANKS[list]:
        raise UncertainError("expected no lists or objects")
    are_exact = rank != _RANKS[int] or (type(left) is type(right) is int and max(abs(left), abs(right)) < _EXACT)
    if not are_exact and (not math.isfinite(left + right) or math.isclose(left, right, rel_tol=1e-14)):
        raise UncertainError("expected numbers whose doubles differ")
    return int(left > right) - int(left < right)
