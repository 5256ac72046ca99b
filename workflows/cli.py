"""The command line: `dsindex COMMAND …`. Parses, runs one job, and turns errors into one sentence and an exit code.

A command's own module is imported when the command is used, so that `dsindex --help` comes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

import dsindex
from dsindex.errors import DsindexError
from workflows.interrupts import EXIT_INTERRUPTED, EXIT_TERMINATED, TerminatedError, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2

COMMANDS = {
    "build": ("tokenize JSONL and merge it into one dataset per key", "workflows.commands.build"),
    "plan": ("say what a build would make, take and cost, from a sample", "workflows.commands.plan"),
    "merge": ("make one dataset of many", "workflows.commands.merge"),
    "index": ("build the document, sample and shuffle indices of a training job", "workflows.commands.index"),
    "verify": ("prove that a dataset is whole", "workflows.commands.verify"),
    "repair": ("make a whole dataset of a damaged one, in new files", "workflows.commands.repair"),
    "raw-index": ("find the lines of a JSONL file, as Modalities does", "workflows.commands.raw_index"),
    "convert": ("turn an MMIDIDX dataset into a .pbin of Modalities, or back", "workflows.commands.convert"),
    "pack": ("tokenize JSONL into a .pbin of Modalities, or join .pbin files", "workflows.commands.pack"),
    "instruct": ("turn conversations into tokens, loss masks and packed blocks", "workflows.commands.instruct"),
    "submit": ("run a command on a cluster, through its job server", "workflows.submit"),
    "status": ("say how a submitted job goes", "workflows.commands.status"),
    "logs": ("show or follow the log of a submitted job", "workflows.commands.logs"),
    "stop": ("stop a submitted job", "workflows.commands.stop"),
    "demo": ("see all of it at work on text that it writes itself", "workflows.commands.demo"),
}
"""Name to summary and module; a module has DESCRIPTION, add_arguments(parser) and run(options) -> exit code."""

EPILOG = """\
start here:
  dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod --output-prefix out/docs
  dsindex COMMAND --help explains a command"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when done; 1 when the job failed, or verify found a difference; 2 for wrong usage; 130 when interrupted and
        143 when terminated.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((name for name in given if name in COMMANDS), None)
    parser = make_parser(command)
    options = parser.parse_args(given)
    if command is None:
        parser.print_help()
        return EXIT_USAGE
    from workflows.commands.options import UsageError

    try:
        with stop_on_signals(f"dsindex {command}"):
            code: int = importlib.import_module(COMMANDS[command][1]).run(options)
    except UsageError as error:
        return _say(options, f"dsindex {command}: {error}", EXIT_USAGE)
    except DsindexError as error:
        if options.debug:
            traceback.print_exc()
        return _say(options, f"dsindex {command}: {error}", EXIT_FAILED)
    except KeyboardInterrupt as stop:
        return _say(options, f"dsindex {command}: interrupted; {_what_is_kept(options, stop)}", EXIT_INTERRUPTED)
    except TerminatedError as stop:
        return _say(options, f"dsindex {command}: terminated; {_what_is_kept(options, stop)}", EXIT_TERMINATED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output went away
        return EXIT_FAILED
    except Exception as error:  # a fault of ours: said in one sentence, with its traceback on request
        if options.debug:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}, line {place.lineno})"
        return _say(
            options, f"dsindex {command}: a fault of dsindex itself: {what}; please report it with --debug", EXIT_FAILED
        )
    return code


def program() -> None:
    """Be the program `dsindex`, and end it at once when the command is done.

    Python would take 0.3 s of a large build to give back memory that the system takes back anyway. A connection to
    Ray that is still open is left to Ray's own ending.
    """
    code = main()
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        sys.exit(code)
    with contextlib.suppress(OSError, ValueError):  # whoever read our output went away
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _say(options: argparse.Namespace, message: str, code: int) -> int:
    if getattr(options, "log_json", False):
        from workflows.displays import write_json_line

        write_json_line("error", {"message": message, "exit_code": code})
    else:
        sys.stderr.write(message + "\n")
    return code


def _what_is_kept(options: argparse.Namespace, stop: BaseException) -> str:
    notes: list[str] = getattr(stop, "__notes__", [])
    if notes:  # the job knows
        return notes[0]
    if hasattr(options, "work_dir"):
        return "finished shards are kept in the work folder; run the same command again to continue"
    return "nothing is half written under its final name"


def make_parser(command: str | None) -> argparse.ArgumentParser:
    """Give the parser, with the flags of one command."""
    from rich_argparse import RawDescriptionRichHelpFormatter

    parser = argparse.ArgumentParser(
        prog="dsindex",
        formatter_class=RawDescriptionRichHelpFormatter,
        description="Training data for language models: from JSONL to a merged, indexed Megatron dataset.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"dsindex {dsindex.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (summary, module_name) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, formatter_class=RawDescriptionRichHelpFormatter)
        if name == command:
            module = importlib.import_module(module_name)
            subparser.description = module.DESCRIPTION
            module.add_arguments(subparser)
            subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
