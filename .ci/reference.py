"""Write docs/reference.md, the reference of the command line and YAML keys, from the option models.

`make docs` runs it as a hook of MkDocs; `.venv/bin/python .ci/reference.py` does the same by itself.
"""

import inspect
import textwrap
from pathlib import Path
from typing import Literal, get_args, get_origin

from dsindex.cli.parser import COMMANDS, GROUP_DESCRIPTIONS, EveryCommand, load_model
from dsindex.options.model import Options, flag_of, options_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
HEAD = """\
# Command line and YAML keys

This page is generated from the option models by `make docs`; do not edit it.

Every option is a flag, a key of the YAML file of `--config`, and, [with few exceptions](python-api.md#functions), an
argument of the Python function. Those in the last table are flags only. Flags may have underscores, and override the
file. `dsindex COMMAND -h` lists the common options.
"""


def make_reference():
    """Return the page."""
    return "\n".join([HEAD, *map(_command, COMMANDS), _options("Flags of every command", options_of(EveryCommand))])


def _command(command):
    model = load_model(command)
    summary, _, text = (inspect.getdoc(model) or "").partition("\n")
    text, _, examples = text.partition("Examples:\n")
    last_title, last_model = getattr(model, "last_group", ("", Options))
    groups = {}
    for name, option in options_of(model).items():
        if option.help:
            title = last_title if name in options_of(last_model) else option.group or "arguments and options"
            groups.setdefault(title, {})[name] = option
    required = {title for title, options in groups.items() if any(option.default is ... for option in options.values())}
    ordered = sorted(groups.items(), key=lambda item: (item[0] == last_title, item[0] not in required))
    parts = [
        _options(title[0].upper() + title[1:], options, GROUP_DESCRIPTIONS.get(title)) for title, options in ordered
    ]
    return "\n".join([
        f"## dsindex {command}\n", f"{summary}\n", f"{text.strip()}\n", *parts,
        f"```text\n{textwrap.dedent(examples).strip()}\n```\n",
    ])  # fmt: skip


def _options(title, options, description=None):
    rows = [f"**{title}**{f' ({description})' if description else ''}\n", "| flag | YAML key | |", "|---|---|---|"]
    for name, option in options.items():
        flag = flag_of(name, option)
        choices = ",".join(map(str, get_args(option.kind))) if get_origin(option.kind) is Literal else None
        values = f" {option.metavar or choices}" if (option.metavar or choices) and not option.positional else ""
        flags = f"`{flag}{values}`" + (f", `{option.short}`" if option.short else "")
        required = " Required." if option.default is ... else ""
        key = "" if name in options_of(EveryCommand) else f"`{name}`"
        rows.append(f"| {_cell(flags)} | {key} | {_cell(option.help)}{required} |")
    return "\n".join([*rows, ""])


def _cell(text):
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def on_pre_build(**_):
    """Write the page before MkDocs collects the files."""
    page = make_reference()
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    on_pre_build()
