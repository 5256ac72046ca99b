import pickle

import pytest

from dsindex.errors import InputError, RecordLimitError
from dsindex.text.forms import TextPart
from dsindex.text.guarded import limits
from dsindex.text.guarded.limits import Limits
from dsindex.text.joining import decode_separator
from dsindex.text.record_blocks import TextColumn
from dsindex.text.records import read_records
from dsindex.text.selection import open_selection

ARRAY = "; if the file is one array, `jq -c '.[]'` writes each of its records on a line"


def judge(selection, *lines):
    return list(selection.read_lines(lines))


def read(path, selection, **options):
    part = TextPart(path=str(path), begin=0, end=path.stat().st_size)
    return list(read_records(part, keys=selection.outputs, selection=selection, **options))


def texts(blocks, name):
    columns = [block.columns[name] for block in blocks]
    return [text for column in columns if isinstance(column, TextColumn) for text in column.texts.to_pylist()]


def test_names_paths_and_programs_are_read_from_one_line():
    selection = open_selection(["text", ".meta.text", "both=.text + .meta.text", "list=. | [.text, .text]"])
    line = b'{"text": "a", "meta": {"text": "b"}}'
    assert judge(selection, line, line) == [["a", "b", "ab", ["a", "a"]]] * 2
    assert selection.outputs == ("text", "meta.text", "both", "list")


@pytest.mark.parametrize(
    ("condition", "record", "holds"),
    [
        (".n > 3", b'{"n": 4}', True),
        (".n > 3", b'{"n": 3}', False),
        (".n", b'{"n": 0}', True),
        (".n", b'{"n": null}', False),
        (".n", b"{}", False),
        ("empty", b"{}", False),
        ("null, false", b"{}", False),
        ("null, 1, false", b"{}", True),
        (".a[] == 2", b'{"a": [1, 2]}', True),
        (".a[] == 2", b'{"a": [1, 3]}', False),
        (".a | length > 1 and . != []", b'{"a": [1, 2]}', True),
        ("def f: .n; f == 1", b'{"n": 1}', True),
        (". as $x | $x.n == 1", b'{"n": 1}', True),
    ],
)
def test_record_is_kept_if_any_result_is_true(condition, record, holds):
    line = record[:-1] + (b"," if len(record) > 2 else b"") + b'"text": "a"}'
    assert judge(open_selection(["text"], where=condition), line) == [["a"] if holds else None]


def test_condition_is_evaluated_before_keys_are_read():
    selection = open_selection(["text", "x=.b + 1 | tostring"], where=".keep")
    found = judge(selection, b'{"keep": false, "b": "no number"}', b"no JSON", b"[1]", b'{"keep": true}', b'{"b": {}}')
    assert found == [
        None,
        "expected JSON, got an error at column 1: Expecting value",
        "expected a JSON object, got a list" + ARRAY,
        "expected the key 'text', got only 'keep'",
        None,
    ]


@pytest.mark.parametrize(
    ("options", "line", "reason"),
    [
        ({"keys": ["text"], "where": ".n + 1"}, b'{"text": "a", "n": "x"}', r"pattern `.n + 1` fails: string"),
        (
            {"keys": ["x=.n | ."]},
            b'{"n": 1}',
            "expected a string or a list of strings from the jq pattern '.n | .', got",
        ),
        (
            {"keys": ["x=.n | ."]},
            b"{}",
            "expected a string or a list of strings from the jq pattern '.n | .', got null",
        ),
        (
            {"keys": ["text"], "where": "error"},
            b'{"text": "a"}',
            'pattern `error` fails: (not a string): {"text": "a"}',
        ),
        ({"keys": ["text"], "where": "error(null)"}, b"{}", "pattern `error(null)` fails: (not a string): null"),
        ({"keys": ["x=. | error(.a)"]}, rb'{"a": "one\ntwo"}', "pattern `. | error(.a)` fails: one"),
        ({"keys": ["x=.a | .", "y=.a | .b"]}, b'{"a": "c"}', "pattern `.a | .b` fails: Cannot index string with"),
        ({"keys": ["x=.a[]"]}, b'{"a": ["b", "c"]}', "pattern `.a[]`: expected one value, got 2"),
        ({"keys": ["x=. | [.a, 1]"]}, b'{"a": "b"}', "got a list with a number as item 2"),
        ({"keys": [".a.b", "x=.a"]}, b'{"a": "b"}', "expected an object at .a, got a string"),
    ],
)
def test_what_fails_on_a_record_makes_it_a_bad_one(options, line, reason):
    [found] = judge(open_selection(**options), line)
    assert reason in found


@pytest.mark.parametrize(
    "where", [".a |", "nosuch", ".a )(", ".a)] | any, [(.b", "$holds", "input", "now", "$ENV.HOME"]
)
def test_condition_that_is_no_jq_is_refused(where):
    with pytest.raises(InputError, match="jq pattern"):
        open_selection(["text"], where=where)


@pytest.mark.parametrize(("keys", "join"), [(["a", ".a"], None), (["a", "a"], None), (["a", "a"], " ")])
def test_keys_of_one_name_are_refused(keys, join):
    with pytest.raises(InputError, match="expected keys of different names, got a"):
        open_selection(keys, join=join)


def test_selection_can_be_sent_to_a_process():
    selection = open_selection(["x=.a + .b"], where=".a", join=",")
    again = pickle.loads(pickle.dumps(selection))  # noqa: S301 - its own bytes
    assert again == selection
    assert judge(again, b'{"a": "1", "b": "2"}') == [["12"]]


JOINED_LINES = [
    b'{"title": "t", "text": "a", "tags": ["x", "y"]}',
    b'{"title": "", "text": "\xc3\xa9", "tags": []}',
    b'{"title": "t", "text": ["s1", "s2"], "tags": ["z"]}',
]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("keys", [["title", "text"], ["tags", ".title"], ["text", "title", "tags"], ["tags"]])
def test_joined_texts_are_those_of_all_keys(tmp_path, keys):
    import json

    path = tmp_path / "a.jsonl"
    for separator in ("\n", "", " – "):
        for lines in (JOINED_LINES[:2] * 3, JOINED_LINES):
            path.write_bytes(b"\n".join(lines))
            expected = []
            for line in lines:
                values = [json.loads(line)[key.lstrip(".")] for key in keys]
                expected.append(separator.join(v if isinstance(v, str) else separator.join(v) for v in values))
            blocks = read(path, open_selection(keys, join=separator))
            assert texts(blocks, "text") == expected
            assert all(list(block.columns) == ["text"] for block in blocks)


def test_join_of_a_name_and_a_path_that_are_called_the_same(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a.b": "name", "a": {"b": "path"}}\n' * 2)
    assert texts(read(path, open_selection(["a.b", ".a.b", ".a | .b"], join="+")), "text") == ["name+path+path"] * 2


def test_missing_field_is_a_bad_record_when_joined(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": "1", "b": "2"}\n{"a": "1"}\n')
    [block] = read(path, open_selection(["a", "b"], join=" "))
    assert texts([block], "text") == ["1 2"]
    assert [bad.reason for bad in block.bad] == ["expected the key 'b', got only 'a'"]


@pytest.mark.parametrize(
    ("written", "separator"),
    [(r"\n", "\n"), (r"\t|\\n", "\t|\\n"), ("", ""), ("\n", "\n"), (r"\\\n", "\\\n"), ("é", "é")],
)
def test_escapes_of_a_separator(written, separator):
    assert decode_separator(written) == separator


@pytest.mark.parametrize(("written", "message"), [("\\x", r"'\\\\x'"), ("a\\", "'\\\\\\\\'"), ("\ud800", "in UTF-8")])
def test_other_escapes_are_refused(written, message):
    with pytest.raises(ValueError, match=message):
        decode_separator(written)


def test_filtered_records_are_counted_for_any_cut(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [b'{"text": "%d", "n": %d}' % (number, number) for number in range(20)]
    path.write_bytes(b"\n".join([*lines, b"", b"bad", b'{"n": 1}', b'{"n": 0}']))
    selection = open_selection(["text"], where=".n % 2 == 1")
    for block_bytes in (1, 50, 1 << 20):
        blocks = read(path, selection, block_bytes=block_bytes)
        assert texts(blocks, "text") == [str(number) for number in range(1, 20, 2)]
        assert sum(block.num_filtered for block in blocks) == 11
        assert [bad.line for block in blocks for bad in block.bad] == [21, 22]
        assert all(
            block.num_lines == block.num_blank + block.num_filtered + len(block.offsets) + len(block.bad)
            for block in blocks
        )


def test_record_that_a_condition_never_finishes_stops_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", Limits(cpu_seconds=0.5, memory_bytes=200 << 20))
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b", "c": ' + b"[" * 400 + b"]" * 400 + b"}\n")
    with pytest.raises(RecordLimitError, match=r"the jq pattern `\[\.\.\|\.\.\|\.\.\] \| true`"):
        read(path, open_selection(["text"], where="[..|..|..] | true"))
