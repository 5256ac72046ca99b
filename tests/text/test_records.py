"""Ranges of files give each line once, as json.loads reads it; what cannot be read is said."""

import json
import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.text.input_format import InputForm
from dsindex.text.reader import TaskReader
from dsindex.text.selection import MAX_PATH_KEYS, open_selection
from tests.support.compressed import COMPRESSORS
from tests.support.datasets import part_of, read_part
from tests.text.nasty_lines import GOOD, GOOD_LIST, NASTY, contents
from tests.text.readings import SELECTION, Reading, parse, read_ranges, reference


@pytest.mark.quick(60)
@pytest.mark.parametrize("good", [GOOD, GOOD_LIST], ids=["string", "list"])
@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_a_nasty_line_is_read_as_json_loads_reads_it(nasty, good):
    for lines in ([good, nasty, good], [nasty, nasty], [good, nasty, b"", nasty, b""]):
        content = b"\n".join(lines)
        assert Reading().add(parse(content)) == reference(content)


@given(content=contents(), data=st.data())
@settings(max_examples=150)
def test_any_ranges_and_blocks_equal_json_loads(tmp_path_factory, content, data):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    block_bytes = data.draw(st.sampled_from([1, 2, 7, 64, 300, 1 << 20]))
    limit = data.draw(st.just(1 << 30) | st.integers(1, 60))
    reading = read_ranges(path, [0, *cuts, len(content)], block_bytes=block_bytes, max_record_bytes=limit)
    assert reading == reference(content, limit=limit)


CHANGES = {
    "shorter": lambda path: os.truncate(path, 1000),
    "longer": lambda path: path.write_bytes(path.read_bytes() + GOOD),
    "touched": lambda path: os.utime(path, ns=(1, 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, change):
    path = tmp_path / "changing.jsonl"
    path.write_bytes((GOOD + b"\n") * 1000)
    blocks = read_part(part_of(path), SELECTION, block_bytes=256)
    next(blocks)
    CHANGES[change](path)
    with pytest.raises(InputError, match=r"changing\.jsonl: changed while the job was running"):
        list(blocks)


@pytest.mark.parametrize(("suffix", "container"), [("", "plain"), ("one.zst", "zstd")])
def test_a_long_line_takes_little_more_memory_than_the_limit(tmp_path, suffix, container):
    """A compressed file is decoded in pieces: a small one can hold all of the line."""
    limit, size_bytes = 16 << 20, 40_000_000
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"x" * size_bytes) if suffix else b"x" * size_bytes)
    part = part_of(path, form=InputForm(container=container))
    tracemalloc.start()
    try:
        [(_, block)] = TaskReader([part]).lines(block_bytes=1 << 16, max_line_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (block.sizes.tolist(), len(block.line(0))) == ([size_bytes], 1 << 20)
    assert peak < 1.4 * limit


PATHS = (".meta.text", ".meta.deep.title", "text")


def nested_line(text="a"):
    return json.dumps({"meta": {"text": text, "deep": {"title": "t", "x": [1]}}, "text": "top", "n": 5}).encode()


FAULTY = {
    "missing": b'{"meta": {"deep": {"title": "t"}}, "text": "a"}',
    "null inside": b'{"meta": {"text": "a", "deep": null}, "text": "a"}',
    "same key above": b'{"text": "a", "deep": {"title": "t"}, "meta": {}}',
    "last object wins": b'{"meta": {"text": "a", "deep": {"title": "t"}}, "text": "a", "meta": {}}',
    "escaped key": rb'{"m\u0065ta": {"text": "a", "deep": {"title": "t"}}, "text": "a"}',
    "surrogate": rb'{"meta": {"text": "\ud800", "deep": {"title": "t"}}, "text": "a"}',
    "lists": b'{"meta": {"text": ["a", "b"], "deep": {"title": []}}, "text": "a"}',
    "extra bracket": b'{"meta": {"text": "a", "deep": {"title": "t"}}}, "text": "a"}',
    "spaces": b' { "meta" : { "deep" : { "title" : "t" } , "text" : "a" } , "text" : "b" } ',
    "NaN inside": b'{"meta": {"text": "a", "deep": {"title": "t", "x": NaN}}, "text": "b"}',
    "lists throughout": b'{"meta": {"text": ["a", "b"], "deep": {"title": "t"}}, "text": ["c"]}',
}


@pytest.mark.parametrize("line", FAULTY.values(), ids=FAULTY)
def test_every_parser_gives_what_json_loads_gives(line):
    for lines in ([line], [nested_line(), line, nested_line("b")], [line, line], [line, nested_line(), nested_line()]):
        content = b"\n".join(lines)
        assert Reading().add(parse(content, open_selection(PATHS))) == reference(content, PATHS)


@given(st.lists(st.dictionaries(
    st.sampled_from(["text", "content", "n"]), st.sampled_from(["", "a", "é", None, 1, ["b", "c"], [], "\ud800"]),
)))  # fmt: skip
def test_other_names_are_read_by_blocks_as_by_lines(records):
    selection = open_selection(["text|content", "content|n"])
    content = "\n".join(map(json.dumps, records)).encode()
    read = Reading().add(parse(content, selection))

    def first(record, *names):
        return next((record[name] for name in names if record.get(name) is not None), None)

    values_by_line = {line: values for _, line, values in read.records}
    for number, record in enumerate(records):
        expected_values = [first(record, "text", "content"), first(record, "content", "n")]
        is_good = all(type(value) in (str, list) and "\ud800" not in value for value in expected_values)
        expected = [[value] if isinstance(value, str) else value for value in expected_values] if is_good else None
        assert values_by_line.get(number) == expected
    assert len(read.bad) == len(records) - len(values_by_line)


@pytest.mark.parametrize("depth", [MAX_PATH_KEYS + 1, 5000])
def test_long_paths_are_followed_as_deep_as_records_go(depth):
    selection = open_selection(["x=" + ".a" * depth])
    line = b'{"a":' * depth + b'"deep"' + b"}" * depth
    read = Reading().add(parse(line + b"\n" + line, selection))
    assert [values for _, _, values in read.records] == ([] if depth > 900 else [[["deep"]]] * 2)
    assert len(read.bad) == 2 - len(read.records)


@pytest.mark.parametrize(("line", "reason"), [
    (b'{"meta": {"x": 1}}', "no key 'text' at .meta; it has 'x'"),
    (b'{"meta": [1]}', ".meta is a list, not an object"),
    (b'{"meta.text": 1}', "no key 'meta'; the record has 'meta.text'"),
    (b'{"meta": {"text": 5}}', "the value at .meta.text is a number, and has to be a string or a list of strings"),
])  # fmt: skip
def test_reason_names_the_place(line, reason):
    assert open_selection([".meta.text"]).read_line(line) == reason


NUM_IDS = 100
ID_SELECTION = open_selection(["ids"], vocabulary_size=NUM_IDS)


NO_IDS = "the value under the key 'ids' is {}, and has to be a list of token ids from 0 to 99"
BAD_IDS = {
    "[1, 100]": "a list with 100 as item 2",
    "[1.0]": "a list with 1.0 as item 1",
    "[true]": "a list with true as item 1",
    "[[1], 2]": "a list of lists with 2 as item 2",
    "[[1], [2, 100]]": "a list with 100 as item 2 of list 2",
    "[[1], [[2]]]": "a list with a list as item 1 of list 2",
    f"[{'9' * 50}]": f"a list with {'9' * 40}… as item 1",
    "null": "null",
}


@pytest.mark.parametrize(("value", "reason"), BAD_IDS.items(), ids=BAD_IDS)
def test_what_is_no_id_is_a_bad_record_with_its_place(value, reason):
    for lines in ([value], ["[1]", value, "[2]"], ["[[1]]", value]):
        read = parse(b"\n".join(b'{"x": 1, "ids": %s}' % line.encode() for line in lines), ID_SELECTION)
        assert [bad.reason for bad in read.bad_records] == [NO_IDS.format(reason)]
        assert len(read.offsets) == len(lines) - 1
