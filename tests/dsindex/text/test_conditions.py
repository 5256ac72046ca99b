"""Conditions that are read without jq have the results of jq."""

import json
import random

import pytest

from dsindex.text.conditions import UncertainError, parse_condition
from dsindex.text.fields import parse_record_strictly
from dsindex.text.jq import Patterns
from dsindex.text.selection import open_selection

KEYS = ["a", "b", "c"]
SCALARS = [
    *("null", "true", "false", "0", "-0", "1", "-1", "2", "1.0", "0.1", "0.10000000000000000001", "0.3", "1e2", "100"),
    *("9007199254740992", "9007199254740993", "-9007199254740993", "12345678901234567890123", "1e300", "5e-324"),
    *('""', '"a"', '"ab"', '"b"', '"en"', '"en-US"', '"é"', '"\U0001f600"', '"\uffff"', '"1"', '"null"'),
]
ONLY_IN_RECORDS = [
    *("[]", "[1]", "{}", '{"a": 1}', "NaN", "Infinity", "1e999", r'"\ud800"', r'"\u0000a"', r'"\u00e9"', r'"a\nb"'),
    r'"\ud83d\ude00"',
]


def draw_value(rng, depth=0):
    if depth < 3 and rng.random() < 0.25:
        return draw_record(rng, depth + 1)
    return rng.choice(SCALARS + ONLY_IN_RECORDS if rng.random() < 0.3 else SCALARS)


def draw_record(rng, depth=0):
    """A record's text; keys may be there twice."""
    keys = rng.choices(KEYS, k=rng.randrange(5))
    return "{" + ", ".join(f'"{key}": {draw_value(rng, depth)}' for key in keys) + "}"


def draw_path(rng):
    keys = rng.choices(KEYS, k=rng.choice([1, 1, 1, 2, 3]))
    return "".join(rng.choice([f".{key}", f'."{key}"', f'.["{key}"]']) for key in keys)


def draw_filter(rng, depth=0):
    kinds = (
        ["compare"] * 5
        + ["path", "literal", "string", "not"]
        + (["and", "or", "group", "pipe"] * 2 if depth < 3 else [])
    )
    match rng.choice(kinds):
        case "compare":
            terms = [draw_path(rng), rng.choice([draw_path(rng), rng.choice(SCALARS), rng.choice(SCALARS)])]
            if rng.random() < 0.2:
                terms.reverse()
            return rng.choice([" ", ""]).join([terms[0], rng.choice(["==", "!=", "<", "<=", ">", ">="]), terms[1]])
        case "path":
            return draw_path(rng)
        case "literal":
            return rng.choice(SCALARS)
        case "string":
            texts = ["a", "e", "en", "é", "-US", "\U0001f600", "a/b"]
            return f'({draw_path(rng)} | {rng.choice(["startswith", "endswith", "test"])}("{rng.choice(texts)}"))'
        case "not":
            return f"({draw_path(rng)} | not)"
        case "group":
            return f"({draw_filter(rng, depth + 1)})"
        case "pipe":
            return f"{draw_path(rng)} | {draw_filter(rng, depth + 1)}"
        case word:
            return f"{draw_filter(rng, depth + 1)} {word} {draw_filter(rng, depth + 1)}"


@pytest.mark.parametrize("seed", range(4))
def test_drawn_conditions_have_the_results_of_jq(seed):
    rng = random.Random(seed)
    conditions = [draw_filter(rng) for _ in range(60)]
    lines = [draw_record(rng).encode() for _ in range(100)]
    num_decided = num_asked = 0
    for line, answer in zip(lines, Patterns([], conditions=conditions).read_all(lines), strict=True):
        record = parse_record_strictly(line)
        for condition, expected in zip(conditions, answer.conditions, strict=True):
            evaluate = parse_condition(condition)
            assert evaluate is not None, condition
            try:
                found = None if record is None else {"value": evaluate(record)}
            except UncertainError:
                found = None
            assert found in (None, expected), (condition, line)
            num_decided += found is not None
            num_asked += found is None
    assert num_decided > num_asked


@pytest.mark.parametrize("condition", [
    ".a[0] == 1", ".a[] == 1", ".a?", ".a // 1", '["a"] == .a', ".a == {}", ".a == []", ".a + 1 == 2", ".a, .b", "..",
    '.a | test("a.b")', '.a | test("")', '.a | test("a"; "i")', '.a | startswith(.b)', r'.a == "\n"', ".a == -.b",
    '.a | length', "select(.a)", ".a as $x | $x", "def f: 1; f", "if .a then .b else .c end", '.a == "x\\(.b)"',
    ".a .b", ".a == 1 | .b | empty", "(" * 200 + ".a" + ")" * 200,
])  # fmt: skip
def test_other_conditions_are_left_to_jq(condition):
    assert parse_condition(condition) is None


def test_only_uncertain_records_are_read_by_jq(monkeypatch):
    asked = []
    read_all = Patterns.read_all
    monkeypatch.setattr(Patterns, "read_all", lambda self, lines: asked.extend(lines) or read_all(self, lines))
    lines = [b'{"text": "a", "n": %s}' % n for n in (b"1", b'"x"', b"0.5", b"0.50000000000000000001", b"[]", b"{}")]
    lines += [b'{"text": "b", "n": {"m": 1}}', rb'{"text": "c", "x": "\ud800"}', b'{"text": "d", "n": Infinity}', b"no"]
    selection = open_selection(["text"], where=".n > 0.5")
    found = list(selection.read_lines(lines))
    assert asked == lines[2:4] + lines[7:9]
    assert found[:4] == [["a"], ["a"], None, ["a"]]
    of_jq = list(open_selection(["text"], where=".n > 0.5, empty").read_lines(lines))
    assert [str(item).replace(", empty", "") for item in of_jq] == [str(item) for item in found]


def test_condition_that_fails_has_the_message_of_jq():
    lines = [b'{"text": "a", "n": %s}' % value for value in (b"1", b'"s"', b"[1]", b'{"a": 1}', b"null")]
    for simple, by_jq in ((".n.a == 1", ".n.a == 1, empty"), ('.n | startswith("s")', '.n | startswith("s"), empty')):
        found = [list(open_selection(["text"], where=where).read_lines(lines)) for where in (simple, by_jq)]
        assert [str(item).replace(by_jq, simple) for item in found[1]] == [str(item) for item in found[0]]
        assert any("fails: " in str(item) for item in found[0])


def test_deep_records_are_decided_as_by_jq():
    line = json.dumps({"text": "a", "n": 1}).encode()[:-1] + b', "x": ' + b"[" * 890 + b"]" * 890 + b"}"
    for where in (".n == 1", ".n == 1, empty"):
        assert list(open_selection(["text"], where=where).read_lines([line])) == [["a"]]
