r"""The keys of `--json-keys` and `--token-ids`: an exact name, a path, or a jq program, and the name of the output.

    text              the top-level key of exactly this name, dots and all, as in Megatron
    .meta.text        a path: the key `text` of the object under `meta`; also `."my key".x` and `.["a b"].x`
    body=.meta.text   the same path, for an output that is named `body` instead of `meta.text`
    body=.a + .b      any other text that begins with a dot is a jq program, whose output must have a name

An exact name that begins with a dot, or contains `=.`, is written as a path: `.".name"`, `."a=.b"`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.text.patterns import TextPattern, parse_text_pattern

if TYPE_CHECKING:
    from dsindex.text.fields import Path

_NAMED = re.compile(r"(?P<name>[^=]+)=(?P<source>\..*)", re.DOTALL)
_STEP = re.compile(
    r"""\.(?P<name>[A-Za-z_]\w*) | \.?\s*\[\s*(?P<bracket>"(?:[^"\\]|\\.)*")\s*\] | \.(?P<quoted>"(?:[^"\\]|\\.)*")""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKey:
    """One value of a record, and the name of the output that it becomes."""

    name: str
    """Name of the column and of the output; of a jq program without one, the program."""
    path: Path | None
    """The keys that lead to the value; of an exact name, the name alone. None for a jq program."""
    pattern: TextPattern | None
    """The jq program; None for a name or a path."""


def parse_key(text: str) -> TextKey:
    """Parse a key as it is written in an option.

    Raises:
        InputError: If it is a jq program that does not compile, or that uses a part of jq that is not allowed.

    >>> parse_key("meta.text").path, parse_key('.meta."my text"').path
    (('meta.text',), ('meta', 'my text'))
    >>> parse_key(".meta.text").name, parse_key("body=.meta.text").name
    ('meta.text', 'body')
    """
    name, source = _split(text)
    path = _parse_path(source)
    if path is None:
        return TextKey(name=name or source, path=None, pattern=parse_text_pattern(source))
    return TextKey(name=name or ".".join(path), path=path, pattern=None)


def output_name(text: str) -> str | None:
    """Return the name that a key gives its output, without compiling anything; None for a jq program without one.

    >>> output_name("text"), output_name(".a.b"), output_name("x=.a + .b"), output_name(".a + .b")
    ('text', 'a.b', 'x', None)
    """
    name, source = _split(text)
    path = _parse_path(source)
    return name or (None if path is None else ".".join(path))


def is_program(text: str) -> bool:
    """Tell whether a key is a jq program.

    >>> is_program(".a.b"), is_program("a | b"), is_program(".a | .b")
    (False, False, True)
    """
    return _parse_path(_split(text)[1]) is None


def _split(text: str) -> tuple[str | None, str]:
    """Return the output's name, if one is given, and the rest; an exact name is returned as a rest without a dot."""
    found = None if text.startswith(".") else _NAMED.fullmatch(text)
    return (None, text) if found is None else (found["name"], found["source"])


def _parse_path(source: str) -> Path | None:
    """Return the keys of a name or a path; None for a jq program."""
    if not source.startswith("."):
        return (source,)
    source, path, position = source.strip(), [], 0
    while position < len(source):
        found = _STEP.match(source, position)
        if found is None or (position == 0 and not found[0].startswith(".")):
            return None
        try:
            path.append(found["name"] or json.loads(found["bracket"] or found["quoted"]))
        except ValueError:  # an escape of jq that is not one of JSON, such as an interpolation
            return None
        position = found.end()
    return tuple(path) if path else None
