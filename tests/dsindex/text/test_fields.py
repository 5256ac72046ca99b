import json
import sys

import pytest

from dsindex.text.fields import MAX_NESTING, is_too_deep
from tests.dsindex.text.readings import read_fields

ARRAY = (
    "expected a JSON object, got a list; if the file is one array, `jq -c '.[]'` writes each of its records on a line"
)
EXPECTED = "expected a string or a list of strings under the key 'text', got "


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b'{"text": "a"}', ["a"]),
        (b' \t{"text":\r"a"}\r', ["a"]),
        (b'{"text": ["a", "b"], "x": 1}', [["a", "b"]]),
        (b'{"text": []}', [[]]),
        (b'{"text": ""}', [""]),
        (b'{"text": 1, "text": "last"}', ["last"]),
        (rb'{"te\u0078t": "\ud83d\ude00\u0000\/"}', ["\U0001f600\0/"]),
        (rb'{"text": "a", "x": "\ud800", "\udc00": 1}', ["a"]),
        (b'{"text": "a", "x": [NaN, Infinity, -Infinity, 1e999]}', ["a"]),
        (b'{"text": "a", "x": ' + b"7" * 10_000 + b"}", ["a"]),
        ('{"text": "\u2028\u0085\ufeff"}'.encode(), ["\u2028\u0085\ufeff"]),
    ],
)
def test_read_fields_gives_what_json_loads_gives(line, values):
    assert read_fields(line, ["text"]) == values


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": null}', EXPECTED + "null"),
        (b'{"text": true}', EXPECTED + "a boolean"),
        (b'{"text": 12}', EXPECTED + "a number"),
        (b'{"text": -1.5}', EXPECTED + "a number"),
        (b'{"text": {}}', EXPECTED + "an object"),
        (b'{"text": "a", "text": null}', EXPECTED + "null"),
        (b'{"text": ["a", ["b"]]}', EXPECTED + "a list with a list as item 2"),
        (b'{"text": [null]}', EXPECTED + "a list with null as item 1"),
        (rb'{"text": "ab\udc00"}', EXPECTED + r"a string with the lone surrogate \udc00 at character 3"),
        (
            rb'{"text": ["\ud800"]}',
            EXPECTED + r"a list with a string with the lone surrogate \ud800 at character 1 as item 1",
        ),
        (b"{}", "expected the key 'text', got an object without keys"),
        (b'{"Text": "a", "x": 1}', "expected the key 'text', got only 'Text', 'x'"),
        (rb'{"\ud800": 1}', r"expected the key 'text', got only '\ud800'"),
        (
            b'{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1}',
            "expected the key 'text', got only '1', '2', '3', '4', '5' and 2 more",
        ),
        (b'{"' + b"k" * 50 + b'":1}', f"expected the key 'text', got only '{'k' * 40}…'"),
        (b'["text"]', ARRAY),
        (b'{"a.b": 1}', "expected the key 'text', got only 'a.b'"),
        (b'"text"', "expected a JSON object, got a string"),
        (b"null", "expected a JSON object, got null"),
        (b"17", "expected a JSON object, got a number"),
        ('{"é": "a" "b"}'.encode(), "expected JSON, got an error at column 11: Expecting ',' delimiter"),
        (b'{"text": "a"} {}', "expected JSON, got an error at column 15: Extra data"),
        (b'{"text": "a", "x": Inf}', "expected JSON, got an error at column 20: Expecting value"),
        (b'{"text": "\xff"}', "expected UTF-8, got byte 0xff at byte 11 of the line: invalid start byte"),
        (
            b'{"text": "\xed\xa0\x80"}',
            "expected UTF-8, got byte 0xed at byte 11 of the line: invalid continuation byte",
        ),
        (b'\xef\xbb\xbf{"text": "a"}', "expected JSON, got a byte order mark, which only a file's start may have"),
    ],
)
def test_read_fields_says_what_is_wrong(line, reason):
    assert read_fields(line, ["text"]) == reason


def test_read_fields_reports_the_first_wanted_key_that_is_wrong():
    line = b'{"title": 1, "text": 2}'
    assert read_fields(line, ["text", "title"]) == EXPECTED + "a number"
    assert "'title'" in str(read_fields(line, ["title", "text"]))


def nested(depth):
    """A record that nests `depth` deep in all."""
    half = (depth - 1) // 2
    rest = depth - 1 - 2 * half
    return b'{"text": "a", "x": ' + b"[" * rest + b'{"":[' * half + b"]}" * half + b"]" * rest + b"}"


@pytest.mark.parametrize("stack", [0, 300])
def test_read_fields_limits_nesting_whatever_the_callers_stack(stack):
    if stack and sys.getrecursionlimit() > 500:
        result = call_deeper(stack)
    else:
        result = [read_fields(nested(depth), ["text"]) for depth in (MAX_NESTING, MAX_NESTING + 1)]
    assert result == [["a"], "expected at most 900 objects and lists inside each other, got more"]


def call_deeper(frames):
    if frames:
        return call_deeper(frames - 1)
    return [read_fields(nested(depth), ["text"]) for depth in (MAX_NESTING, MAX_NESTING + 1)]


@pytest.mark.parametrize(
    ("line", "too_deep"),
    [
        (nested(MAX_NESTING), False),
        (nested(MAX_NESTING + 1), True),
        (json.dumps({"text": "[{" * 1000}).encode(), False),
        (json.dumps({"text": '\\"[' * 1000}).encode(), False),
        (b'{"x": [' + b"[]," * 1000 + b"[]]}", False),
        (b'{"text": "open ' + b"[" * 1000, False),
        (b"]" * 2000 + b"[" * 1000, False),
        (b"", False),
    ],
)
def test_is_too_deep_counts_brackets_outside_strings(line, *, too_deep):
    assert is_too_deep(line) is too_deep


def test_read_fields_tells_json_errors_of_deep_lines():
    line = nested(MAX_NESTING)[:-1] + b" x}"
    expected = f"expected JSON, got an error at column {len(line) - 1}"
    assert str(call_deep_error(300, line)).startswith(expected)


def call_deep_error(frames, line):
    return call_deep_error(frames - 1, line) if frames else read_fields(line, ["text"])
