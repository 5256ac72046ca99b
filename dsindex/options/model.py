"""Options as typed fields of a class, which is a command's parser, its YAML file and its function's signature at once.

    class MergeConfig(Options):
        workers: int | None = option("N", default=None, ge=1)
        "Tasks that run at once (default: all CPUs)."

Type checkers and editors see the fields as typed keyword arguments, by `dataclass_transform`. Values come as text from
a command line, as plain values from YAML, or as objects from Python; the field's type says how they are read.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import math
import numbers
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from dsindex.errors import InputError, UsageError
from dsindex.json_text import show_value

MAX_NUMBER = 2**63 - 1
"""The largest integer that plans, ledgers and manifests can store."""

Taken = TypeVar("Taken", contravariant=True)
Kept = TypeVar("Kept", covariant=True)


class Parsed(Generic[Taken, Kept]):
    """The type of a field whose argument may be of a wider type than its value: a path, and the text of one.

    Never instantiated: type checkers read argument and value from `__set__` and `__get__`.
    """

    def __get__(self, instance: object, owner: Any) -> Kept:  # noqa: ANN401 - as for descriptors
        raise NotImplementedError

    def __set__(self, instance: object, value: Taken) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a model, and how surfaces show it."""

    default: Any
    """`...` if it must be given."""
    help: str = ""
    """The string under the field, for `--help`; without one, only files and functions have it."""
    metavar: str | None = None
    group: str | None = None
    """Title of its part of the help; by default that of its class: `group`, or that of a class derived from it."""
    flag: str | None = None
    """Its flag, if that does not follow from the name."""
    short: str | None = None
    """A flag of one letter beside it."""
    positional: bool = False
    """Whether the command line takes it without a flag."""
    kw_only: bool = True
    """Whether a function takes it only by name."""
    alias: str | None = None
    """Its name as an argument of a function."""
    parse: Callable[[Any], Any] | None = None
    """Reads a value, in place of the field's type."""
    may_be_empty: bool = False
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    kind: Any = None
    """The type of the value."""
    annotation: str = ""
    """As it stands in the source."""

    def read(self, value: object) -> object:
        """Return a value in the field's type.

        Raises:
            ValueError: If it is something else, saying what was expected.
        """
        if value == "" and not self.may_be_empty:
            raise ValueError("expected a value, got an empty text")
        if value is None and self.default is not ...:
            return self.default
        value = convert(value if self.parse is None else self.parse(value), self.kind)
        for number in value if isinstance(value, tuple) else (value,):
            self._check_range(number, value)
        return value

    def _check_range(self, number: object, shown: object) -> None:
        if not isinstance(number, int | float):
            return
        most = min(self.le or MAX_NUMBER, MAX_NUMBER) if isinstance(number, int) else self.le
        limits = (
            (self.ge, operator.ge, "at least"),
            (self.gt, operator.gt, "more than"),
            (most, operator.le, "at most"),
            (self.lt, operator.lt, "less than"),
        )
        for limit, holds, words in limits:
            if limit is not None and not holds(number, limit):
                raise ValueError(f"expected {words} {limit}, got {show_value(shown)}")


def option(
    metavar: str | None = None,
    *,
    default: Any = ...,  # noqa: ANN401 - of the field's type
    kw_only: bool = True,
    **settings: Any,  # noqa: ANN401 - of Option
) -> Any:  # noqa: ANN401 - stands for a value of the field's type
    """Declare a field of a model; the arguments are those of Option, and the string under the field is its help."""
    return Option(default=default, metavar=metavar, kw_only=kw_only, **settings)


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class Options:
    """Base of all models."""

    group: ClassVar[str] = ""
    given: frozenset[str] = frozenset()
    """The options that were given, whatever their values."""

    def __init__(self, *arguments: Any, **values: Any) -> None:  # noqa: ANN401 - type checkers see the fields
        """Read and check the options.

        Raises:
            UsageError: In one sentence on all that is wrong.
        """
        known, problems = options_of(type(self)), []
        values = type(self).prepare(_by_name(type(self), arguments, values))
        own = self.__dict__
        for name in values.keys() - known.keys():
            close = difflib.get_close_matches(name, known, n=1)
            problems.append(f"there is no option {name!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
        for name, each in known.items():
            try:
                if name in values:
                    own[name] = each.read(values[name])
                elif each.default is ...:
                    problems.append(f"{flag_of(name, each)} is required")
                else:
                    own[name] = each.default
            except (ValueError, TypeError, InputError) as error:
                problems.append(f"{flag_of(name, each)}: {error}")
        if problems:
            raise UsageError("; ".join(problems))
        own["given"] = frozenset(values)
        try:
            for kind in reversed(type(self).__mro__):
                if "_agree" in vars(kind):
                    vars(kind)["_agree"](self)
        except (ValueError, InputError) as error:
            raise UsageError(str(error)) from error

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return values as they are to be read; a model may derive one from another."""
        return values

    def _agree(self) -> None:
        """Check options against each other; every class of a model has its own.

        Raises:
            ValueError: In a sentence that names flags.
        """

    def replaced(self, **changes: Any) -> Self:  # noqa: ANN401 - values of fields
        """Return a copy with other values, which are not checked."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy


Model = TypeVar("Model", bound=Options)


_known: dict[type[Options], dict[str, Option]] = {}


def options_of(model: type[Options]) -> dict[str, Option]:
    """Return the options of a model, those of its bases first."""
    if model not in _known:
        _known[model] = _find_options(model)
    return _known[model]


def _find_options(model: type[Options]) -> dict[str, Option]:
    kinds, found, lineage = get_type_hints(model), dict[str, Option](), model.__mro__
    for place, kind in reversed(list(enumerate(lineage))):
        for name, annotation in vars(kind).get("__annotations__", {}).items():
            own = vars(kind).get(name)
            if isinstance(own, Option):
                groups = (vars(each).get("group") for each in reversed(lineage[: place + 1]))
                group = own.group if own.group is not None else next(filter(None, groups), "")
                help = helps_of(kind.__module__).get((kind.__name__, name), "")
                found[name] = replace(own, kind=kinds[name], annotation=str(annotation), group=group, help=help)
    return found


@cache
def helps_of(module: str) -> dict[tuple[str, str], str]:
    """Return the strings under the fields of a module's classes, by class and field."""
    source = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    return {
        (kind.name, field.target.id): " ".join(text.value.value.split())
        for kind in ast.parse(source).body
        if isinstance(kind, ast.ClassDef)
        for field, text in pairwise(kind.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def flag_of(name: str, option: Option) -> str:
    """Return how messages name an option."""
    return (option.metavar or name) if option.positional else option.flag or f"--{name.replace('_', '-')}"


def _by_name(model: type[Options], arguments: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of fields, of which functions know some by another name."""
    known = options_of(model)
    names = {each.alias: name for name, each in known.items() if each.alias is not None}
    by_position = [name for name, each in known.items() if not each.kw_only]
    if len(arguments) > len(by_position):
        raise UsageError(f"expected at most {len(by_position)} arguments without a name, got {len(arguments)}")
    return dict(zip(by_position, arguments, strict=False)) | {names.get(name, name): values[name] for name in values}


# Reading values by the types of fields.


def convert(value: Any, kind: Any) -> Any:  # noqa: ANN401 - any value, any annotation
    """Return a value of the command line, YAML or Python in a type.

    Raises:
        ValueError: If it is something else.

    >>> convert("4", int | None), convert(["a"], tuple[str, ...]), convert(4, Parsed[int | str, int])
    (4, ('a',), 4)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Parsed:
        return convert(value, arguments[1])
    if origin in {Union, types.UnionType}:
        [kind, *others] = [each for each in arguments if each is not types.NoneType]
        return value if others or (value is None and types.NoneType in arguments) else convert(value, kind)
    if origin is Literal:
        if value not in arguments:
            *first, last = map(str, arguments)
            words = f"one of {', '.join(first)} or {last}" if first else last
            raise ValueError(f"expected {words}, got {show_value(value)}")
        return value
    if origin is tuple:
        return _convert_all(value, arguments)
    reader = _READERS.get(kind)
    return value if reader is None else reader(value)


def _convert_all(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ANN401 - any value
    if value is None or isinstance(value, Mapping | bytes):
        raise ValueError(f"expected a list, got {show_value(value)}")
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | os.PathLike) else (value,)
    if "" in values:
        raise ValueError("expected a value, got an empty text")
    if kinds[-1] is ...:
        return tuple(convert(each, kinds[0]) for each in values)
    if len(values) != len(kinds):
        raise ValueError(f"expected {len(kinds)} values, got {show_value(list(values))}")
    return tuple(map(convert, values, kinds))


def read_text(value: object) -> str:
    """Return a text that can be typed and can name a file, or the path of an object."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bool) or not isinstance(value, str):
        hint = "; quote it if it looks like a number" if isinstance(value, int | float) else ""
        raise ValueError(f"expected text, got {show_value(value)}{hint}")
    try:
        is_text = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_text = False
    if not is_text:
        raise ValueError(f"expected a text that can be typed and can name a file, got {value!r}")
    return value


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {show_value(value)}")
    return value


def _read_integer(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", value, flags=re.ASCII):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"expected an integer, got {show_value(value)}")
    return int(value)


def _read_number(value: object) -> float:
    number = math.nan
    if isinstance(value, str | numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {show_value(value)}")
    return number


_READERS: dict[Any, Callable[[Any], Any]] = {
    str: read_text,
    bool: _read_switch,
    int: _read_integer,
    float: _read_number,
}
