"""jq patterns that name a field of a record, or select messages that are excluded from training.

`.conversations | select(.from == "human")` is read in two parts. The part before the first `|` names the field. The
rest is a jq filter, which is applied to **each element** if the field is a list, otherwise to its value. An element is
selected if the filter returns anything but `null` and `false` for it (`select` returns the element itself or nothing).
Without a filter every element is selected. `.conversations[] | …` means the same.

Functions that reach beyond the record fail when they are called: the environment, the clock, other inputs, files.

jq holds the GIL and cannot be interrupted: `def f: f; f` would hang the whole process, which would not even handle
SIGTERM. So every thread that uses jq has a child process, whose CPU time and memory the kernel limits. The output does
not depend on the limits: a program that exceeds one ends the job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError, RecordProblem
from dsindex.messages import show_value

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORD_SECONDS = 10.0
"""CPU time for one record; jq takes a second for about 20 MB."""
SECONDS_PER_BYTE = 1e-6
MEMORY_BYTES = 4 << 30
"""Address space of a child, plus MEMORY_PER_BYTE for each byte of its records."""
MEMORY_PER_BYTE = 100
TOO_DEEP = {"error": "the record is nested too deep"}

_NOT_ALLOWED = "is not allowed, since output must depend on the record alone"
_REFUSED_NAMES = (
    *("env", "now", "localtime", "strflocaltime(f)", "input", "inputs", "input_filename", "input_line_number"),
    *("modulemeta", "get_search_list", "debug", "debug(f)", "stderr", "halt", "halt_error", "halt_error(f)"),
)
_PRELUDE = " ".join(f"def {name}: error(\"'{name.removesuffix('(f)')}' {_NOT_ALLOWED}\");" for name in _REFUSED_NAMES)
"""Precedes the program and replaces jq's functions of these names; `import` fails, since it must come first."""
_HEAD = re.compile(
    r"""\s*\.(?:(?P<name>[A-Za-z_]\w*)|(?P<quoted>"[^"\\]+")|\[\s*(?P<bracket>"[^"\\]+")\s*\])
        \s*(?:\[\s*\]\s*)?(?:\|(?P<rest>.*))?\s*$""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WHOLE_LIST = re.compile(
    r"""\s*(?: \.\s*\[ [\s\d:-]* \]
      | (?:map|first|last|nth|limit|until|reverse|flatten|indices|sort|sort_by|group_by|unique|unique_by|min_by|max_by)
        (?![\w:]))""",
    re.VERBOSE,
)
"""Matches the start of a filter for whole lists, which would fail on a single message."""
_HINTS = {
    r"&&|\|\|": "jq writes `and` and `or`",
    "'": "a text is in double quotes",
    r"\bin\b|\w +IN\b": 'write `(.lang | IN("en", "de"))` for one of several values',
}
"""Sign of a mistake in a program that does not compile → hint."""
_SHOWN_CHARACTERS = 1000
"""Limit on jq's error messages, which may quote the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPattern:
    """A pattern that excludes a field, or elements of it, from training. Made by `parse_mask_pattern`."""

    pattern: str
    field: str
    selector: str
    """The filter that is applied to each element."""


class Patterns:
    """Patterns that are evaluated on the same records. Picklable and thread-safe.

    They become one jq program, so that a record is parsed once. Fields are read only if the condition holds, and masks
    are applied to the fields. The program for the condition `.a`, the field `.b` and the mask `.b | .c` is:

        (try {value: ([(.a)] | any)} catch {error: .}) as $holds
        | (if $holds.value then [(try {values: [(.b)]} catch {error: .})] else [] end) as $fields
        | {condition: $holds, fields: $fields, masks: [[
            ($fields[0].values[0]? | if type == "array" then .[] else . end | try ([(.c)] | any) catch {error: .})]]}

    Args:
        fields: Name → pattern of each value to read from a record.
        masks: Mask patterns, whose fields must be among `fields`.
        condition: A program that a record must satisfy: at least one of its results must be neither null nor false.

    Raises:
        InputError: If a pattern is not valid jq.
    """

    def __init__(
        self,
        fields: Mapping[str, str] | Sequence[tuple[str, str]],
        masks: Sequence[MaskPattern] = (),
        condition: str | None = None,
    ) -> None:
        self.fields, self.masks, self.condition = dict(fields), tuple(masks), condition
        patterns = [*filter(None, [condition]), *self.fields.values()]
        for pattern in patterns:
            _run(pattern, pattern)  # first alone, since an unbalanced bracket could change the program around it
        for mask in masks:
            _run(mask.selector, mask.pattern)
        names = list(self.fields)
        field_programs = [f"(try {{values: [({pattern}\n)]}} catch {{error: .}})" for pattern in self.fields.values()]
        mask_programs = [
            f'[($fields[{names.index(mask.field)}].values[0]? | if type == "array" then .[] else . end'
            f" | try ([({mask.selector}\n)] | any) catch {{error: .}})]"
            for mask in masks
        ]
        self._program = (
            f"{_PRELUDE} null as $ENV"
            f" | (try {{value: ([({condition or 'true'}\n)] | any)}} catch {{error: .}}) as $holds"
            f" | (if $holds.value then [{', '.join(field_programs)}] else [] end) as $fields"
            f" | {{condition: $holds, fields: $fields, masks: [{', '.join(mask_programs)}]}}"
        )
        self._pattern_text = " or ".join(patterns)
        if patterns:
            _run(self._program, self._pattern_text)

    def read(self, record: Mapping[str, Any] | bytes) -> PatternAnswers:
        """Evaluate the patterns on one record, or its JSON in UTF-8; all patterns fail if jq cannot read the record."""
        try:
            line = record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode()
        except RecursionError:
            return self._make_answers(TOO_DEEP)
        except (ValueError, TypeError) as error:
            return self._make_answers({"error": str(error)})
        return self.read_lines([line])[0]

    def read_lines(self, lines: Sequence[bytes]) -> list[PatternAnswers]:
        """Evaluate the patterns on records, each a line of JSON in UTF-8.

        Raises:
            InputError: If a pattern takes too long or too much memory on a record.
        """
        return list(map(self._make_answers, _run(self._program, self._pattern_text, lines) if lines else ()))

    def _make_answers(self, output: dict[str, Any]) -> PatternAnswers:
        if "error" in output:
            output = {"condition": output, "fields": [output] * len(self.fields)}
        return PatternAnswers(self, output)


class PatternAnswers:
    """The results of patterns for one record."""

    def __init__(self, patterns: Patterns, output: dict[str, Any]) -> None:
        self._patterns, self._output = patterns, output

    def holds(self) -> bool:
        """Return whether the condition holds for the record.

        Raises:
            RecordProblem: If the condition fails on this record.
        """
        condition = self._patterns.condition
        return condition is None or bool(_require_success(condition, self._output["condition"])["value"])

    def value(self, name: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value of a field, or None if it is missing or null.

        Raises:
            RecordProblem: If the pattern fails on this record, or returns several values.
        """
        pattern = self._patterns.fields[name]
        values = _require_success(pattern, self._output["fields"][list(self._patterns.fields).index(name)])["values"]
        if len(values) > 1:
            raise RecordProblem("pattern-error", f"pattern `{pattern}` returns {len(values)} values; leave out `[]`")
        return values[0] if values else None

    def read_mask(self, number: int) -> list[bool]:
        """Return whether a mask selects each element of its field, or the field itself if it is not a list.

        Args:
            number: Number of the mask in the order passed to `Patterns`; its field must have a value.

        Raises:
            RecordProblem: If the filter fails on an element.
        """
        elements: list[Any] = self._output["masks"][number]
        for position, element in enumerate(elements, 1):
            if isinstance(element, dict):
                _require_success(self._patterns.masks[number].pattern, element, f" on element {position}")
        return elements


def _require_success(pattern: str, output: dict[str, Any], place: str = "") -> dict[str, Any]:
    if "error" not in output:
        return output
    error = output["error"]
    message = error if isinstance(error, str) else f"(not a string): {json.dumps(error, ensure_ascii=False)}"
    if message.endswith(_NOT_ALLOWED):
        raise InputError(f"jq pattern {pattern!r}: {message}", hint="if it is a key, write it with a dot or in quotes")
    raise RecordProblem("pattern-error", f"pattern `{pattern}` fails{place}: {_shorten(message)}")


def _shorten(message: str) -> str:
    return message.strip().partition("\n")[0].removeprefix("jq: error: ").removesuffix(":")[:_SHOWN_CHARACTERS]


open_patterns = functools.lru_cache(maxsize=16)(Patterns)
"""Returns cached Patterns: jq takes 20 ms to compile a program."""


def name_patterns(patterns: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return patterns by name; in a list, the last key of each path is its name.

    Raises:
        InputError: If the name of a pattern cannot be determined.

    >>> name_patterns([".conversations", ".meta.role"])
    {'conversations': '.conversations', 'role': '.meta.role'}
    """
    if isinstance(patterns, Mapping):
        return dict(patterns)
    patterns_by_name: dict[str, str] = {}
    for pattern in patterns:
        match = re.search(r"\.([A-Za-z_]\w*)\s*$", pattern)
        if match is None or match[1] in patterns_by_name:
            problem = "not a path that ends in a unique name"
            raise InputError(f"jq pattern {pattern!r}: {problem}", hint="write a mapping of names to patterns")
        patterns_by_name[match[1]] = pattern
    return patterns_by_name


def parse_mask_pattern(pattern: str) -> MaskPattern:
    """Parse `.field` or `.field | filter`.

    Raises:
        InputError: If the pattern does not begin with a single field, or its filter is for a whole list.

    >>> parse_mask_pattern('.conversations | select(.from == "human")').field
    'conversations'
    """
    match = _HEAD.match(pattern)
    if match is None:
        problem = "it does not begin with the name of one field"
        raise InputError(f"jq pattern {pattern!r}: {problem}", hint="write `.role` or `.messages | select(…)`")
    name = match["name"] or (match["quoted"] or match["bracket"]).strip('"')
    if list_match := _WHOLE_LIST.match(match["rest"] or ""):
        problem = f"{list_match[0].strip()!r} is for a whole list, but the filter is applied to each message"
        hint = 'write a condition for one message, as in `.conversations | select(.from == "human")`'
        raise InputError(f"jq pattern {pattern!r}: {problem}", hint=hint)
    return MaskPattern(pattern=pattern, field=name, selector="true" if match["rest"] is None else match["rest"].strip())


# Run programs in a child process.

_thread = threading.local()


class _RunawayError(Exception):
    """A program exceeded the limit that the message names."""


def _run(program: str, pattern: str, lines: Sequence[bytes] = ()) -> list[dict[str, Any]]:
    """Return a jq program's result, one object for each line of JSON; `{"error": …}` for a line on which it fails.

    Raises:
        InputError: If the program does not compile, or takes too long or too much memory; the message shows `pattern`.
    """
    child = getattr(_thread, "child", None)
    if child is None or child.owner != os.getpid():  # a forked process must not use its parent's child
        child = _thread.child = _Child()
    try:
        reply = child.run(program, lines)
    except BaseException as error:
        _thread.child = None  # the child is gone, or may still send the answer to this request
        if not isinstance(error, _RunawayError):
            raise
        if len(lines) > 1:
            return [output for line in lines for output in _run(program, pattern, [line])]
        record = show_value(b"".join(lines).decode(errors="replace"))
        bounds_hint = "look at its recursion, loops and regular expressions: they have to end for every record"
        problem = f"jq pattern {pattern!r}: it needs more than {error} for the record {record}"
        raise InputError(problem, hint=bounds_hint) from error
    if isinstance(reply, str):
        name_match = re.search(r"(\w+)/0 is not defined", reply)
        hint = 'for a key of the record, write .{0}; for a text, "{0}"'.format(name_match[1]) if name_match else None
        hint = next((hint for sign, hint in _HINTS.items() if re.search(sign, pattern)), hint)
        raise InputError(f"jq pattern {pattern!r}: {_shorten(reply)}", hint=hint)
    return list(map(marshal.loads, reply))


class _Child:
    """A child process and the connection to it."""

    def __init__(self) -> None:
        import jq  # noqa: F401 - fails here, not in the child, if jq is not installed

        self.owner = os.getpid()
        self._connection, child_end = multiprocessing.Pipe()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(child_end.fileno()), str(RECORD_SECONDS), str(MEMORY_BYTES)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[child_end.fileno()],
                process_group=0,  # Ctrl-C must not kill it before the driver decides
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        weakref.finalize(self, _stop_child, self._connection, self._process)

    def run(self, program: str, lines: Sequence[bytes]) -> Any:  # noqa: ANN401 - from `_serve`
        try:
            self._connection.send_bytes(program.encode("utf-8", "surrogatepass"))
            self._connection.send_bytes(b"\n".join(lines))
            return marshal.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError) as error:
            is_slow = self._process.wait() == -signal.SIGPROF
            limit = f"{RECORD_SECONDS:g} seconds" if is_slow else f"{MEMORY_BYTES >> 30} GiB of memory"
            raise _RunawayError(limit) from error


def _stop_child(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


def _serve(connection: Connection, seconds: float, memory_bytes: int) -> None:
    """Run programs on lines until the parent ends: send the outputs, or the error if a program does not compile."""
    import jq

    compile_program = functools.lru_cache(maxsize=16)(jq.compile)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]  # after `ulimit -v` in a shell, no process may raise it

    def run(program: Any, line: bytes) -> bytes:  # noqa: ANN401 - jq has no types
        signal.setitimer(signal.ITIMER_PROF, seconds + SECONDS_PER_BYTE * len(line))
        try:
            [output] = program.input_text(line.decode()).all()
            return marshal.dumps(output)
        except RecursionError:  # not str(error): its wording depends on the Python release, and the output must not
            return marshal.dumps(TOO_DEEP)
        except (ValueError, TypeError) as error:
            return marshal.dumps({"error": str(error)})

    while True:
        source, text = connection.recv_bytes().decode("utf-8", "surrogatepass"), connection.recv_bytes()
        soft = memory_bytes + MEMORY_PER_BYTE * len(text)
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply: Any = []
        try:
            program = compile_program(source)
            reply = [run(program, line) for line in text.split(b"\n")] if text else []
        except ValueError as error:
            reply = str(error)
        connection.send_bytes(marshal.dumps(reply))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError), Connection(int(sys.argv[1])) as parent:
        _serve(parent, float(sys.argv[2]), int(sys.argv[3]))
