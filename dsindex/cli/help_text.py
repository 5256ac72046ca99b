"""How help is laid out: text is wrapped to the terminal, required options are marked, and the usage is one line."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from rich.text import Text
from rich_argparse import RichHelpFormatter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

USAGE_COLUMNS = 80
_USAGE_PREFIX = "Usage: "


class HelpFormatter(RichHelpFormatter):
    """Wraps paragraphs to the terminal's width, and leaves indented lines, which are examples, as they are."""

    group_name_formatter = str.capitalize

    def _rich_fill_text(self, text: Text, width: int, indent: Text) -> Text:
        filled = Text("\n\n").join(self._fill_block(block, width, indent) for block in text.split("\n\n"))
        return filled + "\n\n"

    def _fill_block(self, block: Text, width: int, indent: Text) -> Text:
        lines: list[Text] = []
        paragraph: list[Text] = []
        for line in [*block.split(), None]:
            if line is not None and not line.plain.startswith("  "):
                paragraph.append(line)
                continue
            if paragraph:
                joined = Text(" ").join(paragraph)
                lines += joined.wrap(self.console, width - len(indent))
                paragraph = []
            if line is not None:
                lines.append(line)
        for line in lines:
            line.rstrip()
        return Text("\n").join(indent + line for line in lines)


def mark_required(parser: argparse.ArgumentParser, required: Mapping[str, str]) -> None:
    """Mark required options in the help, and shorten the usage to them.

    Args:
        parser: The parser of a command.
        required: Names of options that argparse does not require because a file can hold them, and what can be given in
            the place of each; empty if nothing can.
    """
    order = {name: place for place, name in enumerate(required)}
    essential = [action for action in parser._actions if action.required or action.dest in required]
    essential.sort(key=lambda action: order.get(action.dest, -1))
    for action in essential:
        if action.option_strings:
            instead = required.get(action.dest)
            action.help = f"{action.help} (required{f', or {instead}' if instead else ''})"
    if parser.usage is None:
        words = [_usage_word(action) for action in essential]
        optional = [_usage_word(action) for action in parser._actions if _is_optional_argument(action)]
        parser.usage = _wrap_usage([parser.prog, *words, *optional, "[options]"])


def examples_epilog(examples: Sequence[str]) -> str:
    """Return the end of a command's help: examples that can be pasted into a shell."""
    title = "example:" if len(examples) == 1 else "examples:"
    return "\n".join([title, *(textwrap.indent(example, "  ") for example in examples)])


def _is_optional_argument(action: argparse.Action) -> bool:
    is_shown = action.help != argparse.SUPPRESS
    return not action.option_strings and not action.required and action.nargs != argparse.PARSER and is_shown


def _usage_word(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    values = {"+": f"{name} [{name} ...]", "?": f"[{name}]", "*": f"[{name} ...]"}.get(str(action.nargs), name)
    return f"{action.option_strings[-1]} {values}" if action.option_strings else values


def _wrap_usage(words: Sequence[str]) -> str:
    """Break a usage between its words."""
    lines = [words[0]]
    for word in words[1:]:
        if len(_USAGE_PREFIX) + len(lines[-1]) + 1 + len(word) > USAGE_COLUMNS:
            lines.append(" " * (len(words[0]) + 1) + word)
        else:
            lines[-1] += f" {word}"
    return f"\n{' ' * len(_USAGE_PREFIX)}".join(lines)
