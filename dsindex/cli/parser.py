"""The command-line parser: the list of commands, and how repeated, mistyped and Megatron's flags are treated.

A command's module is imported only when that command is used, so that `dsindex --help` is fast.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

from dsindex.cli.options import EveryCommand, add_options
from dsindex.json_text import show_name
from dsindex.locations import without_secrets
from dsindex.option_problems import show_value
from dsindex.options.config import MAY_BE_EMPTY
from dsindex.options.declare import declared_options
from dsindex.options.numbers import parse_integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# How help is laid out: required options are marked, and the usage is one line.

USAGE_COLUMNS = 80
_USAGE_PREFIX = "Usage: "


def mark_required(parser: argparse.ArgumentParser, required: Mapping[str, str]) -> None:
    """Mark required options in the help, and shorten the usage to them.

    Args:
        parser: The parser of a command.
        required: Names of options that argparse does not require because a file can hold them, and what can be given in
            the place of each; empty if nothing can.
    """
    order = {name: place for place, name in enumerate(required)}
    essential = [action for action in parser._actions if action.required or action.dest in required]
    essential.sort(key=lambda action: (bool(action.option_strings), order.get(action.dest, -1)))
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


COMMANDS = {
    "build": ("tokenize text and merge it into one dataset per key", "dsindex.cli.build"),
    "merge": ("merge datasets into one", "dsindex.cli.merge"),
    "index": ("build the document, sample and shuffle indices of a training job", "dsindex.cli.index"),
    "mix": ("plan a blend from token counts, or see what its weights mean", "dsindex.cli.mix"),
    "verify": ("prove that a dataset is intact", "dsindex.cli.verify"),
    "inspect": ("show what a dataset is and what it holds, down to its tokens", "dsindex.cli.inspect"),
    "report": ("write a page about datasets, to look at and to keep", "dsindex.cli.report"),
    "trace": ("show where samples come from, and which samples have a line", "dsindex.cli.trace"),
    "raw-index": ("write Modalities' index of the lines of a JSONL file", "dsindex.cli.raw_index"),
    "convert": ("convert an MMIDIDX dataset to a .pbin of Modalities, or back", "dsindex.cli.convert"),
    "pack": ("tokenize text into a .pbin of Modalities, or join .pbin files", "dsindex.cli.pack"),
    "instruct": ("turn conversations into tokens, loss masks and packed blocks", "dsindex.cli.instruct"),
}
"""Name → (summary, module); a module has DESCRIPTION, OPTIONS, which are models, and run(options) -> exit code.

It may have EXAMPLES, which are shell commands of at most 78 columns; REQUIRED, options with what can stand in the place
of each; and add_arguments(parser), for what is no option.
"""

EPILOG = """\
start here:
  dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod \\
    --output-prefix out/docs
  dsindex COMMAND --help explains a command"""


_FORMER_FLAGS = {
    "--chunk-size": ("--shard-size", "leave it out, or set the bytes of text per shard with --shard-size"),
    "--tokenizer-name-or-path": ("--tokenizer-model", "use --tokenizer-model FOLDER"),
    "--vocab": ("--vocab-file", "use --vocab-file for a vocab.json, with --merge-file"),
}
"""Flags of older releases and forks of Megatron → the flag that took their place, and what to do."""
_SHORTENED = {
    "--tokenizer": ("--tokenizer-model", "use --tokenizer-model FOLDER"),
}
"""The same of what several flags begin with."""


class Parser(argparse.ArgumentParser):
    """An argument parser in which no flag silently overrides an earlier one.

    A repeated list flag adds to the list: `--input a --input b` is `--input a b`. A repeated flag with one value or
    none is refused. Groups and subparsers inherit this. An unknown flag or command is refused with the nearest one.
    """

    def __init__(self, **named: Any) -> None:  # noqa: ANN401 - as argparse has them
        super().__init__(**named)
        self.register("action", None, _Value)
        self.register("action", "store", _Value)
        self.register("action", "store_true", _Switch)
        self.register("type", int, parse_integer)
        self.register("type", float, _number)

    def parse_known_args(  # type: ignore[override]  # argparse's has overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse a command line; nothing is unknown afterwards."""
        words = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown(words)
        options, rest = super().parse_known_args(words, namespace)
        if rest:
            unknown = next((word for word in rest if word.startswith("-")), None)
            inputs = " (inputs follow --input)" if "--input" in self._option_string_actions else ""
            self.error(
                f"expected a flag, got {rest[0]!r}{inputs}" if unknown is None else self._describe_unknown(unknown)
            )
        return options, rest

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """Refuse an unknown command or flag before anything that is missing is reported."""
        for action in self._actions:
            if action.nargs == argparse.PARSER:
                command = next((word for word in words if not word.startswith("-")), None)
                if command is not None and command not in (action.choices or ()):
                    near = _near(command, [*(action.choices or ()), "help", "version"])
                    self.error(f"there is no command {command!r}; {near or 'dsindex --help lists all commands'}")
                return
            if action.nargs == argparse.REMAINDER and "--" not in words:
                return
        own = words[: words.index("--")] if "--" in words else words
        for word in own:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and not self._begins_a_flag(name):
                self.error(self._describe_unknown(name))

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return the flags that a word may shorten; hidden ones only if none is shown."""
        found = super()._get_option_tuples(option_string)
        return [each for each in found if each[0].help != argparse.SUPPRESS] or found

    def format_usage(self) -> str:
        """Return the usage, laid out as in a help text."""
        self._lay_out()
        return super().format_usage()

    def format_help(self) -> str:
        """Return the help text."""
        self._lay_out()
        return super().format_help()

    def _lay_out(self) -> None:
        from dsindex.cli.help_text import HelpFormatter  # loads rich, which parsing does not need

        self.formatter_class = HelpFormatter

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, which controls no terminal and shows no secret, and exit."""
        super().error(show_name(without_secrets(message)))

    def _begins_a_flag(self, name: str) -> bool:
        flags = [flag for flag in self._option_string_actions if flag.startswith(name)]
        is_ambiguous = len(flags) > 1 and name not in flags
        return bool(flags) and name not in _FORMER_FLAGS and not (is_ambiguous and name in _SHORTENED)

    def _describe_unknown(self, name: str) -> str:
        shown = [flag for action in self._actions if action.help != argparse.SUPPRESS for flag in action.option_strings]
        now, answer = {**_FORMER_FLAGS, **_SHORTENED}.get(name, ("", ""))
        if now in shown:
            return f"there is no flag {name}; {answer}"
        return f"there is no flag {name}; {_near(name, shown) or f'{self.prog} --help lists all flags'}"


def make_parser(command: str | None) -> Parser:
    """Return the parser of the command line, with the flags of one command only."""
    parser = Parser(
        prog="dsindex",
        description="Training data for language models: from text to a merged, indexed Megatron dataset.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="store_true", help="show the version; with --verbose, what a report needs")
    parser.add_argument("--verbose", action="store_true", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (summary, module_name) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary)
        if name == command:
            module = importlib.import_module(module_name)
            subparser.description = module.DESCRIPTION
            required = dict(getattr(module, "REQUIRED", {}))
            for option, (field, _) in declared_options(*module.OPTIONS).items():
                if field.is_required():
                    required.setdefault(option, "")
            add_options(subparser, *module.OPTIONS, EveryCommand, required=required)
            if hasattr(module, "add_arguments"):
                module.add_arguments(subparser)
            mark_required(subparser, required)
            if subparser.epilog is None and hasattr(module, "EXAMPLES"):
                subparser.epilog = examples_epilog(module.EXAMPLES)
    return parser


def _near(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=2, cutoff=0.7)
    return f"did you mean {' or '.join(found)}?" if found else ""


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {show_value(word)}") from None


class _Value(argparse.Action):
    """Replaces argparse's `store`."""

    _before: tuple[argparse.Namespace, Any] | None = None
    """The namespace that identifies the parser run, and the value of an earlier flag in it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's signature
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if "" in (values if isinstance(values, list) else [values]) and self.dest not in MAY_BE_EMPTY:
            raise argparse.ArgumentError(self, "expected a value, got an empty text")
        if option_string is not None and self._before is not None and self._before[0] is namespace:
            before = self._before[1]
            if not isinstance(values, list) or isinstance(self.nargs, int):
                message = f"expected once, got {str(before)!r} and then {str(values)!r}; leave one out"
                raise argparse.ArgumentError(self, message)
            values = [*before, *values]
        self._before = (namespace, values)
        setattr(namespace, self.dest, values)


class _Switch(argparse.Action):
    """Replaces argparse's `store_true`."""

    _before: argparse.Namespace | None = None

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        default: bool | None = False,
        help: str | None = None,
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, default=default, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's signature
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,  # noqa: ARG002 - argparse's signature
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        if self._before is namespace:
            raise argparse.ArgumentError(self, "expected once, got it twice; leave one out")
        self._before = namespace
        setattr(namespace, self.dest, True)
