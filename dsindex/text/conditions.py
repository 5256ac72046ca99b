"""Plain conditions of `--where`, which are evaluated on whole blocks of records, without jq.

    .lang == "en" and (.score >= 0.5 or .meta.stars > 3)
    (.lang | IN("en", "de")) and (.spam | not) and has("title")

A plain condition has the meaning that jq gives it. All other expressions are left to jq.
"""

from __future__ import annotations

import ast
import decimal
import json
import re
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsindex.errors import InputError
from dsindex.text.fields import STEP, parse_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.text.fields import Path

_TOKEN = re.compile(
    rf"""[ \t\r\n]*(?:
        (?P<path> (?=\.)(?:{STEP})+ )
      | (?P<constant> "[^"\\\x00-\x1f\ud800-\udfff]*" | (?:true|false|null)\b
          | -?\d{{1,30}}(?:\.\d{{1,30}})?(?:[eE][+-]?\d{{1,3}})?(?![\w.]) )
      | (?P<word> (?:and|or|not|has|IN)\b | [=!<>]= | [<>=|(),] )
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_PYTHON_WORDS = {"not": "NOT", "=": "==", "|": ",", ",": "|"}
"""`|` binds weakest in jq, as `,` does in Python."""
_NULL_OR_FALSE = ast.parse("NULL | FALSE", mode="eval").body
_MAX_NESTING = 99
_COMBINE = {"And": and_, "Or": or_}
_COMPARE = {"Eq": eq, "NotEq": ne, "Lt": gt, "LtE": ge, "Gt": lt, "GtE": le}
"""Compares the constant with the value, in this order."""
RANKS = {type(None): 0, msgspec.UnsetType: 0, bool: 1, int: 3, decimal.Decimal: 3, str: 4, list: 5, dict: 6}
"""The order of types in jq; false is 1 and true is 2."""

_traps = [decimal.InvalidOperation, decimal.Inexact, decimal.Overflow, decimal.Subnormal]
read_decimal = decimal.Context(99, Emin=-99_999, Emax=99_999, traps=_traps).create_decimal
"""Reads a number with all its digits, as jq compares it; raises ArithmeticError for a number that jq may round."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of the value at a path, or a combination of conditions."""

    operator: str
    """`And`, `Or` or `not` of the operands; or `IN`, `has` or the name of a comparison in Python's `ast`."""
    operands: tuple[Condition, ...] = ()
    path: Path = ()
    constants: frozenset[tuple[Any, ...]] = frozenset()
    """Sort keys of the constants that the value is compared with."""

    @property
    def paths(self) -> frozenset[Path]:
        """The paths of all tests."""
        return frozenset([self.path] if self.path else []).union(*(operand.paths for operand in self.operands))

    def holds(self, columns: Mapping[Path, Sequence[Any]]) -> NDArray[np.bool_]:
        """Tell which records satisfy the condition, shape [records], given their values at each path, or UNSET."""
        masks = [operand.holds(columns) for operand in self.operands]
        match self.operator:
            case "not":
                return ~masks[0]
            case "And" | "Or" as word:
                return reduce(_COMBINE[word], masks)
            case "has":
                results: Iterable[bool] = (value is not msgspec.UNSET for value in columns[self.path])
            case "IN":
                results = map(self.constants.__contains__, map(_sort_key, columns[self.path]))
            case comparison:
                results = map(partial(_COMPARE[comparison], *self.constants), map(_sort_key, columns[self.path]))
        return np.fromiter(results, np.bool_, len(columns[self.path]))


def _sort_key(value: object) -> tuple[Any, ...]:
    """Return a key in the order of jq; lists and objects are only compared with values of other types."""
    rank = RANKS.get(type(value), 0)
    return (rank, value) if rank in {3, 4} else (rank + (value is True),)


class _Translation:
    """A condition rewritten as a Python expression, with a name for each path and constant."""

    def __init__(self, text: str) -> None:
        self._paths: dict[str, Path] = {}
        self._constants: dict[str, tuple[Any, ...]] = {"NULL": (0,), "FALSE": (1,)}
        self.expression = ast.parse(_TOKEN.sub(self._translate, text).strip(), mode="eval").body

    def _translate(self, match: re.Match[str]) -> str:
        name = f"_{len(self._paths) + len(self._constants)}"
        if match["word"] is not None:
            name = _PYTHON_WORDS.get(match["word"], match["word"])
        elif match["path"] is None:
            self._constants[name] = _sort_key(json.loads(match["constant"], parse_float=read_decimal))
        elif (path := parse_path(match["path"])) is not None:
            self._paths[name] = path
        return f" {name} "

    def _compare(self, operator: str, path: ast.AST, values: ast.AST) -> Condition:
        names = (node for node in ast.walk(values) if not isinstance(node, ast.BinOp | ast.BitOr | ast.Load))
        keys = frozenset(self._constants[ast.unparse(name)] for name in names)
        return Condition(operator, path=self._paths[ast.unparse(path)], constants=keys)

    def convert(self, node: ast.AST) -> Condition:
        """Return the condition of a part of the expression; raises KeyError if it is not plain."""
        match node:
            case ast.BoolOp():
                return Condition(type(node.op).__name__, tuple(map(self.convert, node.values)))
            case ast.Compare(ops=[comparison], comparators=[ast.Name() as value]):
                return self._compare(type(comparison).__name__, node.left, value)
            case ast.Tuple(elts=[path, ast.Call(func=ast.Name(id="IN"), args=[values])]):
                return self._compare("IN", path, values)
            case ast.Tuple(elts=[*operands, ast.Name(id="NOT")]):
                return Condition("not", (self.convert(operands[0] if len(operands) == 1 else ast.Tuple(operands)),))
            case ast.Call(func=ast.Name(id="has"), args=[key]):
                [rank, name] = self._constants[ast.unparse(key)]
                if rank == RANKS[str]:
                    return Condition("has", path=(name,))
        return Condition("not", (self._compare("IN", node, _NULL_OR_FALSE),))


def parse_condition(text: str) -> Condition | None:
    """Parse a plain condition; None for every other expression.

    Python parses it: `or`, `and` and comparisons have the same precedence as in jq.

    Raises:
        InputError: If it has `=` and would be a plain condition with `==` instead.

    >>> parse_condition('.lang == "en" and has("id")').paths == {("lang",), ("id",)}
    True
    >>> parse_condition(".text | length > 9")
    """
    is_nested = text.count("(") + text.count("|") > _MAX_NESTING
    if is_nested or _TOKEN.sub("", text).strip(" \t\r\n") or re.search(r"\|\s*(\)|$)", text):
        return None
    try:
        translation = _Translation(text)
        condition = translation.convert(translation.expression)
    except (SyntaxError, ValueError, KeyError, ArithmeticError, RecursionError):
        return None
    if any(match["word"] == "=" for match in _TOKEN.finditer(text)):
        raise InputError(f"--where {text!r}: `=` assigns, and keeps every record", hint="`==` compares")
    return condition
