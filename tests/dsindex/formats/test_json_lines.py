import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsindex.formats.raw_index import find_faulty_lines, is_json

LINES = [
    b'{"a": 1}', b"[]", b"{}", b" [ ] ", b'{ "a" : [ 1 , { } , "x" ] }\r', b"1", b"-0", b"0.5e-7", b"1E+9", b'""',
    b"true", b"null", b"false", b'"\\u00e9\\n\\"\\\\\\/"', b'"\\ud800"', b"NaN", b"-Infinity", b"Infinity",
    b'"\xc3\xa9"', b"\xef\xbb\xbf{}", "1".encode("utf-16"), b"[" * 60 + b"]" * 60, b"[" * 90 + b"]" * 90,
    b'{"a": 1, "a": 2}', b"1" * 4100, b'"\x7f"', b'"' + b"a" * 100 + b'"', b"", b" ", b"\r", b"{", b"}", b"[1,]",
    b'{"a":1,}', b"{a: 1}", b"{'a': 1}", b"01", b"-", b"1.", b".5", b"1e", b"+1", b"1 2", b"{} {}", b'"', b'"\\',
    b'"\\u12', b'"\\u12g4"', b'"\\x"', b'"a\tb"', b'"\x00"', b"Inf", b"-NaN", b"nul", b"truex", b'"\xc3"', b'"\xff"',
    b"[1 2]", b"]", b"[}", b"{]", b'{"a"}', b'{"a":}', b'{"a" 1}', b"{1: 2}", b",", b"[,1]", b"1" * 5000, b"{}\x02",
    b'{"a": 1}]', b"[" * 100_000, b'"' + b"a" * 100, b'"' + b"a" * 20 + b'\x01"', b'"' + b"a" * 9 + b"\\q" + b'"',
]  # fmt: skip


def slow(line):
    try:
        json.loads(line)
    except Exception:  # noqa: BLE001 - as Modalities does
        return False
    return True


def faulty(lines, *, compiled):
    data = bytearray(b"\n".join(lines))
    ends = np.cumsum([len(line) + 1 for line in lines]) - 1
    starts = ends - [len(line) for line in lines]
    return find_faulty_lines(data, starts, ends, compiled=compiled).tolist()


@pytest.mark.parametrize("compiled", [True, False])
def test_find_faulty_lines_judges_as_json_loads_does(compiled):
    expected = [number for number, line in enumerate(LINES) if not slow(line)]
    assert len(expected) > 40
    assert faulty(LINES, compiled=compiled) == expected
    for number, line in enumerate(LINES):
        assert faulty([line], compiled=compiled) == ([0] if number in expected else []), line


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=200)
@given(VALUES, st.booleans(), st.integers(0, 10**6), st.binary(max_size=2).filter(lambda data: b"\n" not in data))
@example({"a": [1]}, True, 3, b"")
def test_find_faulty_lines_judges_mutated_lines(value, ascii_only, place, change):
    line = bytearray(json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass"))
    assert faulty([bytes(line)], compiled=True) == []
    line[place % len(line) : place % len(line) + 1] = change
    mutated = bytes(line)
    assert faulty([b"{}", mutated, b"1"], compiled=True) == ([] if slow(mutated) else [1])
    assert is_json(mutated) == slow(mutated)
