"""Read configuration files: YAML with plain values and no repeated keys, and JSON objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from dsindex.errors import InputError
from dsindex.messages import show_value
from dsindex.store.errors import reading
from dsindex.store.local import open_configuration, open_file
from dsindex.store.urls import ONLY_INPUTS, refuse_address

if TYPE_CHECKING:
    from collections.abc import Mapping


MAX_VALUES = 40_000
"""Values that a configuration may have, plus one per 100 bytes: PyYAML takes up to 1.6 KiB and 0.1 ms per value."""
_BETWEEN_VALUES = (b"\n", b",", b"[", b"{", b"- ", b": ")


def read_object(path: str) -> dict[str, Any]:
    """Read a file with one JSON object.

    Raises:
        InputError: If the file cannot be read, or is not a JSON object.
    """
    try:
        with reading(path), open_file(path) as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON, where a JSON object is needed: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: this is not a JSON object")
    return content


def read_yaml(path: str) -> dict[str, Any]:
    """Read a YAML configuration file.

    Raises:
        InputError: If the file is not local, cannot be read, or `parse_yaml` refuses it.
    """
    with reading(refuse_address(path, ONLY_INPUTS)), open_configuration(path) as file:
        return parse_yaml(file.read(), source=path)


def parse_yaml(content: bytes | str, *, source: str) -> dict[str, Any]:
    """Parse a YAML configuration.

    Args:
        content: One YAML mapping.
        source: Name of the configuration in errors.

    Raises:
        InputError: If it is not a YAML mapping, repeats a key, or has too many values.

    >>> parse_yaml("input: [a.jsonl]", source="build.yaml")
    {'input': ['a.jsonl']}
    """
    encoded = content.encode(errors="replace") if isinstance(content, str) else content
    if sum(map(encoded.count, _BETWEEN_VALUES)) > MAX_VALUES + len(encoded) // 100:
        hint = "name inputs by a pattern or a list file"
        raise InputError(f"{source}: too many values for a configuration", hint=hint)
    try:
        options = yaml.load(content, _Loader)
    # PyYAML's constructors raise many types: `!!int ""`, `!!timestamp 2024-13-01`, 5,000 digits.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{source}{where}: not valid YAML: {reason}") from error
    if not isinstance(options, dict):
        raise InputError(f"{source}: {show_value(options)} is not a mapping of options to values")
    return options


def normalize_option_names(values: Mapping[Any, Any], *, source: str) -> dict[str, Any]:
    """Replace dashes in option names by underscores, since a file may write options like flags.

    Raises:
        InputError: If a file has both spellings of an option.
    """
    options: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in options:
            raise InputError(f"{source}: the option {name} is given twice, with dashes and with underscores")
        options[name] = value
    return options


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without repeated keys and aliases: a few lines of aliases can expand exponentially."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # its stub has no types here
            problem = f"aliases such as *{event.anchor} are not allowed; write the value itself"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[tuple[str, str]]()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in names:
                problem = f"the key {key.value} is repeated"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            names.add(name)
        return super().construct_mapping(node, deep)
