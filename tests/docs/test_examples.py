"""The examples of README.md and docs/ do what the pages say."""

import contextlib
import shlex
import shutil

import pytest

from dsindex.cli.main import COMMANDS, make_parser
from dsindex.errors import UsageError
from tests.docs.examples import PAGES, ROOT, read_commands, read_examples
from tests.docs.running import PageRunner, assert_same_output

EXAMPLES = {page: read_examples(page) for page in PAGES}
PAGES_TO_RUN = [page for page, examples in EXAMPLES.items() if any(example.is_run for example in examples)]
ALL_EXAMPLES = [example for examples in EXAMPLES.values() for example in examples]


@pytest.mark.quick(4)
@pytest.mark.parametrize("page", PAGES_TO_RUN, ids=lambda page: page.stem)
def test_examples_of_a_page_run(page, demo_output, tmp_path, monkeypatch):
    shutil.copytree(demo_output, tmp_path / "demo-output")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    runner = PageRunner(tmp_path)
    for example in EXAMPLES[page]:
        runner.assert_runs_as_shown(example)


def test_every_example_that_is_not_run_says_what_it_needs():
    for example in ALL_EXAMPLES:
        assert example.mark != "not run" or example.value.startswith("needs "), example.place


def test_commands_have_flags_that_exist():
    shells = [example for example in ALL_EXAMPLES if example.language in {"sh", "console"}]
    commands = [(example.place, command.line) for example in shells for command in read_commands(example)]
    for place, line in commands:
        if line.startswith("dsindex ") and "…" not in line and "COMMAND" not in line:
            name, *words = shlex.split(line)[1:]
            assert name in {*COMMANDS, "--version"}, f"{place}: there is no command {name}"
            assert name == "--version" or parses(name, words), f"{place}: dsindex {name} refuses its flags"


def parses(name, words):
    """Whether the words of a command are accepted as far as its flags go."""
    own_words = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    try:
        make_parser(name).parse_args([name, *(word for word in own_words if word != "&")])
    except (UsageError, SystemExit) as stop:
        return isinstance(stop, SystemExit)  # --help and --version
    return True


@pytest.mark.parametrize(("shown", "printed", "is_same"), [
    (["done in 0.7 s: 7.3 MB of input, 10 MB/s"], "done in 12 s: 7.3 MB of input, 3.1 kB/s\n", True),
    (["done in 0.7 s: 7.3 MB of input"], "done in 0.7 s: 7.4 MB of input\n", False),
    (["a", "…", "d"], "a\nb\nc\nd\n", True),
    (["sha256 …: x"], "sha256 00ff: x\n", True),
    (["a"], "tokenize: 7%, 1 of 3 shards, ETA 5 s\na\n", True),
])  # fmt: skip
def test_output_is_compared_except_times_and_omissions(shown, printed, *, is_same):
    with contextlib.nullcontext() if is_same else pytest.raises(AssertionError):
        assert_same_output(shown, printed, place="here")
