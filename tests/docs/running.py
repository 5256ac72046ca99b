"""Runs the examples of a page: commands with bash, Python in one namespace."""

import doctest
import io
import os
import re
import subprocess
import sys
from functools import partial
from unittest.mock import patch

from tests.docs.examples import ROOT, read_commands

_VARIES = re.compile(r"[\d.,]+ (s|ms|[kMG]?B/s|([kMG] )?tokens/s)(?=[\s,:;)]|$)|\d+ workers?")
"""Times, speeds and the number of CPUs: compared as if they were equal."""
_PROGRESS = re.compile(r"^[a-z ]+: \d+%, ")
"""A line that is written every five seconds, so that a slow machine has more of them."""


class PageRunner:
    """Runs the blocks of a page one after the other in a folder."""

    def __init__(self, folder):
        self._folder = folder
        self._namespace = {"__name__": "example"}
        self._printed = ""

    def assert_runs_as_shown(self, example):
        """Do what an example's language and mark say, and compare; an AssertionError names page and line."""
        if example.mark == "file":
            path = self._folder / example.value
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(example.text, encoding="utf-8")
        elif example.mark == "output":
            assert_same_output(example.text.splitlines(), self._printed, place=example.place)
        elif example.is_run and example.language == "pycon":
            _assert_doctest_passes(example, self._namespace)
        elif example.is_run and example.language == "python":
            self._run_python(example)
        elif example.is_run:
            self._assert_commands_print(example)

    def _run_python(self, example):
        printed = io.StringIO()
        # Not by way of sys.stdout, which the test runner and libraries put their own streams into.
        self._namespace["print"] = partial(print, file=printed)
        with patch.dict(os.environ):  # some packages set variables when they are imported
            exec(compile(example.text, example.place, "exec"), self._namespace)
        del self._namespace["print"]
        self._printed = printed.getvalue()

    def _assert_commands_print(self, example):
        commands = read_commands(example)
        for command in commands:
            code, printed = run_command(command)
            expected = int(example.value) if example.mark == "fails" and command is commands[-1] else 0
            assert code == expected, f"{example.place}: {command.line}: exit code {code}\n{printed}"
            if command.output is not None:
                assert_same_output(command.output, printed, place=f"{example.place}: {command.line}")


def run_command(command):
    """Run one command in the current folder; return its exit code and what it prints on both streams."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    program = 'python() { "$PYTHON" "$@"; }\ndsindex() { python -m dsindex "$@"; }\nexec 2>&1\n' + command.line
    words = ["bash", "-euo", "pipefail", "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def assert_same_output(expected, printed, *, place):
    """Compare what a page shows with what was printed.

    Times and speeds may differ. In the page a line of `…` stands for any lines, and `…` in a line for any text.
    """
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += re.escape(_same_figures(line)).replace("…", ".*?") + r"\n"
    lines = [_same_figures(line) for line in printed.splitlines() if not _PROGRESS.match(line)]
    text = "".join(f"{line}\n" for line in lines)
    page_text = "\n".join(expected)
    assert re.fullmatch(pattern, text), f"{place}: the page shows\n{page_text}\nand this was printed:\n{printed}"


def _same_figures(line):
    return _VARIES.sub("#", line.rstrip())


def _assert_doctest_passes(example, namespace):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(example.text, namespace, example.place, str(example.page), example.line)
    test.globs = namespace  # names that an example binds are the following ones' too
    report = io.StringIO()
    failed, _ = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=report.write, clear_globs=False)
    assert failed == 0, f"{example.place}:\n{report.getvalue()}"
