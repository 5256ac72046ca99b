"""Read configuration files in YAML: plain values only, every key once, with limits on size and nesting.

In YAML, aliases repeat anchored values, so a few lines can unfold to gigabytes, or contain themselves. Aliases are
allowed, but the values that they unfold to are counted while the file is read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from dsindex.errors import InputError
from dsindex.option_problems import name_kind, show_value
from dsindex.store.storage import open_configuration, open_file
from dsindex.store.urls import ONLY_INPUTS, is_url

if TYPE_CHECKING:
    from collections.abc import Mapping


# Read JSON files from users that have one object.


def read_object(path: str, *, what: str = "a JSON object") -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: The file.
        what: What it is, for messages.

    Raises:
        InputError: If the file cannot be read, or has something else.
    """
    try:
        with open_file(path) as file:
            content = json.load(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected {what}, got a file that is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected {what}, got another JSON value")
    return content


MAX_BYTES = 16 << 20
"""Largest file; 100,000 inputs by name take less."""
MAX_NODES = 250_000
"""Most keys, values, lists and mappings in a file with all aliases unfolded."""
MAX_DEPTH = 100
"""Deepest nesting of lists and mappings; PyYAML needs several calls per level, of Python's limit of 1,000."""
_LONGEST_INTEGER = 100
"""Most characters of an integer: PyYAML takes quadratic time for those of base 60."""


def read_yaml(path: str) -> dict[str, Any]:
    """Read a configuration file.

    Raises:
        InputError: If it cannot be read, or as for `parse_yaml`.
    """
    if is_url(path):
        raise InputError(f"{path.partition('?')[0]}: {ONLY_INPUTS}")
    try:
        with open_configuration(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return parse_yaml(content, source=path)


def parse_yaml(content: bytes | str, *, source: str) -> dict[str, Any]:
    """Parse a configuration.

    Args:
        content: YAML, one mapping.
        source: Name of the configuration in errors.

    Raises:
        InputError: If it is not a YAML mapping, repeats a key, or is too large.

    >>> parse_yaml("input: [a.jsonl]", source="build.yaml")
    {'input': ['a.jsonl']}
    """
    if len(content) > MAX_BYTES:
        msg = f"{source}: expected a configuration of at most {MAX_BYTES >> 20} MiB, got more; is it another file?"
        raise InputError(msg)
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        loader = _Loader(text)
        try:
            loaded = loader.get_single_data()
        finally:
            loader.dispose()
    except _RefusedError as error:
        raise InputError(f"{source}, line {error.mark.line + 1}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        msg = f"{source}{where}: expected YAML, got a syntax error ({error.problem or error.context})"
        raise InputError(msg) from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML's constructors raise many types: `!!int ""`, `!!timestamp 2024-13-01`, 5,000 digits.
        msg = f"{source}: expected YAML, got a value that cannot be read ({str(error).splitlines()[0]})"
        raise InputError(msg) from error
    if not isinstance(loaded, dict):
        raise InputError(f"{source}: expected a mapping of options to values, got {name_kind(loaded)}")
    return loaded


def option_names(values: Mapping[Any, Any], *, source: str) -> dict[str, Any]:
    """Return options by their names with underscores; in a file they may have dashes, as flags do.

    Raises:
        InputError: If an option is present in both spellings.
    """
    options: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in options:
            raise InputError(f"{source}: expected each option once, got {name} in two spellings; leave one out")
        options[name] = value
    return options


class _RefusedError(Exception):
    def __init__(self, mark: yaml.Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, extended to count nodes, and to refuse repeated keys and integers that JSON cannot hold."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._num_nodes = 0
        """Number of nodes so far, with aliases unfolded."""
        self._unfolded: dict[int, int] = {}
        """Number of nodes in each finished node, by its identity."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # its stub has no types here
        before = self._num_nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _RefusedError(mark, f"expected at most {MAX_DEPTH} lists and mappings inside each other, got more")
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias:
            if id(node) not in self._unfolded:
                raise _RefusedError(mark, "expected a finite value, got an alias inside its own anchor")
            self._num_nodes += self._unfolded[id(node)]
        else:
            self._num_nodes += 1
            self._unfolded[id(node)] = self._num_nodes - before
        if self._num_nodes > MAX_NODES:
            raise _RefusedError(mark, f"expected at most {MAX_NODES:,} values with all aliases unfolded, got more")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401 - text or None; the stubs err
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if first := seen.get((key.tag, key.value)):
                again = f"{show_value(key.value)} again, as on line {first.line + 1}"
                raise _RefusedError(key.start_mark, f"expected each key once, got {again}; leave one out")
            seen[key.tag, key.value] = key.start_mark
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node) if len(node.value) <= _LONGEST_INTEGER else 1 << 64
        if abs(number) >= 1 << 64:
            raise _RefusedError(node.start_mark, f"expected integers of at most 64 bits, got {show_value(node.value)}")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
