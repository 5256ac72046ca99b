"""Lines that a fast parser may get wrong, written by hand and drawn at random."""

import json
from functools import partial

from hypothesis import strategies as st

from dsindex.text.fields import MAX_NESTING
from tests.text.readings import BOM

GOOD = b'{"text":"good","title":"t","id":1}'

GOOD_LIST = b'{"text":["s 1","s 2"],"title":"t"}'


TEXT, QUOTED = b'{"text":%s,"title":"t"}', b'{"text":"%s","title":"t"}'


def around(value):
    return b'{"text":"a","x":' + value + b',"title":"t"}'


NASTY = [
    # what json.loads takes, in ways that need care
    b'{"text":"a","text":"b","title":"t"}', b'{"text":null,"text":"b","title":"t"}',
    b'{"text":1,"text":"b","title":"t"}', b'{"x":1,"x":2,"text":"b","title":"t"}', rb'{"te\u0078t":"a","title":"t"}',
    rb'{"te\u0078t":"a","text":"b","title":"t"}',
    rb'{"text":"\ud83d\ude00 \u0000 \uffff \/\b\f\n\r\t\"\\","title":"t"}',
    rb'{"text\u0000":"z","text":"a","title":"t"}', b'{"text":"","title":""}', b'{"text":[],"title":"t"}',
    b'{"text":["a"],"title":"t"}', b'{"text":["a","b"],"title":["c",""]}',
    b'{"text":"2024-01-01","title":"2024-01-01T00:00:00Z"}', b'{"":"a","text":"b","title":"t"}',
    b'{"text":"a\x7f","title":"\xe2\x80\xa8\xc2\x85\xef\xbb\xbf"}', b'\t {\r"text"\r:\r"a",\t"title":"t"}\r \r',
    b" " * 20 + GOOD + b" " * 20,
    *(around(value) for value in [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1E-99999", b"-0.0e-0", b"0", b"-0"]),
    *(around(value) for value in [b"1" * 400, b"1" * 5000, b"1" * 400 + b".5", b"0." + b"1" * 400, b"[Infinity]"]),
    around(rb'"\udc00"'), around(rb'"\ud800"'), around(rb'{"\ude00\ud83d":1}'),
    around(b'{"text":null,"title":[1,{"text":5}],"x":{"x":[]},"":null}'),
    around(b"[" * (MAX_NESTING - 1) + b"]" * (MAX_NESTING - 1)),
    b'{"text":"Inf, -NaN} Inf]","title":"' + b"[{" * 1000 + b'"}',
    # what it does not take as a record of KEYS
    b"{}", b"[]", b"null", b"1", b'"text"', b'{"text":"b"}', b'{"Text":"a","title":"t"}',
    rb'{"text\u0000":"a","title":"t"}', b'{"text":"b","text":null,"title":"t"}',
    *(TEXT % value for value in [b"null", b"1", b"1.5", b"true", b"{}", b"[null]", b'["a",1]', b'[["a"]]', b"[[]]"]),
    *(TEXT % value for value in [b'["a",null]', b"[{}]", b"NaN", b"Inf"]),
    *(QUOTED % value for value in [rb"\ud800", rb"\udc00", rb"\ude00\ud83d", rb"\ud800\u0041", b"\xff", b"\0", b"\t"]),
    *(QUOTED % value for value in [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x1f", b"\r", rb"\x41"]),
    QUOTED % rb"\'", QUOTED % rb"\u12", QUOTED % b"\\",
    around(b'"\xff"'), b'{"text":"a","title":"t","\xff":1}',
    *(around(value) for value in [b"Inf", b"-Inf", b"-NaN", b"nan", b"[NaN,-NaN]", b"Inf \r", b"Infin", b"+Infinity"]),
    *(around(value) for value in [b"01", b"-01", b"1.", b".5", b"+1", b"-", b"1e", b"0x1", b"1_0", b"--1", b"1-1"]),
    around(b"\xd9\xa1"),
    *(around(value) for value in [b"tru", b"True", b"nul", b"[1,]", b"[1 2]", b"{,}", b'{"a"}', b"'a'", b'"\x01"']),
    around(b""),
    around(b"[" * 3000 + b"]" * 3000), around(b"[" * 3000),
    GOOD + GOOD, GOOD + b" " + GOOD, GOOD + b"," + GOOD, GOOD + b"\0" + GOOD, GOOD + b"\0", GOOD + b" null " + GOOD,
    GOOD + b" 5 " + GOOD, GOOD + b"[]" + GOOD, GOOD + b"}", GOOD[:-1], GOOD[:-1] + b",}", GOOD[:-1] + b"/*c*/}",
    BOM + GOOD, GOOD + BOM, b"\x0c" + GOOD, b"\xc2\xa0" + GOOD, b"\x0c", b"\0",
    # an object over two lines, of which only both together are JSON
    b'{"text":"a",\n"title":"t"}', b'{"text":"a","title":"t","x":{}\n}', b'{"text":"a","title":"t","x":[{}\n,{}]}',
    b'{"text":"a","title":"t","x":[{}\n{}]}', b'{"text":"a","title":"t"}{"text":"a",\n"title":"t"}',
    b'{"text":"a}\n{","title":"t"}',
    # the same, and as many objects as lines
    b'{"text":"a","title":"t","x":\n{}}\n' + GOOD + GOOD, b'{"text":"a","title":"t","x":{}\n}\n' + GOOD + GOOD,
    # blank
    b"", b"\r", b" \t \r", b" " * 40,
]  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)

texts = st.text(st.characters(exclude_categories=()), max_size=12)


@st.composite
def record_lines(draw):
    """Mostly what a record should be: any order of keys, escapes or not, spaces or not."""
    clean = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
    value = clean | st.lists(clean, max_size=3) if draw(st.booleans()) else clean
    items = [("text", draw(value)), ("title", draw(clean)), *draw(st.lists(st.tuples(texts, json_values), max_size=2))]
    pairs = draw(st.permutations(items))
    ascii_only = draw(st.booleans()) or any("\ud800" <= c <= "\udfff" for c in json.dumps(pairs, ensure_ascii=False))
    space = draw(st.sampled_from(["", " ", "\t", "\r"]))
    dump = partial(json.dumps, ensure_ascii=ascii_only)
    body = ("," + space).join(dump(key) + ":" + space + dump(item) for key, item in pairs)
    return draw(st.sampled_from([b"", b" "])) + b"{" + body.encode() + b"}" + draw(st.sampled_from([b"", b"\r", b" "]))


CHANGES = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"Inf", b"-NaN", b"\xff", b"\0", b"", b"\xef\xbb\xbf",
           b"\n", b"\r", b" ", b"null", b"-", b"0", b"\\ud800", b"\\u0000", b"{}", b'"text":', b'"text":"x",',
           b"e"]  # fmt: skip


@st.composite
def mutated_lines(draw):
    """A record with a few bytes changed: next to JSON rather than far from it."""
    line = bytearray(draw(record_lines() | st.sampled_from(NASTY)))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(line)))
        end = min(len(line), begin + draw(st.integers(0, 3)))
        line[begin:end] = draw(st.sampled_from(CHANGES))
    return bytes(line)


@st.composite
def contents(draw):
    # Many files of good lines only, or with one line that is not: there the fast path is at stake.
    kind = draw(st.integers(0, 2))
    other = st.sampled_from(NASTY) | mutated_lines() | record_lines()
    if kind == 2:
        lines = draw(st.lists(other, max_size=8))
    else:
        lines = draw(st.lists(record_lines() | st.just(GOOD), max_size=6))
        if kind == 1:
            lines.insert(draw(st.integers(0, len(lines))), draw(other))
    newline = draw(st.sampled_from([b"\n", b"\r\n"]))
    return draw(st.sampled_from([b"", b"", BOM])) + newline.join(lines) + draw(st.sampled_from([b"", newline, b"\n\n"]))
