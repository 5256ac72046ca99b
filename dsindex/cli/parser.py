"""The parser of the command line: the flags of a command are the options of its model.

Only the model of the given command is imported, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, get_args, get_origin

from dsindex.errors import UsageError
from dsindex.options.model import Option, Options, flag_of, option, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "build": "build.BuildFlags",
    "merge": "datasets.MergeConfig",
    "index": "index.IndexFlags",
    "mix": "mix.MixConfig",
    "verify": "datasets.VerifyConfig",
    "inspect": "datasets.InspectConfig",
    "report": "datasets.ReportConfig",
    "trace": "datasets.TraceConfig",
    "raw-index": "datasets.RawIndexConfig",
    "convert": "datasets.ConvertCommand",
    "pack": "pack.PackFlags",
    "instruct": "instruct.InstructFlags",
}
"""Command → the model of its options in `dsindex.options`; the docstring of the model is the help text."""
COMMON_OPTIONS = frozenset({
    *("input", "output_prefix", "output", "tokenizer_model", "json_keys", "where", "append_eod", "on_bad_record"),
    *("config", "jq_pattern", "data_path", "seq_length", "split", "seed", "train_iters", "global_batch_size", "epochs"),
    *("data_cache_path", "megatron_release", "explain", "export", "workers", "address", "dry_run"),
    *("config_file", "show", "prefix", "against_source", "cache", "same_as"),
})  # fmt: skip
"""Options that `-h` lists if a command has more than SCREENFUL; names of fields of any model."""
HINTS = {"--split-sentences": "give a list of sentences as the text of a record, and each becomes a sequence"}
PLAINER_MESSAGES = {
    r"(\S+): ignored explicit argument .*": r"\1 takes no value",
    r"ambiguous option: (\S+) could match (.*)": r"\1 could be \2",
    r"invalid choice: (\S+) \(choose from (.*)\)": r"\1 is not one of \2",
}
"""Messages of argparse → plainer ones, as regular expressions."""
SCREENFUL = 12
"""Number of options above which `-h` lists only the common ones."""
GROUP_DESCRIPTIONS = {
    "samples": "the length of the training job, in one of four ways",
    "over time": "caches that continue another job, and weights that change; the training job must read them with "
    "--dataloader-type single, its default",
    "names": "Megatron finds a cache by a hash of its settings, so spell them exactly as in the job",
    "length of the run": "default: the sum of the amounts in tokens and epochs; with shares only, until the first "
    "dataset has been read once",
}
"""Group of options → its description."""
EPILOG = """\
start here:
  dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod \\
    --output-prefix out/docs
  dsindex COMMAND -h      the most common options of a command
  dsindex COMMAND --help  all options"""


class EveryCommand(Options):
    """Options of every command."""

    group: ClassVar = "every command"
    config_file: str | None = option("FILE.yaml", default=None, flag="--config")
    """Read options from this file; flags override it."""
    as_json: bool = option(default=False, flag="--json")
    """Write the result as one JSON object."""
    debug: bool = option(default=False)
    """Show the traceback of an error."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal and leaves indented lines, which are examples, unchanged."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, 100))

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - argparse's signature
        lines: list[str] = []
        for paragraph in text.split("\n\n"):
            plain, *examples = re.split(r"\n(?=  )", paragraph)
            lines += [*textwrap.wrap(" ".join(plain.split()), width), *examples, ""]
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts underscores for dashes, and suggests the nearest flag for an unknown one."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as argparse has them
        super().__init__(**{"formatter_class": HelpFormatter, **settings})

    def parse_known_args(  # type: ignore[override]  # argparse's has overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse a command line; unknown words are an error."""
        words = [re.sub(r"^--[a-z_-]+", lambda flag: flag[0].replace("_", "-"), word) for word in args or ()]
        options, extra = super().parse_known_args(words, namespace)
        if extra:
            word = extra[0].partition("=")[0]
            if not word.startswith(("-", "–", "—")):  # pasted text may have typographic dashes
                is_input = extra[0] == words[0] and "--input" in self._option_string_actions
                self.error(f"unexpected argument: {extra[0]}", f"did you mean --input {extra[0]}?" if is_input else "")
            suggestions = " or ".join(difflib.get_close_matches(word, self._option_string_actions, n=2, cutoff=0.65))
            self.error(f"there is no option {word}", HINTS.get(word, suggestions and f"did you mean {suggestions}?"))
        return options, extra

    def error(self, message: str, hint: str = "") -> NoReturn:
        """Raise UsageError, in plainer words for the most common messages."""
        message = message.removeprefix("argument ")
        for pattern, words in PLAINER_MESSAGES.items():
            message = re.sub(pattern, words, message)
        raise UsageError(message, hint=hint or f"`{self.prog} -h` lists the common options")


def make_parser(command: str | None, *, is_brief: bool = False) -> Parser:
    """Return the parser, with the flags of this command only; a brief one hides rare options."""
    description = "Training data for language models: from text to a merged, indexed Megatron dataset."
    parser = Parser(prog="dsindex", description=description, epilog=EPILOG)
    parser.add_argument("--version", action="store_true", help="show the version, with --verbose of all dependencies")
    parser.add_argument("--verbose", action="store_true", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        if command not in {None, name}:
            commands.add_parser(name)
            continue
        summary, _, text = (inspect.getdoc(load_model(name)) or "").partition("\n")
        subparser = commands.add_parser(name, help=summary[0].lower() + summary.rstrip(".")[1:])
        if name == command:
            subparser.description, _, examples = text.partition("Examples:\n")
            subparser.epilog = f"examples:\n{textwrap.indent(textwrap.dedent(examples), '  ')}"
            if is_brief := is_brief and len(options_of(load_model(name))) > SCREENFUL:
                subparser.description, subparser.epilog = None, f"`dsindex {name} --help` lists all options."
            add_options(subparser, load_model(name), EveryCommand, is_brief=is_brief)
            for flag, count in getattr(load_model(name), "ignored", {}).items():
                subparser.add_argument(flag, nargs=count, dest="ignored", action=_IgnoredFlag, help=argparse.SUPPRESS)
    return parser


def load_model(command: str) -> type[Options]:
    """Import the model of a command's options."""
    module, name = COMMANDS[command].split(".")
    model: type[Options] = getattr(importlib.import_module(f"dsindex.options.{module}"), name)
    return model


class _IgnoredFlag(argparse.Action):
    """Collects flags that are accepted but have no effect."""

    def __call__(self, _parser: object, namespace: object, _value_words: object, flag: str | None = None) -> None:
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), flag])


def add_options(parser: argparse.ArgumentParser, *models: type[Options], is_brief: bool) -> None:
    """Add the flags of the models' options by groups: required options first, the first model's last group last.

    No flag has a default, so that a flag which is not given does not override the file of `--config`.
    """
    fields = {name: field for model in models for name, field in options_of(model).items() if field.help}
    last_title, last_model = getattr(models[0], "last_group", ("", Options))
    last = options_of(last_model)
    ordered = sorted(fields.items(), key=lambda item: (item[0] in last, not _is_essential(item[1]), item[0] != "input"))
    optional = {name for name, field in ordered if field.positional and field.default is not ...}
    words = {name: flag_of(name, field) + _value_words(field) for name, field in ordered if _is_essential(field)}
    essential = [f"[{word}]" if name in optional else word for name, word in words.items()]
    parser.usage = textwrap.fill(
        " ".join([parser.prog, *essential, "[options]"]), 72, subsequent_indent="    ", break_on_hyphens=False
    )
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for name, field in ordered:
        title = last_title if name in last else field.group or ""
        if title not in groups:
            groups[title] = parser.add_argument_group(title, None if is_brief else GROUP_DESCRIPTIONS.get(title))
        suffix = " (required)" if field.default is ... and not field.positional else ""
        is_hidden = is_brief and (name not in COMMON_OPTIONS or name in last)
        action = groups[title].add_argument(
            *((name,) if field.positional else filter(None, (field.short, flag_of(name, field)))),
            default=None,
            help=argparse.SUPPRESS if is_hidden else (field.help + suffix).replace("%", "%%"),
            **_argument_settings(name, field),
        )
        action.required = False  # the model requires it; --config may have it


def _is_essential(option: Option) -> bool:
    return option.default is ... or option.positional or not option.kw_only


def _value_words(option: Option) -> str:
    name = option.metavar or ""
    repetition = f" [{name} ...]" if _is_list(option) else ""
    return repetition if option.positional else f" {name}{repetition}"


def _is_list(option: Option) -> bool:
    """Tell whether a flag takes several words; the option's own parser may split a word further."""
    kind = option.kind
    return get_origin(kind) is tuple and get_args(kind)[-1] is ... and option.metavar != "N,N"


def _argument_settings(name: str, option: Option) -> dict[str, Any]:
    """Return the arguments of argparse's `add_argument` for an option."""
    kind = option.kind
    if kind is bool:
        return {"dest": name, "action": "store_true"}
    settings: dict[str, Any] = {} if option.positional else {"dest": name}
    if _is_list(option):
        is_optional = option.positional and option.default is not ...
        settings |= {"nargs": "*" if is_optional else "+"} | ({} if option.positional else {"action": "extend"})
        kind = get_args(kind)[0]
    elif option.positional and option.default is not ...:
        settings["nargs"] = "?"
    choices = {"choices": get_args(kind)} if get_origin(kind) is Literal else {}
    return settings | choices | {"metavar": option.metavar}


def read_values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options from --config, overridden by flags.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
    """
    path = getattr(options, "config_file", None)
    values: dict[str, Any] = {}
    if path:
        from dsindex.store.config_files import normalize_option_names, read_yaml  # loads YAML

        values = normalize_option_names(read_yaml(path), source=path)
    excluded_names = ("command", "config_file", "as_json", "debug", "version", "verbose", "ignored")
    flags = {name: value for name, value in vars(options).items() if name not in excluded_names}
    return values | {name: value for name, value in flags.items() if value not in (None, False, [])}
