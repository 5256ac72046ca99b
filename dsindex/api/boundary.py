"""Turn the arguments of API functions into a job's options, and flags in error messages into parameters.

Options and the models that validate them are those of the command line. Only the spelling differs: a message that
names `--eod-token` there names `eod_token` here.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dsindex.errors import DsindexError
from dsindex.execution.choice import wants_ray
from dsindex.options.config import UsageError
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsindex.options.config import ExecutorConfig

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

OPTION_OF = {"tokenizer": "tokenizer_model"}
"""Parameters whose names differ from those of their options."""
NOT_OPTIONS = frozenset({"progress"})
_PARAMETER_OF_FLAG = {"tokenizer_model": "tokenizer", "from": "way"}
_FLAG = re.compile(r"(?<![\w/-])--([a-z][a-z0-9-]*)")


class OptionsError(DsindexError, ValueError):
    """Options of a function are unknown, of a wrong type or value, or contradict each other."""


def api_function(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return a function whose errors name parameters instead of flags.

    Raises:
        OptionsError: If an argument is unknown, missing or invalid.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Returned:
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise OptionsError(_describe_misuse(function.__name__, signature, options, error)) from None
        try:
            return function(*arguments, **options)
        except UsageError as error:
            raise OptionsError(f"{function.__name__}: {respell(str(error), signature)}") from None
        except DsindexError as error:
            error.args = tuple(respell(word, signature) if isinstance(word, str) else word for word in error.args)
            raise

    return call


def respell(message: str, signature: inspect.Signature) -> str:
    """Return a message of the command line with flags replaced by parameters.

    >>> respell("start over with --fresh, or change --eod-token", inspect.signature(_example))
    'start over with fresh=True, or change eod_token'
    """
    parameters = signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    def spell(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        name = _PARAMETER_OF_FLAG.get(name, name)
        if name not in parameters:
            return name if takes_any else match[0]
        return f"{name}=True" if parameters[name].default is False else name

    return _FLAG.sub(spell, message)


def given_options(function: Callable[..., object], arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments that differ from the function's defaults, as options of the command line.

    The defaults equal those of the options' models, so omitting them changes nothing.

    Args:
        function: A function of the API.
        arguments: All its arguments, by parameter.
    """
    parameters = inspect.signature(function).parameters
    return {
        OPTION_OF.get(name, name): plain_value(value)
        for name, value in arguments.items()
        if name not in NOT_OPTIONS and not (name in parameters and _is_same(value, parameters[name].default))
    }


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
            msg = f"{option}: expected a path, or several, got {name_type(path)}"
            raise OptionsError(msg)
        paths.append(os.fsdecode(path))
    return tuple(paths)


def list_given_paths(options: dict[str, Any], *names: str) -> None:
    """Turn the options of these names, as far as they are given, into lists of paths.

    Raises:
        OptionsError: If a value is something else.
    """
    for name in names:
        if name in options:
            options[name] = list_paths(name, options[name])


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
    return absolute(path) if wants_ray(config) else path


def name_type(value: object) -> str:
    """Return the name of a value's type with an article, for messages."""
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _describe_misuse(name: str, signature: inspect.Signature, options: Mapping[str, object], error: TypeError) -> str:
    unknown = next((option for option in options if option not in signature.parameters), None)
    if unknown is None:
        return f"{name}: {error}"
    renamed = _PARAMETER_OF_FLAG.get(unknown)
    close = (
        [renamed] if renamed in signature.parameters else difflib.get_close_matches(unknown, signature.parameters, n=1)
    )
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name}: there is no option {unknown!r}{hint}"


def _example(*, fresh: bool = False, eod_token: str | None = None) -> None:
    """Stand in for a function of the API in an example."""
