"""Turn the arguments of API functions into a job's options, and flags in error messages into parameters.

Options and the models that declare and validate them are those of the command line. Only the spelling differs: a
message that names `--eod-token` there names `eod_token` here.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dsindex.errors import DsindexError, UsageError, missing_package
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pydantic.fields import FieldInfo

    from dsindex.options.config import ExecutorConfig, Options

Returned = TypeVar("Returned")
Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

_PARAMETER_OF_FLAG = {"tokenizer_model": "tokenizer", "from": "way"}
_FLAG = re.compile(r"(?<![\w/-])--([a-z][a-z0-9-]*)")


class OptionsError(DsindexError, ValueError):
    """Options of a function are unknown, of a wrong type or value, or contradict each other."""


def api_function(
    *models: type[Options], leave_out: Collection[str] = (), defaults: bool = True
) -> Callable[[Callable[..., Returned]], Callable[..., Returned]]:
    """Make a function of the API, whose signature and documentation have the options of its job as well.

    The function gets its own parameters as they are, and of the options those that differ from their defaults, as on
    the command line. Its errors name parameters instead of flags.

    Args:
        models: The models of the options. Parameters of the function take the place of options of the same name.
        leave_out: Options that it does not offer.
        defaults: Whether the signature has the defaults of the models; else None.

    Raises:
        OptionsError: In calls, if an argument is unknown, missing or invalid.
    """

    def decorate(function: Callable[..., Returned]) -> Callable[..., Returned]:
        declared = inspect.signature(function)
        own = {name: each for name, each in declared.parameters.items() if each.kind is not each.VAR_KEYWORD}
        fields = {
            name: field
            for model in models
            for name, field in model.model_fields.items()
            if not {name, _PARAMETER_OF_FLAG.get(name, name)} & {*own, *leave_out}
        }
        signature = declared.replace(parameters=[*own.values(), *option_parameters(fields, defaults=defaults)])

        @functools.wraps(function)
        def call(*arguments: object, **options: object) -> Returned:
            try:
                given = signature.bind(*arguments, **options).arguments
            except TypeError as error:
                raise OptionsError(_describe_misuse(function.__name__, signature, options, error)) from None
            changed = {
                name: value if name in own else plain_value(value)
                for name, value in given.items()
                if name in own or not _is_same(value, signature.parameters[name].default)
            }
            try:
                return function(**changed)
            except UsageError as error:
                raise OptionsError(f"{function.__name__}: {respell(str(error), signature)}") from None
            except ModuleNotFoundError as error:
                missing = missing_package(error)
                if missing is None:
                    raise
                raise missing from error
            except DsindexError as error:
                error.args = tuple(respell(word, signature) if isinstance(word, str) else word for word in error.args)
                raise

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _document(function.__doc__ or "", fields, signature)
        return call

    return decorate


def option_parameters(fields: Mapping[str, FieldInfo], *, defaults: bool = True) -> list[inspect.Parameter]:
    """Return options as parameters by keyword, those that must be given first."""
    if not fields:
        return []
    from dsindex.options.declare import parameter_type

    parameters = []
    for name, field in sorted(fields.items(), key=lambda item: not item[1].is_required()):
        kind, default = parameter_type(field), inspect.Parameter.empty if field.is_required() else field.default
        if not defaults:
            kind, default = (kind if kind.endswith("None") else f"{kind} | None"), None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return parameters


def _document(text: str, fields: Mapping[str, FieldInfo], signature: inspect.Signature) -> str:
    """Return a docstring whose section of arguments ends with the options."""
    if not fields:
        return text
    from dsindex.options.declare import declared

    text = textwrap.indent(inspect.cleandoc(text), "    ").lstrip() + "\n    "  # Python 3.13 removes the margin
    lines = [f"{name}: {_sentence(declared(field).help, signature)}" for name, field in fields.items()]
    shown = "".join(
        textwrap.fill(line, 120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False) + "\n"
        for line in lines
    )
    places = [text.find(f"\n    {section}:\n") for section in ("Returns", "Raises")]
    end = min((place for place in places if place >= 0), default=len(text))
    before = text[:end] if "    Args:\n" in text[:end] else f"{text[:end]}\n    Args:\n"
    return before + shown + text[end:]


def _sentence(help: str, signature: inspect.Signature) -> str:
    """Return the help of an option as a sentence about a parameter.

    >>> _sentence("the seed (default: --eod-token)", inspect.signature(_example))
    'The seed (default: eod_token).'
    """
    return f"{help[0].upper()}{respell(help[1:], signature)}."


def respell(message: str, signature: inspect.Signature) -> str:
    """Return a message of the command line with flags replaced by parameters.

    >>> respell("start over with --fresh, or change --eod-token", inspect.signature(_example))
    'start over with fresh=True, or change eod_token'
    """
    known = {name: each.default for name, each in signature.parameters.items()}
    if "index" in known:
        from dsindex.options.index import IndexOptions

        known |= {name: field.default for name, field in IndexOptions.model_fields.items()}

    def spell(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        name = _PARAMETER_OF_FLAG.get(name, name)
        if name not in known:
            return match[0]
        return f"{name}=True" if known[name] is False else name

    return _FLAG.sub(spell, message)


def plain_value(value: object) -> object:
    """Return a value in the types of options: paths as strings, numpy numbers as Python's, lists as tuples."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, list | tuple):
        return tuple(map(plain_value, value))
    if type(value).__module__ == "numpy":
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
    return value


def list_paths(option: str, value: object) -> tuple[str, ...]:
    """Return one or several paths as strings.

    Raises:
        OptionsError: If the value is something else.
    """
    if isinstance(value, str | os.PathLike):
        return (os.fsdecode(value),)
    paths = []
    for path in value if isinstance(value, Iterable) and not isinstance(value, bytes) else (value,):
        if not isinstance(path, str | os.PathLike):
            raise OptionsError(f"{option}: expected a path, or several, got {name_type(path)}")
        paths.append(os.fsdecode(path))
    return tuple(paths)


def input_options(options: Mapping[str, Any], inputs: object) -> dict[str, Any]:
    """Return the options with the inputs, and the lists of inputs, as lists of paths.

    Raises:
        OptionsError: If a value is something else.
    """
    given = {**options, **({} if inputs is None else {"input": inputs})}
    return given | {name: list_paths(name, given[name]) for name in ("input", "input_list") if name in given}


def join_connected_cluster(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, set to the Ray cluster that this process is connected to if they name no executor.

    If the cluster has several nodes, `address` is set too, so that all are checked for seeing the same files.
    """
    ray = sys.modules.get("ray")
    if "executor" in options or "address" in options or ray is None or not ray.is_initialized():
        return options
    has_others = sum(node["Alive"] for node in ray.nodes()) > 1
    return {**options, "executor": "ray", **({"address": "auto"} if has_others else {})}


def _is_same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def seen_from_anywhere(config: ExecutorConfig, path: str) -> str:
    """Return a path that tasks can use; absolute on Ray, whose workers may have another working folder."""
    from dsindex.engine.start import wants_ray

    return absolute(path) if wants_ray(config) else path


def name_type(value: object) -> str:
    """Return the name of a value's type with an article, for messages."""
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _describe_misuse(name: str, signature: inspect.Signature, options: Mapping[str, object], error: TypeError) -> str:
    unknown = next((option for option in options if option not in signature.parameters), None)
    if unknown is None:
        return f"{name}: {error}"
    if "index" in signature.parameters:
        from dsindex.options.index import IndexOptions

        if unknown in IndexOptions.model_fields:
            return f"{name}: {unknown!r} is an option of the index caches; give index=dsindex.IndexOptions({unknown}=…)"
    import difflib

    renamed = _PARAMETER_OF_FLAG.get(unknown)
    close = (
        [renamed] if renamed in signature.parameters else difflib.get_close_matches(unknown, signature.parameters, n=1)
    )
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name}: there is no option {unknown!r}{hint}"


def _example(*, fresh: bool = False, eod_token: str | None = None) -> None:
    """Stand in for a function of the API in an example."""
