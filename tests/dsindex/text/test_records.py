"""Ranges of files give each line once, as json.loads reads it; what cannot be read is said."""

import json
import os
import random
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.text import records
from dsindex.text.forms import InputForm, TextPart
from dsindex.text.parts import read_part
from dsindex.text.selection import MAX_PATH_KEYS, open_selection, select_keys
from dsindex.text.streams import LineBlock, read_lines, read_text_file
from tests.dsindex.text.nasty_lines import GOOD, GOOD_LIST, NASTY, around, contents
from tests.dsindex.text.readings import BOM, SELECTION, Reading, as_reading, parse, read_ranges, reference
from tests.support.compressed import COMPRESSORS


@pytest.mark.quick(60)
@pytest.mark.parametrize("good", [GOOD, GOOD_LIST], ids=["string", "list"])
@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_a_nasty_line_is_read_as_json_loads_reads_it(nasty, good):
    for lines in ([good, nasty, good], [nasty, nasty], [good, nasty, b"", nasty, b""]):
        content = b"\n".join(lines)
        assert as_reading(parse(content)) == reference(content)


@pytest.mark.quick(3)
@pytest.mark.parametrize("content", [
    GOOD + b"\n" + GOOD,
    GOOD + b"\n\n\n" + GOOD + b"\n\n",
    BOM + GOOD + b"\r\n" + GOOD + b"\r\n",
    b"\n".join(around(value) for value in [b"1", b"[{}]", b"null", b"1e300"]),
    b'{"text":"Inf} -NaN Information","title":"' + b"{" * 5000 + b'"}\n' + GOOD,
    '{"text":"Größe 😀","title":"\\u00e9\\ud83d\\ude00"}\n'.encode() * 1000,
    *([(GOOD + b"\n") * count for count in (2, 5_000, 30_000)]),
], ids=["plain", "blank", "bom", "others", "strings", "unicode", "2", "5000", "30000"])  # fmt: skip
def test_plain_lines_are_read_as_a_block(content, monkeypatch):
    monkeypatch.setattr(records, "_parse_lines", lambda *_: pytest.fail("the slow path was taken"))
    assert as_reading(parse(content)) == reference(content)


@pytest.mark.exhaustive
@given(content=contents(), data=st.data())
@settings(max_examples=150)
def test_any_ranges_and_blocks_equal_json_loads(tmp_path_factory, content, data):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    block_bytes = data.draw(st.sampled_from([1, 2, 7, 64, 300, 1 << 20]))
    limit = data.draw(st.none() | st.integers(1, 60))
    found = read_ranges(path, [0, *cuts, len(content)], block_bytes=block_bytes, max_record_bytes=limit)
    assert found == reference(content, limit=limit)


@pytest.mark.quick(1)
@pytest.mark.parametrize("block_bytes", [40, 300, 1 << 20])
def test_lines_that_follow_a_long_line_belong_to_the_range_they_begin_in(tmp_path, block_bytes):
    path = tmp_path / "long.jsonl"
    content = b"\n".join([GOOD, b"x" * 300, GOOD, GOOD, GOOD, GOOD])
    path.write_bytes(content)
    expected = reference(content, limit=len(GOOD))
    for cut in range(len(content) + 1):
        found = read_ranges(path, [0, cut, len(content)], block_bytes=block_bytes, max_record_bytes=len(GOOD))
        assert found == expected, cut


@pytest.mark.quick(4)
@pytest.mark.parametrize("block_bytes", [5, 64])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_every_cut_of_a_file_gives_each_line_once(tmp_path, block_bytes, newline, last):
    path = tmp_path / "cut.jsonl"
    content = BOM + newline.join([b'{"text":"%d"}' % number for number in range(5)] + [b"", b"bad"]) + last
    path.write_bytes(content)
    expected = reference(content, ("text",))
    assert len(expected.records) == 5
    for cut in range(len(content) + 1):
        assert read_ranges(path, [0, cut, len(content)], ("text",), block_bytes=block_bytes) == expected


def test_a_line_over_the_limit_is_bad_and_not_held(tmp_path):
    path = tmp_path / "long.jsonl"
    content = GOOD + b'\n{"title":"t","text":"' + b"x" * 300_000 + b'"}\n' + GOOD + b"\n" + GOOD + b"x" * 1000
    path.write_bytes(content)
    blocks = list(
        read_part(TextPart(path=str(path), begin=0, end=len(content)), SELECTION, block_bytes=64, max_record_bytes=100)
    )
    reading = Reading()
    for block in blocks:
        reading.add(block)
    assert reading == reference(content, limit=100)
    reasons = [bad.reason for block in blocks for bad in block.bad]
    assert reasons == [f"record of {size} bytes is larger than the limit of 100 bytes" for size in (300_023, 1_034)]
    sizes = {
        len(block.data)
        for block in read_lines(TextPart(path=str(path), begin=0, end=len(content)), block_bytes=64, max_line_bytes=100)
        if isinstance(block, LineBlock)
    }
    assert max(sizes) <= 164


@pytest.mark.parametrize("change", ["shorter", "longer", "touched"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, change):
    path = tmp_path / "changing.jsonl"
    content = (GOOD + b"\n") * 1000
    path.write_bytes(content)
    blocks = read_part(TextPart(path=str(path), begin=0, end=len(content)), SELECTION, block_bytes=256)
    next(blocks)
    if change == "shorter":
        os.truncate(path, 1000)
    elif change == "longer":
        with path.open("ab") as file:
            file.write(GOOD)
    else:
        os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match=r"changing\.jsonl: expected \d+ bytes, got .* or other content"):
        list(blocks)


def test_unsuitable_files_are_named(tmp_path):
    path = tmp_path / "small.jsonl"
    path.write_bytes(GOOD)
    with pytest.raises(InputError, match=r"small\.jsonl: expected at least 99 bytes, got 34; the file became shorter"):
        list(read_part(TextPart(path=str(path), begin=0, end=99), SELECTION))
    with pytest.raises(
        InputError, match=r"small\.jsonl: expected 35 bytes, got 34; the file changed since the job was planned"
    ):
        list(read_part(TextPart(path=str(path), begin=0, end=34, expected_size=35), SELECTION))
    with pytest.raises(InputError, match=r"none\.jsonl: cannot be read \(No such file or directory\)"):
        list(read_part(TextPart(path=str(tmp_path / "none.jsonl"), begin=0, end=1), SELECTION))
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        list(read_part(TextPart(path=str(tmp_path), begin=0, end=1), SELECTION))


@pytest.mark.parametrize(("suffix", "container"), [("", "plain"), ("one.zst", "zstd")])
def test_a_long_line_takes_little_more_memory_than_the_limit(tmp_path, suffix, container):
    """A compressed file is decoded in pieces: a small one can hold all of the line."""
    limit, size_bytes = 16 << 20, 40_000_000
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"x" * size_bytes) if suffix else b"x" * size_bytes)
    part = TextPart(path=str(path), begin=0, end=path.stat().st_size, form=InputForm(container=container))
    tracemalloc.start()
    try:
        [line] = read_lines(part, block_bytes=1 << 16, max_line_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (line.num_bytes, len(line.head)) == (size_bytes, 1 << 20)
    assert peak < 1.4 * limit


def test_a_file_beyond_the_limit_keeps_its_first_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abcdefgh")
    part = TextPart(path=str(tmp_path / "a"), begin=0, end=8, form=InputForm(format="document"))
    [line] = read_text_file(part, block_bytes=5, max_line_bytes=4)
    assert (line.head, line.num_bytes) == (b"abcd", 8)


PATH_SELECTION = open_selection([".meta.text", ".meta.deep.title", "text"])


def nested_line(text="a"):
    return json.dumps({"meta": {"text": text, "deep": {"title": "t", "x": [1]}}, "text": "top", "n": 5}).encode()


def nested_reference(lines):
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
    "null inside": b'{"meta": {"text": "a", "deep": null}, "text": "a"}',
    "same key above": b'{"text": "a", "deep": {"title": "t"}, "meta": {}}',
    "last object wins": b'{"meta": {"text": "a", "deep": {"title": "t"}}, "text": "a", "meta": {}}',
    "last key wins": b'{"meta": {"text": "a", "text": "b", "deep": {"title": "t"}}, "text": "a"}',
    "escaped key": rb'{"m\u0065ta": {"text": "a", "deep": {"title": "t"}}, "text": "a"}',
    "surrogate": rb'{"meta": {"text": "\ud800", "deep": {"title": "t"}}, "text": "a"}',
    "lists": b'{"meta": {"text": ["a", "b"], "deep": {"title": []}}, "text": "a"}',
    "extra bracket": b'{"meta": {"text": "a", "deep": {"title": "t"}}}, "text": "a"}',
    "comma before bracket": b'{"meta": {"text": "a", "deep": {"title": "t",}}, "text": "a"}',
    "spaces": b' { "meta" : { "deep" : { "title" : "t" } , "text" : "a" } , "text" : "b" } ',
    "NaN inside": b'{"meta": {"text": "a", "deep": {"title": "t", "x": NaN}}, "text": "b"}',
}


LISTS = b'{"meta": {"text": ["a", "b"], "deep": {"title": "t"}}, "text": ["c"]}'


@pytest.mark.parametrize("line", [*FAULTY.values(), LISTS], ids=[*FAULTY, "lists throughout"])
def test_every_parser_gives_what_json_loads_gives(line):
    for lines in ([line], [nested_line(), line, nested_line("b")], [line, line], [line, nested_line(), nested_line()]):
        assert outcome(as_reading(parse(b"\n".join(lines), PATH_SELECTION))) == nested_reference(lines)


def test_keys_that_lead_through_each_other_make_bad_records(tmp_path):
    selection = open_selection([".meta", ".meta.text"])
    path = tmp_path / "a.jsonl"
    path.write_bytes((nested_line() + b"\n") * 3)
    part = TextPart(path=str(path), begin=0, end=path.stat().st_size)
    blocks = list(read_part(part, selection))
    assert [len(block.bad) for block in blocks] == [3]


@pytest.mark.parametrize("depth", [MAX_PATH_KEYS, MAX_PATH_KEYS + 1, 899, 5000])
def test_long_paths_are_followed_as_deep_as_records_go(depth):
    selection = open_selection(["x=" + ".a" * depth])
    line = b'{"a":' * depth + b'"deep"' + b"}" * depth
    read = parse(line + b"\n" + line, selection)
    assert outcome(as_reading(read)) == (([], 2) if depth > 900 else ([[["deep"]]] * 2, 0))


@pytest.mark.parametrize(("line", "reason"), [
    (b'{"meta": {"x": 1}}', "expected the key 'text' at .meta, got only 'x'"),
    (b'{"meta": {}}', "expected the key 'text' at .meta, got an object without keys"),
    (b'{"x": {}}', "expected the key 'meta', got only 'x'"),
    (b'{"meta": [1]}', "expected an object at .meta, got a list"),
    (b'{"meta.text": 1}', "expected the key 'meta', got only 'meta.text'"),
    (b'{"meta": {"text": 5}}', "expected a string or a list of strings at .meta.text, got a number"),
])  # fmt: skip
def test_reason_names_the_place(line, reason):
    assert open_selection([".meta.text"]).read_line(line) == reason


LINES_OF_TWO = [
    [GOOD + b" " + GOOD, b'{"text":', b'"a","title":"t"}'],
    [b'{"text":"a","title":"t"} {"text":"b","title":"t"}', b'{"text":"a",', b'"title":"t"}'],
    [b'{"text":"a","title":"t"}{"text":"b","title":"t"}', b'{"text":"a","x":[{}', b',{}],"title":"t"}'],
    [b'{"text":"a","title":"t","x":[{}', b'{"text":"a","title":"t"}'],
    [GOOD + b"\r", GOOD + b" ", b" " + GOOD, b"\r", b"[]", b"{}"],
]


@pytest.mark.parametrize("lines", LINES_OF_TWO, ids=range(len(LINES_OF_TWO)))
def test_a_newline_ends_a_record_and_nothing_else_does(lines):
    content = b"\n".join(lines)
    assert as_reading(parse(content)) == reference(content)


ATOMS = [
    *(b'"', b"\\", b"\\u", b"d800", b"dc00", b"00e9", b"{", b"}", b"[", b"]", b":", b",", b" ", b"\t", b"\r", b"0"),
    *(b"-", b".", b"e", b"E", b"+", b"9" * 30, b"1e999", b"NaN", b"-Infinity", b"null", b"true", b"nul", b"\x00"),
    *(b"\x1f", b"\x7f", b"\xff", b"\xc3\xa9", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", BOM),
    *(b'"text"', b'"text":"a"', b'"id":1,', b"\\n", b"\\x", b"\\/", b"a", b"/", b"01", b"1.", b".5", b"-0", b"1e"),
]
VALUES = [
    *(b'"a"', rb'"\n\u00e9"', b'"\xc3\xa9"', b"1", b"-1.5e3", b"null", b"true", b"[1,2]", b'["a"]', b'{"a":1}', b"0"),
    *(b"[]", rb'"\ud83d\ude00"', b'"x","text":"y"', b'""'),
]


def drawn_line(rng):
    """A record with a text, of which four in five have something in a wrong place."""
    pairs = [rng.choice([b'"text":', b'"id":', b'"x":', rb'"te\u0078t":']) + rng.choice(VALUES) for _ in range(2)]
    pairs[rng.randrange(3) :] = [b'"text":"q"']
    line = b"{" + b",".join(pairs) + b"}"
    if rng.random() < 0.8:
        place = rng.randrange(len(line) + 1)
        line = line[:place] + rng.choice(ATOMS) + line[place + rng.choice([0, 0, 1, 2]) :]
    return line


NUM_DRAWN = int(os.environ.get("DRAWN_LINES", "3000"))


def test_drawn_lines_are_read_as_json_loads_reads_them():
    rng = random.Random(52)
    keys = ("text",)
    for _ in range(NUM_DRAWN):
        line = drawn_line(rng)
        content = b"\n".join([line, b'{"text":"next"}'])
        assert as_reading(parse(content, select_keys(keys))) == reference(content, keys), line


NUM_IDS = 100
ID_SELECTION = open_selection(["ids"], vocabulary_size=NUM_IDS)


def sequences(column):
    """The non-empty sequences of each record."""
    assert column.tokens.dtype == np.uint32
    assert int(column.lengths.sum()) == len(column.tokens)
    own = np.split(column.tokens, np.cumsum(column.lengths)[:-1]) if len(column.lengths) else []
    counts = column.sequences_per_record if column.sequences_per_record is not None else np.ones(len(own), np.int64)
    assert int(counts.sum()) == len(own)
    stops = [0, *np.cumsum(counts).tolist()]
    return [[tokens.tolist() for tokens in own[begin:end] if len(tokens)] for begin, end in pairwise(stops)]


def expected_sequences(value):
    if value and isinstance(value[0], list):
        return [ids for ids in value if ids]
    return [value] if value else []


def line_of(value):
    return b'{"x": 1, "ids": %s}' % value.encode()


GOOD_IDS = ["[1, 2, 99]", "[0]", "[]", "[-0]", "[[1], [2, 3]]", "[[1], []]", "[[]]", "[[], []]"]


@pytest.mark.parametrize("value", GOOD_IDS)
def test_ids_are_taken_as_they_are(value):
    read = parse(b"\n".join([line_of(value)] * 3), ID_SELECTION)
    assert sequences(read.columns["ids"]) == [expected_sequences(json.loads(value))] * 3


EXPECTED_IDS = "expected a list of token ids from 0 to 99 under the key 'ids', got "
BAD_IDS = {
    "[1, 100]": "a list with 100 as item 2",
    "[1.0]": "a list with 1.0 as item 1",
    "[true]": "a list with true as item 1",
    '["1"]': "a list with a string as item 1",
    "[[1], 2]": "a list of lists with 2 as item 2",
    "[[1], [2, 100]]": "a list with 100 as item 2 of list 2",
    "[[1], [[2]]]": "a list with a list as item 1 of list 2",
    "[18446744073709551617]": "a list with 18446744073709551617 as item 1",
    f"[{'9' * 50}]": f"a list with {'9' * 40}… as item 1",
    "null": "null",
    "{}": "an object",
}


@pytest.mark.parametrize(("value", "reason"), BAD_IDS.items(), ids=BAD_IDS)
def test_what_is_no_id_is_a_bad_record_with_its_place(value, reason):
    for lines in ([value], ["[1]", value, "[2]"], ["[[1]]", value]):
        read = parse(b"\n".join(map(line_of, lines)), ID_SELECTION)
        assert [bad.reason for bad in read.bad] == [EXPECTED_IDS + reason]
        assert len(read.offsets) == len(lines) - 1
