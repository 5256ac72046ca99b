"""Generates the reference pages of the site from the program itself, so that they always agree with it.

`reference/commands/*.md` come from the argparse parsers, `reference/options.md` from the pydantic models. MkDocs calls
`on_config` and `on_files`; nothing is written to docs/.
"""

from __future__ import annotations

import argparse
import ast
import enum
import html
import importlib
import inspect
import itertools
import json
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

# The modules that these pages are generated from.
CLI = "dsindex.cli.main"
"""The module with COMMANDS (name → summary and module) and make_parser(name)."""
MODELS = {
    "build": "dsindex.options.build:BuildConfig",
    "merge": "dsindex.options.merge:MergeConfig",
    "index": "dsindex.options.index:IndexConfig",
    "mix": "dsindex.options.mix:MixConfig",
    "pack": "dsindex.options.pack:PackConfig",
    "instruct": "dsindex.options.instruct:InstructConfig",
}
"""Command → the model of its options."""
INSTRUCTION_MODEL = "dsindex.instruction.config:InstructionConfig"
"""The model of the configuration of `dsindex instruct`, apart from the job's options."""

COMMANDS_INDEX = "reference/commands/index.md"
COMMAND_PAGE = "reference/commands/dsindex-{name}.md"
"""Path of a command's page; the prefix is needed because a command is called `index`."""
OPTIONS_PAGE = "reference/options.md"
CHANGELOG_PAGE = "changelog.md"
COMMON_WORDS = {"for", "from", "like", "where"}
"""Flags that the site's search finds by a tag of their pages, as they are words of many pages, too."""


def on_config(config: MkDocsConfig) -> None:
    """Add a page for each command to the navigation section that has the commands' index."""
    pages = [{f"dsindex {name}": COMMAND_PAGE.format(name=name)} for name in load(CLI).COMMANDS]
    for section in _lists(config.nav):
        if COMMANDS_INDEX in section:
            section.extend(pages)
            return
    msg = f"mkdocs.yml: expected {COMMANDS_INDEX} in the navigation"
    raise ValueError(msg)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages' texts."""
    from mkdocs.structure.files import File

    for path, text in write_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def write_pages() -> dict[str, str]:
    """Return all pages: path below docs/ → Markdown."""
    cli = load(CLI)
    parsers = {name: find_parser(cli.make_parser(name), name) for name in cli.COMMANDS}
    pages = {COMMANDS_INDEX: write_command_index(cli.COMMANDS)}
    for name, parser in parsers.items():
        pages[COMMAND_PAGE.format(name=name)] = write_command_page(name, parser, cli.COMMANDS[name][0])
    pages[OPTIONS_PAGE] = write_options_page(parsers)
    pages[CHANGELOG_PAGE] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return pages


def load(name: str) -> Any:  # noqa: ANN401 - a module, or what is in it
    """Import `package.module` or `package.module:Name`."""
    module, _, attribute = name.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def find_parser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[name]
            return found
    msg = f"expected a parser with commands, got one without {name}"
    raise ValueError(msg)


# Commands


def write_command_index(commands: dict[str, tuple[str, str]]) -> str:
    """Return the page that lists all commands."""
    rows = [(f"[`dsindex {name}`](dsindex-{name}.md)", escape(summary)) for name, (summary, _) in commands.items()]
    return f"""\
# Commands

These pages are generated from the program's own `--help`. Every flag of a job that has a work folder can also be set
in a file: see [options in a file](../options.md).

{table(("command", "what it does"), rows)}

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the job failed, or `verify` found a fault; one sentence says what, where, and what to do |
| 2 | wrong usage |
| 130, 143 | interrupted by Ctrl-C, or terminated by SIGTERM; the same command continues |

`--debug` adds the traceback of an error to the sentence.
"""


def write_command_page(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    """Return the page of one command."""
    parts = [f"# dsindex {name}", escape(as_sentence(summary))]
    usage = parser.usage or f"dsindex {name} {' '.join(_usage_words(parser))}"
    parts.append(f"```text\n{wrap_usage(usage)}\n```")
    if parser.description:
        parts.append(describe(parser.description))
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if not actions:
            continue
        title = (group.title or "").capitalize()
        parts.append(f"## {title}")
        if group.description:
            parts.append(describe(as_sentence(group.description)))
        parts.append(table(("flag", "meaning"), [(_flag(action), _meaning(action)) for action in actions]))
    if parser.epilog:
        parts.append(describe(parser.epilog))
    flags = {flag.lstrip("-") for action in parser._actions for flag in action.option_strings}
    tags = f"---\ntags: {json.dumps(sorted(flags & COMMON_WORDS))}\n---\n\n"
    return tags + "\n\n".join(parts) + "\n"


def as_sentence(text: str) -> str:
    """Return a fragment of help with a capital letter and a full stop.

    >>> as_sentence("say how it goes"), as_sentence("P, or a blend.")
    ('Say how it goes.', 'P, or a blend.')
    """
    return text[:1].upper() + text[1:].removesuffix(".") + "."


def _usage_words(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield required options and positional arguments; everything else is `[options]`."""
    yield "[options]"
    for action in parser._actions:
        if not action.option_strings:
            word = _values(action)
            yield f"[{word}]" if action.nargs in {"?", "*"} else word
        elif action.required:
            yield f"{action.option_strings[-1]} {_values(action)}"


def wrap_usage(usage: str) -> str:
    """Break a usage line where it is too long for a narrow page."""
    return "\n".join(textwrap.wrap(usage, 78, subsequent_indent="    ", break_long_words=False))


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is None:
        name = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    else:
        name = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return f"{name} [{name} ...]" if action.nargs == "+" else name


def _flag(action: argparse.Action) -> str:
    names = action.option_strings or [_values(action)]
    shown = " ".join(f"`{name}`" for name in names)
    values = "" if action.choices is not None or not action.option_strings else _values(action)
    return f"{shown} `{values}`" if values else shown


def _meaning(action: argparse.Action) -> str:
    text = _help(action)
    choices = "" if action.choices is None else "; one of " + ", ".join(f"`{choice}`" for choice in action.choices)
    required = "; **required**" if action.option_strings and action.required else ""
    return f"{text}{choices}{required}"


def _help(action: argparse.Action) -> str:
    return escape((action.help or "") % {**vars(action), "prog": "dsindex"})


def describe(text: str) -> str:
    """Return help text as Markdown: paragraphs are joined, indented lines stay as they are."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        for is_indented, group in itertools.groupby(block.splitlines(), key=lambda line: line.startswith("  ")):
            if is_indented:
                parts.append("```text\n" + textwrap.dedent("\n".join(group)) + "\n```")
            else:
                parts.append(escape(" ".join(line.strip() for line in group)))
    return "\n\n".join(parts)


# Options


def write_options_page(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """Return the page of all keys that configuration files know."""
    parts = [
        """\
# Options in a file

Jobs read their options from a YAML file as well as from flags. A key is the flag without the leading dashes and with
underscores in the middle; a flag on the command line overrides the file, and an unknown key is refused.

```yaml
# build.yaml, for: dsindex build --config build.yaml
input: [data/web-*.jsonl, data/books.jsonl]
json_keys: [text]
tokenizer_model: tokenizers/gpt2
append_eod: true
output_prefix: out/corpus
shard_size: 64MiB
```

Sizes take a unit: `4096`, `64MiB`, `1.5GB`. The tables below are generated from the models that check the options;
below each key is the type of its value.""",
    ]
    for command, model_name in MODELS.items():
        helps = {action.dest: _help(action) for action in parsers[command]._actions}
        parts.append(f"## {command}\n\n{_model_table(load(model_name), helps)}")
        if command == "instruct":
            parts.append(
                "These keys belong to the section `job` of the configuration file. The rest of that file says how "
                "records become prompts:"
            )
            parts.append(_model_table(load(INSTRUCTION_MODEL), {}))
    return "\n\n".join(parts) + "\n"


def _model_table(model: type[BaseModel], helps: dict[str, str]) -> str:
    """Return the table of one model's keys: its own first, then those that it shares with other jobs."""
    notes = read_field_notes(model)
    rows = []
    own_first = [name for kind in model.__mro__ for name in vars(kind).get("__annotations__", {})]
    for name in dict.fromkeys(name for name in own_first if name in model.model_fields):
        field = model.model_fields[name]
        kind = escape(name_type(field.annotation, field.metadata))
        note = helps.get(name) or escape(notes.get(name, ""))
        default = "**required**" if field.is_required() else show_default(field)
        if default and "default" not in note:
            note = "; ".join(part for part in (note, default) if part)
        rows.append((f"{breakable(name)}<br>{kind}", note))
    return table(("key", "meaning"), rows)


def read_field_notes(model: type[BaseModel]) -> dict[str, str]:
    """Return the strings under the fields of a model and its bases."""
    notes: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not kind.__module__.startswith("dsindex."):
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for statement, follower in itertools.pairwise(body):
            match statement, follower:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(note))):
                    notes[name] = " ".join(note.split())
    return notes


def name_type(annotation: Any, metadata: Iterable[Any] = ()) -> str:  # noqa: ANN401 - any type there is
    """Return a type in plain words for people who write YAML.

    >>> name_type(tuple[str, ...]), name_type(int | None), name_type(Literal["a", "b"])
    ('list of text', 'integer', 'a or b')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return name_type(arguments[0], arguments[1:])
    if origin in {Union, types.UnionType}:
        return " or ".join(dict.fromkeys(name_type(part) for part in arguments if part is not type(None)))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin in {tuple, list}:
        parts = [part for part in arguments if part is not Ellipsis]
        listed = " or ".join(dict.fromkeys(name_type(part) for part in parts))
        return f"list of {listed}" if Ellipsis in arguments or origin is list else f"{len(parts)} of {listed}"
    if origin is dict:
        return f"mapping to {name_type(arguments[1])}"
    if annotation is int and any("parse_size" in str(part) for part in metadata):
        return "size"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(str(member.value) for member in annotation)
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Fraction": "number"}
    names |= {"Path": "path", "date": "date"}
    return names.get(getattr(annotation, "__name__", ""), "any value")


def show_default(field: FieldInfo) -> str:
    """Return a default in YAML; an empty string if it is None, false or empty."""
    value = field.get_default(call_default_factory=True)
    if not value:
        return ""
    if isinstance(value, tuple):
        shown = "[" + ", ".join(map(str, value)) + "]"
    elif isinstance(value, dict):
        shown = "{" + ", ".join(f"{key}: {entry}" for key, entry in value.items()) + "}"
    elif isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        shown = f"{value >> 20}MiB"
    else:
        shown = str(value)
    return f"default: `{shown}`"


# Markdown


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Escape plain text so that Markdown shows it as it is, except code between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escape_plain(part) for part in parts)


def _escape_plain(text: str) -> str:
    return re.sub(r"([*_\[\]\\|])", r"\\\1", html.escape(text, quote=False))


def breakable(name: str) -> str:
    """Return a name as code that may break after an underscore in a narrow table."""
    return "<code>" + html.escape(name, quote=False).replace("_", "_<wbr>") + "</code>"


def _lists(node: object) -> Iterator[list[Any]]:
    """Yield every list of a navigation, at any depth."""
    if isinstance(node, list):
        yield node
        for entry in node:
            yield from _lists(entry)
    elif isinstance(node, dict):
        for entry in node.values():
            yield from _lists(entry)
