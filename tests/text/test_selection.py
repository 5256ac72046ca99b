"""Keys, paths, programs and conditions: what is read from a record, and what is said of a bad one."""

import pytest

from dsindex.errors import InputError
from dsindex.text.fields import decode_separator, show_path
from dsindex.text.selection import open_selection, parse_key

ARRAY = "; if the file is one array, `jq -c '.[]'` writes each of its records on a line"
ENCODING = "; `iconv -f WINDOWS-1252 -t UTF-8` converts a file, if that is its encoding"


def judge(selection, *lines):
    return list(map(selection.read_line, lines))


def test_names_paths_and_programs_are_read_from_one_line():
    selection = open_selection(["text", ".meta.text", "both=.text + .meta.text", "list=. | [.text, .text]"])
    line = b'{"text": "a", "meta": {"text": "b"}}'
    assert judge(selection, line, line) == [["a", "b", "ab", ["a", "a"]]] * 2
    assert selection.outputs == ("text", "meta.text", "both", "list")


def test_condition_is_evaluated_before_keys_are_read():
    selection = open_selection(["text", "x=.b + 1 | tostring"], where=".keep")
    values = judge(selection, b'{"keep": false, "b": "no number"}', b"no JSON", b"[1]", b'{"keep": true}', b'{"b": {}}')
    assert values == [
        None,
        "not valid JSON: Expecting value at column 1; --input-format lines reads plain text",
        "not a JSON object but a list" + ARRAY,
        "no key 'text'; the record has 'keep'",
        None,
    ]


@pytest.mark.parametrize("where", [".a |", ".a)] | any, [(.b", "$holds"])
def test_condition_that_is_no_jq_is_refused(where):
    with pytest.raises(InputError, match="jq pattern"):
        open_selection(["text"], where=where)


@pytest.mark.parametrize(("keys", "join"), [(["a", ".a"], None), (["a", "a"], " ")])
def test_keys_of_one_name_are_refused(keys, join):
    with pytest.raises(InputError, match=r"two of the keys a .* have the same name"):
        open_selection(keys, join=join)


def test_escapes_of_a_separator():
    assert decode_separator("\\t|\\\\n\né") == "\t|\\n\né"
    for written in ("\\x", "a\\", "\ud800"):
        with pytest.raises(ValueError, match=r"is not an escape|cannot be encoded"):
            decode_separator(written)


@pytest.mark.parametrize(("text", "name", "path"), [
    ("text", "text", ("text",)),
    ("a=b=.c", "a=b=.c", ("a=b=.c",)),
    (".meta.text", "meta.text", ("meta", "text")),
    ('."my key".x', "my key.x", ("my key", "x")),
    ('.["a b"]', "a b", ("a b",)),
    ('.a.["b.c"]', "a.b.c", ("a", "b.c")),
    (r'."\u0041\"".b', 'A".b', ('A"', "b")),
    ('body=."a=.b"', "body", ("a=.b",)),
])  # fmt: skip
def test_names_and_paths(text, name, path):
    key = parse_key(text)
    assert (key.name, key.path, key.program) == (name, path, None)


@pytest.mark.parametrize(
    "program", [".", ".a[0]", ".a[]", ".a?", ".a | .b", ".a.b // .c", r'."\(.a)"', ".a .b | .", ".größe?", ". as $x|$x"]
)
def test_anything_else_that_begins_with_a_dot_is_a_program(program):
    assert (parse_key(program).name, parse_key(program).program) == (program, program)
    assert (parse_key(f"x={program}").name, parse_key(f"x={program}").program) == ("x", program)


@pytest.mark.parametrize("path", [("a",), ("a", "b c"), ("", "\n"), ('"', "é"), ("1a", "_b1")])
def test_shown_path_is_the_path(path):
    assert parse_key(show_path(path)).path == path


NO_KEY = "no key 'text'; the record has"
LONE = r"the lone surrogate \ud800"
IS, TEXTS = "the value under the key 'text' is ", ", and has to be a string or a list of strings"


@pytest.mark.parametrize(("line", "reason"), [
    (b'{"text": null}', IS + "null" + TEXTS),
    (b'{"text": true}', IS + "a boolean" + TEXTS),
    (b'{"text": -1.5}', IS + "a number" + TEXTS),
    (b'{"text": {}}', IS + "an object" + TEXTS),
    (b'{"text": ["a", ["b"]]}', IS + "a list with a list as item 2" + TEXTS),
    (rb'{"text": "ab\udc00"}', IS + r"a string with the lone surrogate \udc00 at character 3" + TEXTS),
    (rb'{"text": ["\ud800"]}', IS + rf"a list with a string with {LONE} at character 1 as item 1" + TEXTS),
    (b"{}", "no key 'text'; the record has no keys"),
    (b'{"Text": "a", "x": 1}', "no key 'text'; the record has 'Text', 'x'"),
    (rb'{"\ud800": 1}', r"no key 'text'; the record has '\ud800'"),
    (b'{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1}', f"{NO_KEY} '1', '2', '3', '4', '5' and 2 more"),
    (b'{"' + b"k" * 50 + b'":1}', f"no key 'text'; the record has '{'k' * 40}…'"),
    (b'["text"]', "not a JSON object but a list" + ARRAY),
    (b"[", "not valid JSON: Expecting value at column 2" + ARRAY),
    (b"17", "not a JSON object but a number"),
    ('{"é": "a" "b"}'.encode(), "not valid JSON: Expecting ',' delimiter at column 11"),
    (b'{"text": "a", "x": Inf}', "not valid JSON: Expecting value at column 20"),
    (b'{"text": "\xff"}', "not UTF-8: byte 0xff at byte 11 of the line (invalid start byte)" + ENCODING),
    (b'{"text": "a", "x": ' + b"[" * 899 + b"]" * 899 + b"}", ["a"]),
    (b'{"text": "a", "x": ' + b'{"":[' * 450 + b"]}" * 450 + b"}", "more than 900 objects and lists inside each other"),
    (b"\0\0", "NUL bytes, as an interrupted write leaves them"),
    (b'\xef\xbb\xbf{"text": "a"}', "a byte order mark, which only the start of a file may have"),
])  # fmt: skip
def test_read_fields_says_what_is_wrong(line, reason):
    assert open_selection(["text"]).read_line(line) == reason
