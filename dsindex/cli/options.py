"""The flags of commands, from the declarations of their options; and options read from flags and a YAML file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from dsindex.engine.standard_streams import show_lines
from dsindex.options.config import Options, UsageError, name_lists, validated
from dsindex.options.declare import GROUPS, Declared, declared_options, members, option
from dsindex.options.megatron_flags import take_megatron_flags

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic import BaseModel


Config = TypeVar("Config", bound=Options)


class EveryCommand(Options):
    """Options of every command."""

    debug: bool = option(default=False, help="show the traceback of an error")


class ConfigFile(Options):
    """Options of a command that reads a file of options."""

    config: str | None = option(None, "read options from this file; flags override it", "FILE.yaml")


def add_options(parser: argparse.ArgumentParser, *models: type[BaseModel], required: Collection[str] = ()) -> None:
    """Add the flags of the models' options by groups, in each those first that must be given.

    No flag has a default, so that a file of options can say it.
    """
    order = ["", *GROUPS]
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    options = declared_options(*models)
    for name in sorted(options, key=lambda name: (order.index(options[name][1].group or ""), name not in required)):
        field, shown = options[name]
        flags = (f"--{name.replace('_', '-')}",) if shown.flags is None else shown.flags
        if not flags:
            continue
        title = shown.group or ""
        if title not in groups:
            groups[title] = parser.add_argument_group(title, GROUPS[title])
        settings = _settings(field.annotation, shown)
        if shown.positional:
            optional = {"+": "*"}.get(settings.get("nargs", ""), "?")
            settings |= {} if field.is_required() else {"nargs": optional}
        else:
            settings["dest"] = name
        groups[title].add_argument(
            *((name,) if shown.positional else flags),
            default=None,
            help=shown.help.replace("%", "%%") or argparse.SUPPRESS,
            **settings,
        )


def _settings(annotation: object, shown: Declared) -> dict[str, Any]:
    """Return how argparse reads the values of an option."""
    named: dict[str, Any] = {"metavar": shown.metavar}
    [kind] = set(members(annotation)) - {type(None)} if not shown.as_text else [str]
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": list(get_args(kind))}
    if isinstance(shown.metavar, tuple):
        return named | {"nargs": len(shown.metavar), "type": int}
    if get_origin(kind) is tuple:
        named |= {"action": "append"} if shown.each else {"nargs": "+"}
        [kind] = members(get_args(kind)[0])
        if get_origin(kind) is Literal:
            return named | {"choices": get_args(kind)}
    return named | ({"type": kind} if kind in {int, float} else {})


NOT_OPTIONS = frozenset({"config", "debug", "version", "verbose"})


def read_options(options: argparse.Namespace, names: Collection[str] | None = None) -> dict[str, Any]:
    """Read a configuration file, if one is named, and override it with flags, or with those of these names.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
    """
    path = getattr(options, "config", None)
    merged: dict[str, Any] = {}
    if path:
        from dsindex.store.config_files import option_names, read_yaml  # loads YAML

        merged = option_names(read_yaml(path), source=path)
    given = {name: value for name, value in vars(options).items() if name not in NOT_OPTIONS}
    merged.update(
        {name: value for name, value in given.items() if value not in (None, []) and (names is None or name in names)}
    )
    return name_lists(merged)


def without_megatron_flags(merged: dict[str, Any]) -> dict[str, Any]:
    """Return options without those flags of Megatron's programs that have no effect, after a note that names them.

    Raises:
        UsageError: If one of them is refused.
    """
    remaining = dict(merged)
    try:
        note = take_megatron_flags(remaining)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if note is not None:
        sys.stderr.write(show_lines([f"dsindex: {note}"]))
    return remaining


def read_config(options: argparse.Namespace, kind: type[Config]) -> Config:
    """Read the options of a model from a file and flags.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
        UsageError: If they are invalid.
    """
    return validated(read_options(options, kind.model_fields), kind)
