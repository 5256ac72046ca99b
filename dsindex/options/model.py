"""Options as typed fields of a class: the source of a command's flags, YAML keys and function signature.

    class MergeConfig(Options):
        workers: int | None = option("N", default=None, ge=1)
        "Tasks that run at once (default: all CPUs)."

Type checkers and editors see the fields as typed keyword arguments, by `dataclass_transform`. Values are text from a
command line, plain values from YAML, or objects from Python; the type of the field says how to read them.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import GenericAlias, NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from dsindex.errors import InputError, UsageError
from dsindex.messages import show_value

Argument = TypeVar("Argument", contravariant=True)
Value = TypeVar("Value", covariant=True)


class Parsed(Generic[Argument, Value]):
    """The type of a field whose argument may have a wider type than its value, such as a path and its text.

    Never instantiated: type checkers read argument and value from `__set__` and `__get__`.
    """

    def __get__(self, instance: object, owner: Any) -> Value:  # noqa: ANN401 - as for descriptors
        raise NotImplementedError

    def __set__(self, instance: object, value: Argument) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a model, and how the command line, YAML files and functions show it."""

    default: Any
    """`...` if the option is required."""
    help: str = ""
    """The string under the field, for `--help`; without one, the command line does not have the option."""
    metavar: str | None = None
    group: str | None = None
    """Title of its section in the help; by default the `group` of its class, or of the class derived from it."""
    flag: str | None = None
    """The flag, if it does not follow from the name."""
    short: str | None = None
    """A flag of one letter for the same option."""
    positional: bool = False
    """Whether the command line takes it without a flag."""
    kw_only: bool = True
    """Whether a function takes it only by name."""
    alias: str | None = None
    """The name of the function's argument, if it differs."""
    separator: str | None = None
    """Regular expression at which a text is split into several values."""
    needs: tuple[str, ...] = ()
    """Options that it needs: names, or alternatives such as "split or like"."""
    excludes: tuple[str, ...] = ()
    """Options that it cannot be combined with."""
    may_be_empty: bool = False
    ge: float = 0
    le: float = 2**63 - 1
    """By default the largest integer that plans and manifests can store."""
    kind: Any = None
    """The type of the value."""
    readers: tuple[Callable[[Any], Any], ...] = ()
    """Functions from the type's Annotated, which are applied in turn before the value is checked."""

    def read(self, value: Any) -> Any:  # noqa: ANN401 - any value of a command line, YAML or Python
        """Return a value in the field's type.

        Raises:
            ValueError: If it has another type or is out of range.
        """
        if value is None:
            return self.default
        argument = value
        if self.separator is not None and isinstance(value, str):
            value = re.split(rf"\s*{self.separator}\s*", value.strip())
        for reader in self.readers:
            value = reader(value)
        plain = _to_plain(value)
        if get_origin(self.kind) is tuple and not isinstance(plain, tuple):
            plain = (plain,)
        try:
            return msgspec.convert(plain, self._limit_type(self.kind), strict=False)
        except msgspec.ValidationError as error:
            if isinstance(argument, list) and len(argument) == 1 and get_origin(self.kind) is tuple:
                [argument] = argument
            raise ValueError(f"{show_value(argument)} is not {self._describe_expected(error)}") from None

    def _limit_type(self, kind: Any) -> Any:  # noqa: ANN401 - types
        """Return a type with this option's limits on numbers and text, for msgspec."""
        if get_origin(kind) is tuple:
            return GenericAlias(tuple, tuple(map(self._limit_type, get_args(kind))))
        if kind is str:
            return Annotated[str, Meta(min_length=0 if self.may_be_empty else 1, pattern=_CAN_BE_TYPED)]
        return Annotated[kind, Meta(ge=self.ge, le=self.le)] if kind in {int, float} else kind

    def _describe_expected(self, error: msgspec.ValidationError) -> str:
        """Return what a value must be, for a message."""
        kind, count_text = self.kind, ""
        if get_origin(kind) is tuple:
            kind, *other_kinds = get_args(kind)
            count_text = "" if other_kinds == [...] else f"{len(other_kinds) + 1} values, each "
        if get_origin(kind) is Literal:
            *first, last = map(str, get_args(kind))
            return f"one of {', '.join(first)} or {last}"
        limits = f" from {self.ge} to {self.le}" if kind in {int, float} else ""
        if kind is str and ", got" not in str(error):
            return "a text of at least one character" if "length" in str(error) else "text that can be typed"
        if kind in _KIND_NAMES:
            return f"{count_text}{_KIND_NAMES[kind]}{limits}"
        return str(error).removeprefix("Expected ").replace("`", "").partition(", got")[0]


_CAN_BE_TYPED = r"\A[^\0\ud800-\udc7f\udd00-\udfff]*\Z"
"""Text that can name a file. Bytes that are not UTF-8 are surrogates from U+DC80 to U+DCFF."""
_KIND_NAMES = {str: "text", bool: "true or false", int: "an integer", float: "a number"}


def _to_plain(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return paths as text, arrays and scalars of NumPy as numbers, and lists of any kind as tuples."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return tuple(map(_to_plain, value))
    return value


def value_kind(kind: Any) -> Any:  # noqa: ANN401 - types
    """Return the type of an option's value, without None.

    >>> value_kind(Parsed[int | str, int | None]), value_kind(tuple[str, ...] | None)
    (<class 'int'>, tuple[str, ...])
    """
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Parsed:
        kind = get_args(kind)[1]
    kinds = [member for member in get_args(kind) if member is not NoneType]
    return kinds[0] if len(kinds) < len(get_args(kind)) else kind


def option(
    metavar: str | None = None,
    *,
    default: Any = ...,  # noqa: ANN401 - of the field's type
    kw_only: bool = True,
    **settings: Any,  # noqa: ANN401 - of Option
) -> Any:  # noqa: ANN401 - stands for a value of the field's type
    """Declare a field of a model; the arguments are fields of Option, and the string under the field is its help."""
    return Option(default=default, metavar=metavar, kw_only=kw_only, **settings)


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class Options:
    """Base class of all models."""

    group: ClassVar[str] = ""
    given_names: frozenset[str] = frozenset()
    """Names of the options that were set, even to their defaults."""

    def __init__(self, *arguments: Any, **values: Any) -> None:  # noqa: ANN401 - type checkers see the fields
        """Read and check the options.

        Raises:
            UsageError: With all problems in one message.
        """
        options, problems, hints = options_of(type(self)), list[str](), list[str]()
        values = type(self).prepare(_name_arguments(type(self), arguments, values))
        fields = self.__dict__
        for name in values.keys() - options.keys():
            problems.append(f"there is no option {name!r}")
            names = {*options, *(option.alias for option in options.values() if option.alias)}
            hints += [f"did you mean {close!r}?" for close in difflib.get_close_matches(name, names, n=1)]
        for name, option in options.items():
            try:
                if values.get(name) is None and option.default is ...:
                    problems.append(f"{flag_of(name, option)} is required")
                else:
                    fields[name] = option.read(values.get(name))
            except (ValueError, TypeError, InputError) as error:
                problem, *hint_lines = map(str, error.args)
                problems.append(f"{flag_of(name, option)}: {problem}")
                hints += [line.removeprefix("hint: ") for line in hint_lines]
        if problems:
            raise UsageError("; ".join(problems), hint="; ".join(hints) or None)
        fields["given_names"] = frozenset(values)
        try:
            self._check_combinations(options)
            for kind in reversed(type(self).__mro__):
                if "_check_agreement" in vars(kind):
                    vars(kind)["_check_agreement"](self)
        except (ValueError, InputError) as error:
            raise UsageError(*error.args) from error

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return values before they are read; a model may derive some of them from others."""
        return values

    def _check_agreement(self) -> None:
        """Check options against each other; called for every class of a model.

        Raises:
            ValueError: With a message that names flags.
        """

    def _check_combinations(self, options: Mapping[str, Option]) -> None:
        used_names = [name for name, option in options.items() if getattr(self, name) not in (option.default, None, ())]
        for name in used_names:
            for requirement in options[name].needs:
                alternatives = requirement.split(" or ")  # `build` has no job_tokenizer; its IndexConfig is checked
                if options.keys() >= set(alternatives) and not set(alternatives) & set(used_names):
                    flags = " or ".join(flag_of(alternative, options[alternative]) for alternative in alternatives)
                    raise ValueError(f"{flag_of(name, options[name])} needs {flags}")
            for excluded in options[name].excludes:
                if excluded in used_names:
                    flags = f"{flag_of(name, options[name])} and {flag_of(excluded, options[excluded])}"
                    raise ValueError(f"{flags} cannot be combined")

    def copy_with(self, **changes: Any) -> Self:  # noqa: ANN401 - values of fields
        """Return a copy with some values replaced, without checks."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy


_options_by_model: dict[type[Options], dict[str, Option]] = {}


def options_of(model: type[Options]) -> dict[str, Option]:
    """Return the options of a model: its own, then inherited ones."""
    if model in _options_by_model:
        return _options_by_model[model]
    types, options, lineage = get_type_hints(model, include_extras=True), dict[str, Option](), model.__mro__
    for number, kind in enumerate(lineage):
        for name in vars(kind).get("__annotations__", {}):
            field = vars(kind).get(name)
            if isinstance(field, Option) and name not in options:
                groups = (vars(base).get("group") for base in reversed(lineage[: number + 1]))
                group = field.group if field.group is not None else next(filter(None, groups), "")
                help = _help_texts(kind.__module__).get((kind.__name__, name), "")
                readers = getattr(types[name], "__metadata__", ())
                options[name] = replace(field, kind=value_kind(types[name]), readers=readers, group=group, help=help)
    _options_by_model[model] = options
    return options


@cache
def _help_texts(module: str) -> dict[tuple[str, str], str]:
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


def _name_arguments(model: type[Options], arguments: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by field name; functions have other names for some fields."""
    options = options_of(model)
    names = {option.alias: name for name, option in options.items() if option.alias is not None}
    positional_names = [name for name, option in options.items() if not option.kw_only]
    if len(arguments) > len(positional_names):
        raise UsageError(f"{len(arguments)} arguments have no name; at most {len(positional_names)} may")
    positional_values = dict(zip(positional_names, arguments, strict=False))
    keyword_values = {names.get(name, name): value for name, value in values.items()}
    if duplicates := positional_values.keys() & keyword_values.keys():
        raise UsageError(f"{min(duplicates)} is given twice: by its name, and as the first argument")
    return positional_values | keyword_values
