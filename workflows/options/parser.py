"""The command-line parser: the list of commands, and how repeated flags are treated.

A command's module is imported only when that command is used, so that `dsindex --help` is fast.
"""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from rich_argparse import RawDescriptionRichHelpFormatter

import dsindex

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "build": ("tokenize JSONL and merge it into one dataset per key", "workflows.commands.build"),
    "plan": ("estimate the size, time and memory of a build from a sample", "workflows.commands.plan"),
    "merge": ("merge datasets into one", "workflows.commands.merge"),
    "index": ("build the document, sample and shuffle indices of a training job", "workflows.commands.index"),
    "verify": ("prove that a dataset is intact", "workflows.commands.verify"),
    "repair": ("restore a damaged dataset, in new files", "workflows.commands.repair"),
    "raw-index": ("write Modalities' index of the lines of a JSONL file", "workflows.commands.raw_index"),
    "convert": ("convert an MMIDIDX dataset to a .pbin of Modalities, or back", "workflows.commands.convert"),
    "pack": ("tokenize JSONL into a .pbin of Modalities, or join .pbin files", "workflows.commands.pack"),
    "instruct": ("turn conversations into tokens, loss masks and packed blocks", "workflows.commands.instruct"),
    "submit": ("run a command on a cluster, through its job server", "workflows.commands.submit"),
    "status": ("show the state of a submitted job", "workflows.commands.status"),
    "logs": ("show or follow the log of a submitted job", "workflows.commands.logs"),
    "stop": ("stop a submitted job", "workflows.commands.stop"),
    "demo": ("run the main job on generated text", "workflows.commands.demo"),
}
"""Name → (summary, module); a module has DESCRIPTION, add_arguments(parser) and run(options) -> exit code."""

EPILOG = """\
start here:
  dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod --output-prefix out/docs
  dsindex COMMAND --help explains a command"""


class Parser(argparse.ArgumentParser):
    """An argument parser in which no flag silently overrides an earlier one.

    A repeated list flag adds to the list: `--input a --input b` is `--input a b`. A repeated flag with one value or
    none is refused. Groups and subparsers inherit this.
    """

    def __init__(self, **named: Any) -> None:  # noqa: ANN401 - as argparse has them
        super().__init__(formatter_class=RawDescriptionRichHelpFormatter, **named)
        self.register("action", None, _Value)
        self.register("action", "store", _Value)
        self.register("action", "store_true", _Switch)


def make_parser(command: str | None) -> Parser:
    """Return the parser of the command line, with the flags of one command only."""
    parser = Parser(
        prog="dsindex",
        description="Training data for language models: from JSONL to a merged, indexed Megatron dataset.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"dsindex {dsindex.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (summary, module_name) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary)
        if name == command:
            module = importlib.import_module(module_name)
            subparser.description = module.DESCRIPTION
            module.add_arguments(subparser)
            subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


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
        if option_string is not None and self._before is not None and self._before[0] is namespace:
            before = self._before[1]
            if not isinstance(values, list):
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
