"""The examples in README.md and docs/: fenced blocks, and the marks that say what the tests do with them.

A mark is an HTML comment on the line before a block, so that readers do not see it:

    <!-- not run: needs a cluster -->   the block is only looked at: its dsindex commands must parse
    <!-- needs: grain -->               the block is run where this package is installed
    <!-- file: build.yaml -->           the block is written to this file, for the examples that follow
    <!-- fails: 1 -->                   the last command of the block ends with this exit code
    <!-- output -->                     the block is what the `python` block before it prints

Blocks without a mark are run if they are `sh`, `console`, `python` or `pycon`. The blocks of a page share one folder
and one Python namespace, and run in the order of the page.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN_LANGUAGES = frozenset({"sh", "console", "python", "pycon"})

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)(?P<title>.*)$")
_MARK = re.compile(r"^<!-- (?P<name>not run|needs|file|fails|output)(: (?P<value>.+))? -->$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One fenced block of a page."""

    page: Path
    line: int
    """1-based, of the block's first line of text."""
    language: str
    text: str
    mark: str | None
    value: str
    """What follows the mark's colon."""

    @property
    def place(self):
        """Return the page and line, as messages name them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self):
        """Whether the tests execute this block."""
        is_possible = self.mark != "needs" or find_spec(self.value) is not None
        return is_possible and self.language in RUN_LANGUAGES and self.mark not in {"not run", "file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a shell block, and what it prints."""

    line: str
    """Without the prompt; continuation lines are joined."""
    output: tuple[str, ...] | None
    """The lines that follow it in a `console` block; None in a `sh` block, which shows no output."""


def read_examples(page):
    """Return the fenced blocks of a page in order."""
    examples, number = [], 0
    lines = page.read_text(encoding="utf-8").splitlines()
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        begin = number
        while lines[number].strip() != "```":
            number += 1
        mark_match = _MARK.match(lines[begin - 2].strip()) if begin >= 2 else None
        mark, value = (None, "") if mark_match is None else (mark_match["name"], mark_match["value"] or "")
        text = textwrap.dedent("\n".join(lines[begin:number])) + "\n"
        language = fence["language"]
        examples.append(Example(page=page, line=begin + 1, language=language, text=text, mark=mark, value=value))
        number += 1
    return examples


def read_commands(example):
    """Split a `sh` or `console` block into commands."""
    is_console = example.language == "console"
    pending, commands = "", []
    for line in example.text.splitlines():
        if is_console and not pending and not line.startswith("$ "):
            assert commands, f"{example.place}: output before the first command"
            commands[-1][1].append(line)
            continue
        pending += line.removeprefix("$ ") if is_console and not pending else line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1]
        else:
            commands.append((re.sub(r"(^|\s)#\s.*$", "", pending).strip(), []))
            pending = ""
    return [Command(line=line, output=tuple(output) if is_console else None) for line, output in commands if line]
