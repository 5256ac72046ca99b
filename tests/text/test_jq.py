import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsindex.errors import InputError, RecordProblem
from dsindex.text.jq import Patterns, name_patterns, parse_mask_pattern

FILTERS = ("map(.from) | .[0]", "first", ".[0]", ".[] | .from", ".[:2] | .from", "sort_by(.from)")
WHOLE_LISTS = [f".conversations | {program}" for program in FILTERS]
TURNS = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]


def read(pattern, record):
    """What one pattern finds in one record."""
    return Patterns({"x": pattern}).read(record).value("x")


def select(pattern, value):
    """What one masking pattern selects of its field."""
    mask = parse_mask_pattern(pattern)
    patterns = Patterns({mask.field: f".{mask.field}"}, [mask])
    return patterns.read({mask.field: value}).read_mask(0)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("pattern", "expected"), [
    pytest.param('.conversations | select(.from == "human")', [True, False, True], id="the-spec"),
    pytest.param('.conversations[] | select(.from == "human")', [True, False, True], id="iterated"),
    pytest.param('.["conversations"] | .from | startswith("g")', [False, True, False], id="second-pipe"),
    pytest.param(".conversations", [True, True, True], id="all"),
    pytest.param(".conversations | .weight", [False, False, False], id="null"),
    pytest.param(".conversations | empty", [False, False, False], id="empty"),
    pytest.param('.conversations | false, (.value == "c")', [False, False, True], id="several-outputs"),
    pytest.param('.conversations | def f: .from == "human"; f and .value != "a"', [False, False, True], id="function"),
])  # fmt: skip
def test_mask_pattern_is_asked_about_each_message(pattern, expected):
    assert parse_mask_pattern(pattern).field == "conversations"
    assert select(pattern, TURNS) == expected


def test_mask_pattern_is_asked_about_a_text_as_a_whole():
    assert [select('.role | select(startswith("V"))', text) for text in ("Vicuna", "Mody")] == [[True], [False]]


def test_mask_pattern_that_fails_names_the_element():
    with pytest.raises(RecordProblem, match="fails on element 4: Cannot index number") as caught:
        select('.conversations | select(.from == "human")', [*TURNS, 5])
    assert caught.value.kind == "pattern-error"
    with pytest.raises(RecordProblem, match=r'fails on element 1: .*"a": 1'):
        select(".conversations | error({a: 1})", TURNS)


@pytest.mark.parametrize("value", ['a"b\\c', "日本\u2028🎉", "\u0000\ufffe\U0010ffff", "x" * 100_000])
def test_field_pattern_gives_texts_unchanged(value):
    assert read(".meta.text", {"meta": {"text": value}}) == value


def test_field_pattern_without_a_value_gives_none_and_several_are_refused():
    assert read("$ENV.PATH", {}) is None, "patterns see no environment"
    assert read(".roles[]", {"roles": []}) is None
    assert read(".roles[]", {"roles": ["a"]}) == "a"
    with pytest.raises(RecordProblem, match="returns 2 values"):
        read(".roles[]", {"roles": ["a", "b"]})


MORE = "'{}' is not allowed, since output must depend on the record alone"


@pytest.mark.parametrize(("pattern", "match"), [
    ("env", MORE.format("env")), (".[now:5]", MORE.format("now")), ("input", MORE.format("input")),
    ('"\\(env)"', MORE.format("env")), ("halt_error(1)", MORE.format("halt_error")), ('# "\n now', MORE.format("now")),
    ("localtime", MORE.format("localtime")), ('"a', "unterminated|syntax error"), ('"\\', "syntax error"),
    ("nosuch", "nosuch/0 is not defined"), ('include "x"; .', "syntax error|module not found"),
    (".a # \\", "syntax error"),
])  # fmt: skip
def test_what_is_no_jq_or_sees_more_than_the_record_is_refused(pattern, match):
    with pytest.raises(InputError, match=f"^jq pattern .*: .*({match})"):
        read(pattern, {})


@pytest.mark.parametrize("pattern", [".a | .b) | (.c", ".a |", ".a | .b) as $x | (.c"])
def test_filter_of_a_mask_has_to_be_jq_by_itself(pattern):
    with pytest.raises(InputError, match="jq pattern"):
        Patterns({"a": ".a"}, [parse_mask_pattern(pattern)])


@pytest.mark.parametrize("pattern", ["select(.x)", ".a.b | .c", ".a[0] | .b", *WHOLE_LISTS])
def test_mask_pattern_has_one_field_and_a_filter_of_each_message(pattern):
    message = "it does not begin with the name of one field"
    if pattern in WHOLE_LISTS:
        message = r"(?s)is for a whole list, .* as in `\.conversations \| select\(\.from"
    with pytest.raises(InputError, match=message):
        parse_mask_pattern(pattern)


def test_field_patterns_in_a_list_need_names_of_their_own():
    with pytest.raises(InputError, match="ends in a unique name"):
        name_patterns([".a.text", ".b.text"])


def test_record_that_nests_too_deep_is_a_problem():
    nested = 0
    for _level in range(100_000):
        nested = [nested]
    with pytest.raises(RecordProblem, match="the record is nested too deep"):
        read(".x", {"x": nested})


@pytest.mark.parametrize("pattern", ["def f: f; f", ".n as $n | [range($n * 1e12)]", "[repeat(.)]"])
def test_pattern_that_runs_away_is_ended_and_names_the_record(pattern, monkeypatch):
    monkeypatch.setattr("dsindex.text.jq.RECORD_SECONDS", 0.3)
    monkeypatch.setattr("dsindex.text.jq.MEMORY_BYTES", 1 << 30)
    patterns = Patterns({"x": f"if .n > 0 then ({pattern}) else .n end"})
    monkeypatch.setattr("dsindex.text.jq._thread.child", None, raising=False)
    limits = r"needs more than (0\.3 seconds|1 GiB of memory) for the record"
    with pytest.raises(InputError, match=limits + " '{\"n\": 7}'"):
        patterns.read_lines([b'{"n": 0}', b'{"n": -1}', b'{"n": 7}', b'{"n": 8}'])
    assert [answers.value("x") for answers in patterns.read_lines([b'{"n": 0}', b'{"n": -1}'])] == [0, -1]


def test_a_limit_of_the_shell_on_memory_is_not_taken_for_a_runaway_program():
    code = "from tests.text.test_jq import read; print(read('.n', {'n': 7}))"
    limited = ["bash", "-c", f'ulimit -v 2000000; exec {sys.executable} -c "$0"', code]
    assert subprocess.run(limited, check=True, capture_output=True).stdout == b"7\n"


def test_threads_and_forks_have_processes_of_their_own():
    patterns = Patterns({"x": ".n"})
    lines = [b'{"n": %d}' % number for number in range(100)]

    def numbers(_):
        return [answers.value("x") for answers in patterns.read_lines(lines)]

    with ThreadPoolExecutor(4) as threads, multiprocessing.get_context("fork").Pool(2) as processes:
        expected = [list(range(100))] * 20
        assert list(threads.map(numbers, range(20))) == expected
        assert processes.map(_read_numbers, [lines] * 20) == expected
    assert numbers(0) == list(range(100))


def _read_numbers(lines):
    return [answers.value("x") for answers in Patterns({"x": ".n"}).read_lines(lines)]
