"""Values at paths: both fast parsers give what `json.loads` gives, for any record and any cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.kernels import loader as kernels
from dsindex.text.forms import TextPart
from dsindex.text.records import read_records
from dsindex.text.scanning import scan_texts
from dsindex.text.selection import MAX_PATH_KEYS, open_selection
from tests.dsindex.text.nasty_lines import NASTY, json_values, mutated_lines
from tests.dsindex.text.readings import as_reading, in_memory, parse

pytestmark = pytest.mark.usefixtures("either_way")

PATHS = [("meta", "text"), ("meta", "deep", "title"), ("text",)]
SELECTION = open_selection([".meta.text", ".meta.deep.title", "text"])


def good(text="a"):
    return json.dumps({"meta": {"text": text, "deep": {"title": "t", "x": [1]}}, "text": "top", "n": 5}).encode()


def reference(lines):
    """The slow and obvious way: the records' texts, and the number of lines that are none."""
    found, bad = [], 0
    for line in lines:
        try:
            record = json.loads(line)
            values = [record["meta"]["text"], record["meta"]["deep"]["title"], record["text"]]
            texts = [value if isinstance(value, list) else [value] for value in values]
            for value in texts:
                "".join(value).encode()
        except (ValueError, KeyError, TypeError):
            bad += 1
        else:
            found.append(texts)
    return found, bad


def outcome(reading):
    return [values for _, _, values in reading.records], len(reading.bad)


FAULTY = {
    "missing": b'{"meta": {"deep": {"title": "t"}}, "text": "a"}',
    "no object": b'{"meta": "x", "text": "a"}',
    "null object": b'{"meta": null, "text": "a"}',
    "null inside": b'{"meta": {"text": "a", "deep": null}, "text": "a"}',
    "list of objects": b'{"meta": [{"text": "a", "deep": {"title": "t"}}], "text": "a"}',
    "empty object": b'{"meta": {}, "text": "a"}',
    "number": b'{"meta": {"text": 1, "deep": {"title": "t"}}, "text": "a"}',
    "object for a text": b'{"meta": {"text": {}, "deep": {"title": "t"}}, "text": "a"}',
    "same key above": b'{"text": "a", "deep": {"title": "t"}, "meta": {}}',
    "last object wins": b'{"meta": {"text": "a", "deep": {"title": "t"}}, "text": "a", "meta": {}}',
    "last object wins, whole": b'{"meta": 1, "meta": {"text": "b", "deep": {"title": "t"}}, "text": "a"}',
    "twice, whole": b'{"meta": {"text": "a", "deep": {"title": "t"}}, "meta": {"text": "b", "deep": {"title": "u"}},'
    b' "text": "a"}',
    "last key wins": b'{"meta": {"text": "a", "text": "b", "deep": {"title": "t"}}, "text": "a"}',
    "split object": b'{"meta": {"text": "a"}, "text": "a", "meta": {"deep": {"title": "t"}}}',
    "escaped key": rb'{"m\u0065ta": {"text": "a", "deep": {"title": "t"}}, "text": "a"}',
    "escaped key inside": rb'{"meta": {"te\u0078t": "a", "deep": {"title": "t"}}, "text": "a"}',
    "surrogate": rb'{"meta": {"text": "\ud800", "deep": {"title": "t"}}, "text": "a"}',
    "lists": b'{"meta": {"text": ["a", "b"], "deep": {"title": []}}, "text": "a"}',
    "extra bracket": b'{"meta": {"text": "a", "deep": {"title": "t"}}}, "text": "a"}',
    "missing bracket": b'{"meta": {"text": "a", "deep": {"title": "t"}, "text": "a"}',
    "comma before bracket": b'{"meta": {"text": "a", "deep": {"title": "t",}}, "text": "a"}',
    "comma after": b'{"meta": {"text": "a", "deep": {"title": "t"}}, "text": "a",}',
    "square bracket": b'{"meta": {"text": "a", "deep": {"title": "t"]}, "text": "a"}',
    "spaces": b' { "meta" : { "deep" : { "title" : "t" } , "text" : "a" } , "text" : "b" } ',
    "NaN inside": b'{"meta": {"text": "a", "deep": {"title": "t", "x": NaN}}, "text": "b"}',
    "-NaN inside": b'{"meta": {"text": "a", "deep": {"title": "t", "x": -NaN}}, "text": "b"}',
}


LISTS = b'{"meta": {"text": ["a", "b"], "deep": {"title": "t"}}, "text": ["c"]}'


@pytest.mark.parametrize("line", [*FAULTY.values(), LISTS], ids=[*FAULTY, "lists throughout"])
def test_every_parser_gives_what_json_loads_gives(line):
    for lines in ([line], [good(), line, good("b")], [line, line], [line, good(), good()]):
        assert outcome(as_reading(parse(b"\n".join(lines), SELECTION))) == reference(lines)


def test_one_value_may_become_two_outputs():
    selection = open_selection(["a=.meta.text", "b=.meta.text"])
    read = parse(good("x") + b"\n" + good("y"), selection)
    assert outcome(as_reading(read)) == ([[["x"], ["x"]], [["y"], ["y"]]], 0)


def test_keys_that_lead_through_each_other_make_bad_records(tmp_path):
    selection = open_selection([".meta", ".meta.text"])
    path = tmp_path / "a.jsonl"
    path.write_bytes((good() + b"\n") * 3)
    part = TextPart(path=str(path), begin=0, end=path.stat().st_size)
    blocks = list(read_records(part, keys=selection.outputs, selection=selection))
    assert [len(block.bad) for block in blocks] == [3]


@pytest.mark.parametrize("depth", [MAX_PATH_KEYS, MAX_PATH_KEYS + 1, 899, 5000])
def test_long_paths_are_followed_as_deep_as_records_go(depth):
    selection = open_selection(["x=" + ".a" * depth])
    line = b'{"a":' * depth + b'"deep"' + b"}" * depth
    read = parse(line + b"\n" + line, selection)
    assert outcome(as_reading(read)) == (([], 2) if depth > 900 else ([[["deep"]]] * 2, 0))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"meta": {"x": 1}}', "expected the key 'text' at .meta, got only 'x'"),
        (b'{"meta": {}}', "expected the key 'text' at .meta, got an object without keys"),
        (b'{"x": {}}', "expected the key 'meta', got only 'x'"),
        (b'{"meta": [1]}', "expected an object at .meta, got a list"),
        (b'{"meta": {"text": 5}}', "expected a string or a list of strings at .meta.text, got a number"),
    ],
)
def test_reason_names_the_place(line, reason):
    assert list(open_selection([".meta.text"]).read_lines([line])) == [reason]


def test_a_key_with_a_dot_is_told_the_spelling_of_a_path():
    inside = "expected the key 'meta.text', got only 'meta'; for a key inside 'meta', write .meta.text"
    assert list(open_selection(["meta.text"]).read_lines([b'{"meta": {"text": "a"}}'])) == [inside]
    assert list(open_selection(["meta.text"]).read_lines([b'{"a": 1}'])) == [
        "expected the key 'meta.text', got only 'a'"
    ]


nested_texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
values = nested_texts | st.lists(nested_texts, max_size=2) | json_values


@st.composite
def nested_lines(draw):
    """A record with all paths, in any order of keys, perhaps with other keys and a fault."""
    text = draw(nested_texts) if draw(st.integers(0, 5)) else draw(values)
    deep = draw(st.permutations([("title", draw(nested_texts)), *draw(st.lists(other_pairs, max_size=1))]))
    meta = draw(st.permutations([("text", text), ("deep", dict(deep)), *draw(st.lists(other_pairs, max_size=2))]))
    top = draw(st.permutations([("meta", dict(meta)), ("text", "x"), *draw(st.lists(other_pairs, max_size=2))]))
    return json.dumps(dict(top), ensure_ascii=True).encode()


other_pairs = st.tuples(st.sampled_from(["a", "title", "deep", "n", "text", ""]), json_values)
lines_of_files = st.lists(nested_lines() | st.just(good()), min_size=1, max_size=6)
odd_lines = st.sampled_from([*FAULTY.values(), *NASTY]) | mutated_lines()


@pytest.mark.exhaustive
@given(lines=lines_of_files, odd=st.none() | odd_lines, place=st.integers(0, 6))
@settings(max_examples=300)
def test_any_records_are_read_as_json_loads_reads_them(lines, odd, place):
    if odd is not None:
        lines.insert(place, odd)
    content = b"\n".join(lines)
    found = outcome(as_reading(parse(content, SELECTION)))
    judged = list(SELECTION.read_lines([line for line in content.split(b"\n") if line.strip(b" \t\r")]))
    kept = [values for values in judged if isinstance(values, list)]
    texts = [[value if isinstance(value, list) else [value] for value in values] for values in kept]
    assert found == (texts, len(judged) - len(kept))
    if odd is None:
        assert found == reference(lines)


def scanned(lines):
    block = in_memory(b"\n".join(lines))
    found = scan_texts(block.data, block.starts, block.ends, PATHS)
    return None if found is None else [found[path].to_pylist() for path in PATHS]


def test_the_scanner_reads_plain_lines_and_leaves_what_is_in_doubt(either_way):
    if either_way == "kernels not loaded":
        assert kernels.loaded_kernels() is None
        assert scanned([good()]) is None
        return
    assert scanned([good("x"), good("y")]) == [["x", "y"], ["t", "t"], ["top", "top"]]
    assert scanned([FAULTY["spaces"]]) == [["a"], ["t"], ["b"]]
    expected = {"spaces"}
    assert {name for name, line in FAULTY.items() if scanned([good(), line]) is not None} == expected
