"""Flags that several commands share, and options read from flags and a YAML file."""

from __future__ import annotations

import argparse
import sys
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from dsindex.execution.progress.standard_streams import show_lines
from dsindex.options.config import (
    ExecutorConfig,
    Options,
    RecordsConfig,
    TextConfig,
    UsageError,
    WorkConfig,
    name_lists,
    validated,
)
from dsindex.options.declare import presentation
from dsindex.options.megatron_flags import take_megatron_flags
from dsindex.store.config_files import option_names, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

Config = TypeVar("Config", bound=Options)


def add_options(group: argparse._ActionsContainer, kind: type[Options], *names: str, **settings: Any) -> None:  # noqa: ANN401 - as of argparse
    """Add the flags of declared options, in this order; `settings` override what argparse is told of them."""
    for name in names:
        field = kind.model_fields[name]
        text, metavar, as_text = presentation(field)
        own = {"metavar": metavar} if as_text else settings_of(field.annotation, metavar)
        add_flag(group, name, text, **(own | settings))


def add_flag(group: argparse._ActionsContainer, name: str, text: str, **settings: Any) -> None:  # noqa: ANN401 - as of argparse
    """Add one flag, without a default, so that a file of options can say it."""
    is_positional = settings.pop("positional", False)
    flag = name if is_positional else settings.pop("flag", f"--{name.replace('_', '-')}")
    shown = text if text == argparse.SUPPRESS else text.replace("%", "%%")
    group.add_argument(flag, default=None, help=shown, **settings)


def settings_of(annotation: object, metavar: str | tuple[str, ...] | None) -> dict[str, Any]:
    """Return how argparse reads the values of a type."""
    [kind] = set(_plain_types(annotation)) - {type(None)}
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": list(get_args(kind))}
    if isinstance(metavar, tuple):
        return {"metavar": metavar, "nargs": len(metavar), "type": int}
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return {"metavar": metavar, "nargs": "+"} | ({} if item is str else {"choices": get_args(item)})
    return {"metavar": metavar} | ({"type": kind} if kind in {int, float} else {})


def _plain_types(annotation: object) -> Iterator[Any]:
    """Yield the members of a union, without what validates them."""
    if get_origin(annotation) is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _plain_types(member)
    else:
        yield annotation


def add_executor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that runs tasks."""
    add_options(parser.add_argument_group("execution"), ExecutorConfig, *ExecutorConfig.model_fields)


def add_work_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that works in a work folder."""
    add_executor_arguments(parser)
    work = parser.add_argument_group("work folder")
    add_options(work, WorkConfig, "work_dir", "keep_shards", "fresh", "log_json")


def add_input_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options that name the inputs of a job that reads records."""
    inputs = ("input", "endpoint_url", "region", "input_list", "input_split", "input_config", "input_format")
    add_options(group, RecordsConfig, *inputs)


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that tokenizes text, except input and output."""
    names = ("tokenizer_model", "eod_token", "tokenizer_hf_no_include_special_tokens", "engine")
    add_options(parser.add_argument_group("tokenizer"), TextConfig, *names)
    add_record_arguments(parser, TextConfig)


def add_record_arguments(parser: argparse.ArgumentParser, kind: type[RecordsConfig]) -> None:
    """Add the options of every job that reads records: bad records, the work folder, shards."""
    names = ("on_bad_record", "on_bad_input", "max_bad_records", "max_record_size")
    add_options(parser.add_argument_group("records"), kind, *names)
    add_work_arguments(parser)
    add_options(parser, kind, "shard_size", "no_provenance")


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", metavar="FILE.yaml", help="read options from this file; flags override it")


NOT_OPTIONS = frozenset({"config", "debug"})


def read_options(options: argparse.Namespace) -> dict[str, Any]:
    """Read a configuration file, if one is named, and override it with flags.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
    """
    path = getattr(options, "config", None)
    merged = option_names(read_yaml(path), source=path) if path else {}
    given = {name: value for name, value in vars(options).items() if name not in NOT_OPTIONS and value is not None}
    merged.update(given)
    if "log_json" in merged:
        options.log_json = merged["log_json"]  # decides how the command line reports an error
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


def read_config(options: argparse.Namespace, kind: type[Config], *, beside: tuple[str, ...] = ()) -> Config:
    """Read a job's options from a file and flags; `beside` names flags that are not options of the job."""
    return validated({name: value for name, value in read_options(options).items() if name not in beside}, kind)
