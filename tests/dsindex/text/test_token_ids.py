import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.text.forms import TextPart
from dsindex.text.records import read_records
from dsindex.text.scanning import scan_ids
from dsindex.text.selection import Selection, open_selection
from dsindex.text.token_ids import find_id_fault
from tests.dsindex.text.readings import in_memory, parse

pytestmark = pytest.mark.usefixtures("either_way")

SIZE = 100
SELECTION = open_selection(["ids"], vocabulary_size=SIZE)
NESTED = open_selection([".meta.ids"], vocabulary_size=SIZE)


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


GOOD = ["[1, 2, 99]", "[0]", "[]", "[-0]", "[[1], [2, 3]]", "[[1], []]", "[[]]", "[[], []]"]


@pytest.mark.parametrize("value", GOOD)
def test_ids_are_taken_as_they_are(value):
    read = parse(b"\n".join([line_of(value)] * 3), SELECTION)
    assert sequences(read.columns["ids"]) == [expected_sequences(json.loads(value))] * 3


EXPECTED = "expected a list of token ids from 0 to 99 under the key 'ids', got "
BAD = {
    "[1, 100]": "a list with 100 as item 2",
    "[-1]": "a list with -1 as item 1",
    "[1.0]": "a list with 1.0 as item 1",
    "[1e1]": "a list with 10.0 as item 1",
    "[true]": "a list with true as item 1",
    "[null]": "a list with null as item 1",
    '["1"]': "a list with a string as item 1",
    "[NaN]": "a list with NaN as item 1",
    "[{}]": "a list with an object as item 1",
    "[1, [2]]": "a list with a list as item 2",
    "[[1], 2]": "a list of lists with 2 as item 2",
    "[[1], [2, 100]]": "a list with 100 as item 2 of list 2",
    "[[1], [[2]]]": "a list with a list as item 1 of list 2",
    "[[1], null]": "a list of lists with null as item 2",
    "[18446744073709551617]": "a list with 18446744073709551617 as item 1",
    f"[{'9' * 50}]": f"a list with {'9' * 40}… as item 1",
    "null": "null",
    "5": "5",
    '"1 2"': "a string",
    "{}": "an object",
}


@pytest.mark.parametrize(("value", "reason"), BAD.items(), ids=BAD)
def test_what_is_no_id_is_a_bad_record_with_its_place(value, reason):
    for lines in ([value], ["[1]", value, "[2]"], ["[[1]]", value]):
        read = parse(b"\n".join(map(line_of, lines)), SELECTION)
        assert [bad.reason for bad in read.bad] == [EXPECTED + reason]
        assert len(read.offsets) == len(lines) - 1


def test_integers_of_many_digits_are_no_ids():
    read = parse(line_of("[%s]" % ("1" * 5000)), SELECTION)
    assert [bad.reason for bad in read.bad] == [EXPECTED + "a list with Infinity as item 1"]
    other = b'{"ids": [1], "x": ' + b"1" * 5000 + b"}"
    assert len(parse(other, SELECTION).offsets) == 1


ids = st.lists(st.integers(0, SIZE - 1), max_size=4)
odd_items = st.integers(-5, 2 * SIZE) | st.none() | st.booleans() | st.floats() | st.text(max_size=2) | ids
odd_values = st.lists(odd_items, max_size=4) | odd_items


@pytest.mark.exhaustive
@given(values=st.lists(ids, max_size=5) | st.lists(st.lists(ids, min_size=1, max_size=3), max_size=5), odd=odd_values)
@settings(max_examples=200)
def test_any_values_are_read_as_json_loads_reads_them(values, odd):
    for some in (values, [*values, odd], [odd, *values]):
        lines = [json.dumps({"meta": {"ids": value, "n": 1}}).encode() for value in some]
        if not lines:
            continue
        read = parse(b"\n".join(lines), NESTED)
        kept = [value for value in some if find_id_fault(value, SIZE) is None]
        assert sequences(read.columns["meta.ids"]) == [expected_sequences(value) for value in kept]
        assert len(read.bad) == len(some) - len(kept)


def test_plain_files_of_ids_are_read_by_the_kernels_once_they_are_loaded(either_way, tmp_path, monkeypatch):
    path = tmp_path / "ids.jsonl"
    path.write_bytes(b'{"meta": {"ids": [1, 2, 3]}, "text": "a"}\n' * 5000)
    if either_way == "kernels loaded":
        monkeypatch.setattr(Selection, "read_lines", lambda *_: pytest.fail("the slow path was taken"))
    part = TextPart(path=str(path), begin=0, end=path.stat().st_size)
    blocks = list(read_records(part, keys=("meta.ids",), selection=NESTED, block_bytes=64 << 10))
    assert sum(len(sequences(block.columns["meta.ids"])) for block in blocks) == 5000


def scanned(value):
    """The ids of two lines as the kernel reads them, the second of which is always the same."""
    block = in_memory(b'{"meta": {"n": [7], "ids": %s}, "x": 1}\n{"meta": {"ids": [1]}}' % value)
    found = scan_ids(block.data, block.starts, block.ends, ("meta", "ids"), limit=SIZE)
    if found is None:
        return None
    tokens, lengths = found
    return [ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize(
    ("value", "ids"), [(b"[]", []), (b"[ ]", []), (b"[0]", [0]), (b"[ 1 ,\t2,99 ]", [1, 2, 99]), (b"[10,20]", [10, 20])]
)
def test_the_scanner_reads_plain_lists(value, ids, either_way):
    assert scanned(value) == ([ids, [1]] if either_way == "kernels loaded" else None)


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"[100]",
            b"[-0]",
            b"[-1]",
            b"[01]",
            b"[00]",
            b"[1.0]",
            b"[1e1]",
            b"[1,]",
            b"[,1]",
            b"[1 2]",
            b"[1",
            b"[",
            b"1",
        ),
        *(b"[[1]]", b"[null]", b'["1"]', b"{}", b"[1]]", b'[1], "ids": [2]', b"[4294967297]", b"[" + b"9" * 30 + b"]"),
        *(b"[18446744073709551617]", b"[1} ", b'[1], "x"', b"[\x0b1]"),
    ],
)
def test_the_scanner_leaves_lists_in_doubt(value):
    assert scanned(value) is None
