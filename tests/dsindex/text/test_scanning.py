import json
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.kernels import loader as kernels
from dsindex.kernels.machine_code import import_kernels
from dsindex.text import scanning
from dsindex.text.forms import TextPart
from dsindex.text.records import read_records
from dsindex.text.streams import read_lines
from tests.dsindex.text.readings import read_fields

KEYS = ["text", "tit\u00e9"]


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setattr(kernels, "_LOADER", kernels._Loader())
    kernels._LOADER.kernels = import_kernels()


def scan(lines, keys=KEYS, spare=b""):
    """Scan lines as a block has them; `spare` stands behind them, as what an earlier block left.

    With 64 bytes and more behind them they are read 64 bytes at once, at the end of a buffer byte by byte.
    """
    found = scan_once(lines, keys, spare)
    assert scan_once(lines, keys, spare + b'"\\\n' * 64) == found
    return found


def scan_once(lines, keys, spare):
    content = b"\n".join(lines) + b"\n"
    ends = np.cumsum([len(line) + 1 for line in lines]) - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    columns = scanning.scan_texts(bytearray(content + spare), starts, ends, [(key,) for key in keys])
    if columns is None:
        return None
    for column in columns.values():
        column.validate(full=True)
    return [list(values) for values in zip(*(columns[key,].to_pylist() for key in keys), strict=True)]


@pytest.mark.parametrize("line", [
    rb'{"text":"a","tit' + "é".encode() + rb'":"b"}',
    rb' {  "other" : [1, {"text": 3}, []] , "text" : "a" ,"tit' + "é".encode() + b'":""\t} \r',
    json.dumps(dict.fromkeys(KEYS, 'é 😀 "\\/\b\f\n\r\t\0\x7f ￿\U0010ffff'), ensure_ascii=False).encode() + b" ",
    json.dumps({"x": "\ud800", KEYS[1]: "", "text": "0123456\\" * 9}, ensure_ascii=False)
    .replace("\ud800", "\\ud800")
    .encode(),
], ids=["plain", "spaces", "characters", "half a pair under another key"])  # fmt: skip
def test_scanned_texts_are_those_of_json_loads(line):
    assert scan([line, line]) == [read_fields(line, KEYS)] * 2


@pytest.mark.parametrize("value", [
    b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"', b'"\\ud800x"', b'"\\ud800\\ud800"', b'"\\ud80', b'"\\u00g0"',
])  # fmt: skip
def test_half_a_surrogate_pair_is_left_to_json_loads(value):
    assert scan([b'{"text": %s}' % value], ["text"]) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"text":"a"}{"text":"b"}', b'{"text":"a","text":"b"}', b'{"te\\u0078t":"a"}', b'{"text":null}', b"{}",
        b'{"text":["a"]}', b'{"text":"a",}', b'{"text":"a" "b":1}', b'{"text":"a","b":NaN}', b'{"text":"a\x01"}',
        b'{"text":"a', b'{"text":"a"', b'{"text":"a\\', b'{"text":"a\\x"}', b'{"text"', b'{"text":', b"{", b"", b" ",
        b'["text"]', b'{"text":"a"}x', b'{"title":"a"}', b'{"text":"a","b":01}', b'{"text":"a","b":[}', b'{"text" "a"}',
        b'{"text":"a","b":' + b"[" * 65 + b"]" * 65 + b"}",
    ],
)  # fmt: skip
def test_lines_in_doubt_are_left_to_json_loads(line):
    for spare in (b"", b'"}\n{"text":"what an earlier block left"}'):
        assert scan([line], ["text"], spare) is None
        assert scan([b'{"text":"good"}', line], ["text"], spare) is None


@pytest.mark.parametrize("position", [0, 1, 31, 62, 63, 64, 65, 130])
def test_every_byte_at_any_place_of_a_string_is_judged_as_json_loads_judges_it(position):
    for byte in range(128):
        line = b'{"x": 1, "text":"' + b"x" * position + bytes([byte]) + b"n" * 70 + b'"}'
        expected = read_fields(line, ["text"])
        assert scan([line], ["text"]) == (None if isinstance(expected, str) else [expected]), bytes([byte])
        other = line.replace(b"text", b"other")[:-1] + b', "text": ""}'
        expected = read_fields(other, ["text"])
        assert scan([other], ["text"]) == (None if isinstance(expected, str) else [expected]), bytes([byte])


texts = st.text(st.characters() | st.sampled_from('"\\/\n\t é€😀\x00\x1f'), max_size=40)


@given(
    st.lists(st.fixed_dictionaries({"text": texts, "x": texts | st.floats()}), min_size=1, max_size=8), st.booleans()
)
@settings(max_examples=300)
def test_any_texts_are_read_as_json_loads_reads_them(records, ascii_only):
    lines = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    # Half a surrogate pair can only be escaped: the encoding is looked at before a block is scanned.
    encoded = [line.encode("utf-8", errors="replace") for line in lines]
    values = [read_fields(line, ["text"]) for line in encoded]
    scanned = scan(encoded, ["text"])
    if any(isinstance(value, str) for value in values):
        assert scanned is None
    elif not any("NaN" in line or "Infinity" in line for line in lines):
        assert scanned == values


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 9))
def test_newlines_are_found_at_any_place(gaps, tail):
    content = b"".join(b"x" * gap + b"\n" for gap in gaps) + b"\x0b" * tail
    for spare in (b"\n\n", b"\n" * 64):
        found = scanning.find_newlines(bytearray(content + spare), len(content))
        assert found.tolist() == [place for place, byte in enumerate(content) if byte == 10]


def test_a_process_that_reads_much_goes_over_to_the_loops(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "_LOADER", kernels._Loader())
    monkeypatch.setattr(kernels, "LOAD_FROM_BYTES", 100_000)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "some text"}\n' * 10_000)
    size = path.stat().st_size

    def read():
        blocks = read_records(TextPart(path=str(path), begin=0, end=size), keys=["text"], block_bytes=8192)
        return [text for block in blocks for text in block.columns["text"].texts.to_pylist()]

    first = read()
    deadline = time.monotonic() + 240
    while kernels._LOADER.kernels is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kernels._LOADER.kernels == import_kernels()
    assert sum(thread.name == "dsindex-kernels" for thread in threading.enumerate()) <= 1
    assert read() == first
    assert (
        sum(len(block.starts) for block in read_lines(TextPart(path=str(path), begin=0, end=size), block_bytes=8192))
        == 10_000
    )
