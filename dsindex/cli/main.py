"""The command line `dsindex COMMAND …`: parse it, run one command, and print errors as `error:` and `hint:`."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import numbers
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsindex._version import __version__
from dsindex.cli.parser import COMMANDS, load_model, make_parser, read_values
from dsindex.cli.standard_streams import StandardOutputError, flush_output, prepare_standard_streams
from dsindex.errors import DsindexError, UsageError, missing_package
from dsindex.messages import remove_secrets, show_name
from dsindex.options.model import options_of
from dsindex.runtime.interrupts import raise_missed_stop, stop_on_signals
from dsindex.store.json_text import encode_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

COLOURS = {"error": 31, "warning": 33, "interrupted": 33, "terminated": 33, "hint": 36}
"""First word of a line → its colour on a terminal."""
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
FILE_COMMANDS = frozenset({"build", "merge", "index", "raw-index", "convert", "pack", "instruct", "report"})
"""Commands that succeed once their files are complete, even if the summary cannot be printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 on success; 1 if the command failed or found damage; 2 for wrong usage; 130 if interrupted, 143 if
        terminated, 129 if the terminal was closed.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    leading = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    words = [*words[len(leading) :][:1], *leading, *words[len(leading) + 1 :]]  # flags may precede the command
    command = words[0] if words[:1] and words[0] in COMMANDS else None
    options: argparse.Namespace | None = None
    try:
        with stop_on_signals():
            if command is None and words and not words[0].startswith("-"):
                suggestions = difflib.get_close_matches(words[0], COMMANDS, n=1)
                hint = f"did you mean `{suggestions[0]}`?" if suggestions else "`dsindex --help` lists the commands"
                raise UsageError(f"there is no command {words[0]!r}", hint=hint)
            parser = make_parser(command, is_brief="-h" in words)
            end = words.index("--") if command == "index" and "--" in words else len(words)
            options = parser.parse_args(words[:end])
            if command is None:
                return _answer_without_command(options, parser)
            raise_missed_stop()
            if ignored := getattr(options, "ignored", None):
                _say("note", f"these flags have no effect here: {', '.join(ignored)}")
            job = {"command": words[end + 1 :]} if end < len(words) else {}  # the words after --
            result = run(command, read_values(options) | job)
            if options.as_json:
                sys.stdout.write(encode_json(as_plain(result), newline=True, ascii_only=True).decode())
            else:
                from dsindex.cli.render import show  # loads rich

                show(result)
            code = 0 if getattr(result, "ok", True) else EXIT_FAILED
    except KeyboardInterrupt as stop:
        _say(str(stop) or "interrupted", _describe_kept_work(options, stop))
        return getattr(stop, "exit_code", EXIT_INTERRUPTED)
    except StandardOutputError:
        code = EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - every exception becomes a message
        return _fail(options, error)
    return _finish_output(command, code)


def run(command: str, values: dict[str, Any]) -> object:
    """Run a command and return its result."""
    from dsindex.commands import api as functions  # slow to import

    name = "build_index" if command == "index" else command.replace("-", "_")
    values = {option: value for option, value in values.items() if value or option not in {"dry_run", "show", "merge"}}
    if command == "build" and values.pop("dry_run", False):
        name = "estimate"
    elif command == "instruct" and ("show" in values or "dry_run" in values):
        name = "show_conversations"
    elif command == "pack" and "merge" in values:
        name = "join_packed"
    elif "progress" in options_of(load_model(command)):
        values["progress"] = True
    return getattr(functions, name).command(**values)


def as_plain(value: object) -> object:
    """Return a result as JSON-compatible values; a dataclass becomes a dict of its fields and public properties."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        names += [name for name in dir(type(value)) if isinstance(getattr(type(value), name), property)]
        return {name: as_plain(getattr(value, name)) for name in names if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(name): as_plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return list(map(as_plain, value))
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return value if value is None or isinstance(value, str | float | bool) else str(value)


def _answer_without_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if not options.version:
        parser.print_help()
        return _finish_output(None, EXIT_USAGE)
    from dsindex.cli.version import describe_installation

    lines = describe_installation() if options.verbose else [f"dsindex {__version__}"]
    sys.stdout.write("".join(f"{show_name(line)}\n" for line in lines))
    return _finish_output(None, 0)


def _fail(options: argparse.Namespace | None, error: Exception) -> int:
    """Print an error, with its traceback on request; return the exit code."""
    if isinstance(error, ImportError):
        error = missing_package(error) or error
    is_debug = getattr(options, "debug", False) and not isinstance(error, UsageError)
    if is_debug:
        sys.stderr.write(remove_secrets("".join(traceback.format_exception(error))))
    if isinstance(error, DsindexError):
        _say("error", *map(str, error.args))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    if not is_debug:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}, line {frame.lineno})"
        _say("error", f"internal error: {problem}", "hint: rerun with --debug and report the traceback")
    return EXIT_FAILED


def program() -> None:
    """Console entry point, which exits the process as soon as the command is done.

    `os._exit` saves the 0.3 s that Python needs to free the memory of a large build, and does not wait for Ray if it
    hangs; a cluster ends the tasks of a driver that has exited.
    """
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        line_words = os.environ.get("COMP_LINE", "").split()[1:]
        argcomplete.autocomplete(make_parser(next((word for word in line_words if word in COMMANDS), None)))
    prepare_standard_streams()
    try:
        code = main()
    except SystemExit as end:  # argparse printed a help text, a version or wrong usage
        code = _finish_output(None, end.code if isinstance(end.code, int) else EXIT_FAILED)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _finish_output(command: str | None, code: int) -> int:
    """Flush standard output, and return the resulting exit code."""
    try:
        flush_output()
    except StandardOutputError as error:
        label, subject = ("error", "the output") if code or command not in FILE_COMMANDS else ("warning", "the summary")
        code = code or (EXIT_FAILED if label == "error" else 0)
        if not error.nobody_reads:
            _say(label, f"{subject} could not be written to standard output ({error})")
    return code


def _say(label: str, message: str, *details: str) -> None:
    """Write a message to standard error; on a terminal, colour its label and wrap it between words."""
    is_terminal = sys.stderr.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 0
    for text in (f"{label}: {message}", *details):
        lines = [show_name(remove_secrets(text))]
        if 0 < width < len(lines[0]):
            lines = textwrap.wrap(lines[0], width, break_long_words=False, break_on_hyphens=False)
        word, colon, rest = lines[0].partition(":")
        if is_terminal and word in COLOURS and not os.environ.get("NO_COLOR"):
            lines[0] = f"\x1b[1;{COLOURS[word]}m{word}{colon}\x1b[0m{rest}"
        sys.stderr.write("".join(f"{line}\n" for line in lines))


def _describe_kept_work(options: argparse.Namespace | None, stop: BaseException) -> str:
    notes: list[str] = getattr(stop, "__notes__", [])
    if notes:  # the command noted what it keeps
        return notes[0]
    if hasattr(options, "work_dir"):
        return "finished shards are kept; rerun the command to continue"
    return "nothing had begun" if options is None else "no incomplete file was left under a final name"
