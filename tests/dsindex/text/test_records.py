from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.text import records
from dsindex.text.fields import MAX_NESTING
from dsindex.text.forms import TextPart
from dsindex.text.lines import LineBlock, read_lines
from dsindex.text.record_lines import parse_lines
from dsindex.text.records import read_records
from dsindex.text.wanted_texts import WantedTexts
from dsindex.text.whole_blocks import SCAN_BYTES, parse_block

if TYPE_CHECKING:
    from pathlib import Path

    from dsindex.text.record_blocks import RecordBlock

pytestmark = pytest.mark.usefixtures("either_way")

BOM = b"\xef\xbb\xbf"
KEYS = ("text", "title")
WANTED = WantedTexts(path="a.jsonl", keys=KEYS)


@dataclass
class Reading:
    """Everything that a reading of a file or range says, in plain types."""

    num_lines: int = 0
    num_blank: int = 0
    records: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    bad: list[tuple[int, int, bytes]] = field(default_factory=list)

    def add(self, block: RecordBlock, first_line: int = 0) -> None:
        assert block.num_lines == block.num_blank + len(block.offsets) + len(block.bad)
        columns = []
        for column in block.columns.values():
            column.texts.validate(full=True)
            texts = column.texts.to_pylist()
            if column.texts_per_record is None:
                columns.append([[text] for text in texts])
            else:
                stops = np.cumsum(column.texts_per_record).tolist()
                assert stops[-1] == len(texts)
                columns.append([texts[begin:end] for begin, end in pairwise([0, *stops])])
        values = zip(*columns, strict=True)
        lines = (block.lines + first_line).tolist()
        self.num_lines += block.num_lines
        self.num_blank += block.num_blank
        self.records += [
            (offset, line, list(value))
            for offset, line, value in zip(block.offsets.tolist(), lines, values, strict=True)
        ]
        self.bad += [(bad.offset, bad.line + first_line, bad.line_bytes) for bad in block.bad]


def reference(content: bytes, keys: tuple[str, ...] = KEYS, limit: int | None = None) -> Reading:
    """The slow and obvious way: json.loads of each line."""
    reading = Reading()
    offset = 0
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else []):
        body = line.removeprefix(BOM) if number == 0 else line
        values = reference_values(body, keys)
        reading.num_lines += 1
        if limit is not None and len(line) > limit:
            reading.bad.append((offset, number, line[:limit]))
        elif body.strip(b" \t\r") == b"":
            reading.num_blank += 1
        elif values is None:
            reading.bad.append((offset, number, line))
        else:
            reading.records.append((offset, number, values))
        offset += len(line) + 1
    return reading


def reference_values(line: bytes, keys: tuple[str, ...]) -> list[list[str]] | None:
    usual_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * MAX_NESTING)
    try:
        record = json.loads(line.decode("utf-8", "strict"), parse_int=lambda _: 0)  # any number of digits
        values = [record[key] if isinstance(record[key], list) else [record[key]] for key in keys]
        for value in values:
            "".join(value).encode("utf-8")
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        sys.setrecursionlimit(usual_limit)
    return values if isinstance(record, dict) and nesting(record) <= MAX_NESTING else None


def nesting(value: Any) -> int:
    """How deep objects and lists lie in each other, without recursion."""
    depth, layer = 0, [value]
    while layer := [inner for inner in layer if isinstance(inner, dict | list)]:
        depth += 1
        layer = [item for inner in layer for item in (inner.values() if isinstance(inner, dict) else inner)]
    return depth


def read_ranges(path: Path, cuts: list[int], keys: tuple[str, ...] = KEYS, **options: Any) -> Reading:
    reading = Reading()
    for begin, end in pairwise(cuts):
        first_line = reading.num_lines
        for block in read_records(TextPart(path=str(path), begin=begin, end=end), keys=keys, **options):
            reading.add(block, first_line)
    return reading


def in_memory(content: bytes) -> LineBlock:
    """The one block that a file of this content is."""
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == 10)
    if not content.endswith(b"\n"):
        ends = np.append(ends, len(content))
    starts = np.concatenate([[0], ends[:-1] + 1])
    starts[0] = 3 if content.startswith(BOM) else 0
    return LineBlock(
        data=bytearray(content),
        num_bytes=len(content),
        offset=0,
        first_line=0,
        starts=starts,
        ends=ends.astype(np.int64),
    )


def as_reading(block: RecordBlock) -> Reading:
    reading = Reading()
    reading.add(block)
    return reading


GOOD = b'{"text":"good","title":"t","id":1}'
GOOD_LIST = b'{"text":["s 1","s 2"],"title":"t"}'


def around(value: bytes) -> bytes:
    return b'{"text":"a","x":' + value + b',"title":"t"}'


NASTY: list[bytes] = [
    # what json.loads takes, in ways that need care
    b'{"text":"a","text":"b","title":"t"}',
    b'{"text":null,"text":"b","title":"t"}',
    b'{"text":1,"text":"b","title":"t"}',
    b'{"x":1,"x":2,"text":"b","title":"t"}',
    rb'{"te\u0078t":"a","title":"t"}',
    rb'{"te\u0078t":"a","text":"b","title":"t"}',
    rb'{"text":"\ud83d\ude00 \u0000 \uffff \/\b\f\n\r\t\"\\","title":"t"}',
    rb'{"text\u0000":"z","text":"a","title":"t"}',
    b'{"text":"","title":""}',
    b'{"text":[],"title":"t"}',
    b'{"text":["a"],"title":"t"}',
    b'{"text":["a","b"],"title":["c",""]}',
    b'{"text":"2024-01-01","title":"2024-01-01T00:00:00Z"}',
    b'{"":"a","text":"b","title":"t"}',
    b'{"text":"a\x7f","title":"\xe2\x80\xa8\xc2\x85\xef\xbb\xbf"}',
    b'\t {\r"text"\r:\r"a",\t"title":"t"}\r \r',
    b" " * 20 + GOOD + b" " * 20,
    *(around(value) for value in [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1E-99999", b"-0.0e-0", b"0", b"-0"]),
    *(around(value) for value in [b"1" * 400, b"1" * 5000, b"1" * 400 + b".5", b"0." + b"1" * 400, b"[Infinity]"]),
    around(rb'"\udc00"'),
    around(rb'"\ud800"'),
    around(rb'{"\ude00\ud83d":1}'),
    around(b'{"text":null,"title":[1,{"text":5}],"x":{"x":[]},"":null}'),
    around(b"[" * (MAX_NESTING - 2) + b"]" * (MAX_NESTING - 2)),
    b'{"text":"Inf, -NaN} Inf]","title":"' + b"[{" * 1000 + b'"}',
    # what it does not take as a record of KEYS
    b"{}",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b'{"text":"b"}',
    b'{"Text":"a","title":"t"}',
    rb'{"text\u0000":"a","title":"t"}',
    b'{"text":"b","text":null,"title":"t"}',
    *(
        b'{"text":' + value + b',"title":"t"}'
        for value in [b"null", b"1", b"1.5", b"true", b"{}", b"[null]", b'["a",1]']
    ),
    *(
        b'{"text":' + value + b',"title":"t"}'
        for value in [b'[["a"]]', b"[[]]", b'["a",null]', b"[{}]", b"NaN", b"Inf"]
    ),
    *(
        b'{"text":"' + value + b'","title":"t"}'
        for value in [rb"\ud800", rb"\udc00", rb"\ude00\ud83d", rb"\ud800\u0041"]
    ),
    *(
        b'{"text":"' + value + b'","title":"t"}'
        for value in [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
    ),
    *(
        b'{"text":"' + value + b'","title":"t"}'
        for value in [b"\0", b"\t", b"\x1f", b"\r", rb"\x41", rb"\'", rb"\u12", b"\\"]
    ),
    around(b'"\xff"'),
    b'{"text":"a","title":"t","\xff":1}',
    *(around(value) for value in [b"Inf", b"-Inf", b"-NaN", b"nan", b"[NaN,-NaN]", b"Inf \r", b"Infin", b"+Infinity"]),
    *(
        around(value)
        for value in [b"01", b"-01", b"1.", b".5", b"+1", b"-", b"1e", b"0x1", b"1_0", b"--1", b"1-1", b"\xd9\xa1"]
    ),
    *(
        around(value)
        for value in [b"tru", b"True", b"nul", b"[1,]", b"[1 2]", b"{,}", b'{"a"}', b"'a'", b'"\x01"', b""]
    ),
    around(b"[" * MAX_NESTING + b"]" * MAX_NESTING),
    around(b"[" * 3000 + b"]" * 3000),
    around(b"[" * 3000),
    GOOD + GOOD,
    GOOD + b" " + GOOD,
    GOOD + b"," + GOOD,
    GOOD + b"\0" + GOOD,
    GOOD + b"\0",
    GOOD + b" null " + GOOD,
    GOOD + b" 5 " + GOOD,
    GOOD + b"[]" + GOOD,
    GOOD + b"}",
    GOOD[:-1],
    GOOD[:-1] + b",}",
    GOOD[:-1] + b"/*c*/}",
    BOM + GOOD,
    GOOD + BOM,
    b"\x0c" + GOOD,
    b"\xc2\xa0" + GOOD,
    b"\x0c",
    b"\0",
    # an object over two lines, of which only both together are JSON
    b'{"text":"a",\n"title":"t"}',
    b'{"text":"a","title":"t","x":{}\n}',
    b'{"text":"a","title":"t","x":[{}\n,{}]}',
    b'{"text":"a","title":"t","x":[{}\n{}]}',
    b'{"text":"a","title":"t"}{"text":"a",\n"title":"t"}',
    b'{"text":"a}\n{","title":"t"}',
    # the same, and as many objects as lines
    b'{"text":"a","title":"t","x":\n{}}\n' + GOOD + GOOD,
    b'{"text":"a","title":"t","x":{}\n}\n' + GOOD + GOOD,
    # blank
    b"",
    b"\r",
    b" \t \r",
    b" " * 40,
]


@pytest.mark.parametrize("good", [GOOD, GOOD_LIST], ids=["string", "list"])
@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_both_paths_equal_json_loads_for_a_nasty_line(nasty: bytes, good: bytes) -> None:
    for lines in (
        [good, nasty, good],
        [good, good, nasty],
        [nasty, nasty],
        [nasty, good],
        [good, nasty, b"", nasty, b""],
    ):
        content = b"\n".join(lines)
        block = in_memory(content)
        expected = reference(content)
        slow = as_reading(parse_lines(block, WANTED, None))
        assert slow == expected
        fast = parse_block(block, WANTED)
        assert fast is None or as_reading(fast) == expected


@pytest.mark.parametrize(
    "content",
    [
        GOOD + b"\n" + GOOD,
        GOOD_LIST + b"\n" + GOOD_LIST + b"\n",
        b"\n".join([GOOD, b"", b" ", b"\r", b" " + GOOD + b" \r", b"", GOOD]),
        BOM + GOOD + b"\r\n" + GOOD + b"\r\n",
        b"\n".join(around(value) for value in [b"1", b"NaN", b"-Infinity", b"[{}]", b"null", b"1e300", b"9" * 5000]),
        b'{"text":"Inf} -NaN Information","title":"' + b"{" * 5000 + b'"}\n' + GOOD,
        '{"text":"Größe 😀","title":"\\u00e9\\ud83d\\ude00"}\n'.encode() * 1000,
        *([(GOOD + b"\n") * count for count in (2, 5_000, 30_000)]),
    ],
    ids=["plain", "lists", "blank", "bom", "others", "strings", "unicode", "2", "5000", "30000"],
)
def test_plain_input_takes_the_fast_path(content: bytes) -> None:
    block = in_memory(content)
    before = bytes(block.data)
    fast = parse_block(block, WANTED)
    assert fast is not None
    assert as_reading(fast) == as_reading(parse_lines(block, WANTED, None)) == reference(content)
    assert bytes(block.data) == before


def test_read_records_goes_by_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_bytes((GOOD + b"\n") * 10_000)
    monkeypatch.setattr(records, "parse_lines", lambda *_: pytest.fail("the slow path was taken"))
    reading = read_ranges(path, [0, 3500, path.stat().st_size], block_bytes=64 << 10)
    assert len(reading.records) == 10_000


def test_suspects_are_found_at_any_place() -> None:
    """Across the pieces of the scan, and for brackets in any cell: the fast path must see each of them."""
    deep = around(b"[" * MAX_NESTING + b"]" * MAX_NESTING)
    piece = SCAN_BYTES
    for nasty in (around(b"Inf"), around(b"-Inf"), around(b"-NaN"), deep):
        spot = nasty.find(b"N") if b"N" in nasty else nasty.find(b"I")
        for shift in (-5, -4, -3, -2, -1, 0, 1, 2, 700):
            filler = b'{"text":"' + b"x" * (piece - spot - shift - 24) + b'","title":"t"}\n'
            content = filler + nasty + b"\n" + GOOD
            assert parse_block(in_memory(content), WANTED) is None, (nasty[:30], shift)
            assert parse_block(in_memory(filler + GOOD + b"\n" + GOOD), WANTED) is not None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
texts = st.text(st.characters(exclude_categories=()), max_size=12)


@st.composite
def record_lines(draw: st.DrawFn) -> bytes:
    """Mostly what a record should be: any order of keys, escapes or not, spaces or not."""
    clean = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
    value = clean | st.lists(clean, max_size=3) if draw(st.booleans()) else clean
    items = [("text", draw(value)), ("title", draw(clean)), *draw(st.lists(st.tuples(texts, json_values), max_size=2))]
    pairs = draw(st.permutations(items))
    ascii_only = draw(st.booleans()) or any("\ud800" <= c <= "\udfff" for c in repr_of(pairs))
    space = draw(st.sampled_from(["", " ", "\t", "\r"]))
    body = ("," + space).join(
        json.dumps(key, ensure_ascii=ascii_only) + ":" + space + json.dumps(item, ensure_ascii=ascii_only)
        for key, item in pairs
    )
    return draw(st.sampled_from([b"", b" "])) + b"{" + body.encode() + b"}" + draw(st.sampled_from([b"", b"\r", b" "]))


def repr_of(pairs: Any) -> str:
    return json.dumps(pairs, ensure_ascii=False)


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    """A record with a few bytes changed: next to JSON rather than far from it."""
    line = bytearray(draw(record_lines() | st.sampled_from(NASTY)))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(line)))
        end = min(len(line), begin + draw(st.integers(0, 3)))
        line[begin:end] = draw(
            st.sampled_from(
                [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"Inf", b"-NaN", b"\xff", b"\0", b"", b"\xef\xbb\xbf"]
            )
            | st.sampled_from(
                [
                    b"\n",
                    b"\r",
                    b" ",
                    b"null",
                    b"-",
                    b"0",
                    b"\\ud800",
                    b"\\u0000",
                    b"{}",
                    b'"text":',
                    b'"text":"x",',
                    b"e",
                ]
            )
        )
    return bytes(line)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
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


@given(content=contents(), data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_any_ranges_and_blocks_equal_json_loads(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    block_bytes = data.draw(st.sampled_from([1, 2, 7, 64, 300, 1 << 20]))
    limit = data.draw(st.none() | st.integers(1, 60))
    found = read_ranges(path, [0, *cuts, len(content)], block_bytes=block_bytes, max_record_bytes=limit)
    assert found == reference(content, limit=limit)


@pytest.mark.parametrize("block_bytes", [40, 300, 1 << 20])
@pytest.mark.slow
def test_lines_that_follow_a_long_line_belong_to_the_range_they_begin_in(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "long.jsonl"
    content = b"\n".join([GOOD, b"x" * 300, GOOD, GOOD, GOOD, GOOD])
    path.write_bytes(content)
    expected = reference(content, limit=len(GOOD))
    for cut in range(len(content) + 1):
        found = read_ranges(path, [0, cut, len(content)], block_bytes=block_bytes, max_record_bytes=len(GOOD))
        assert found == expected, cut


@given(content=contents())
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_fast_path_equals_slow_path(content: bytes) -> None:
    if not content:
        return
    block = in_memory(content)
    slow = parse_lines(block, WANTED, None)
    fast = parse_block(block, WANTED)
    assert fast is None or as_reading(fast) == as_reading(slow)
    assert as_reading(slow) == reference(content)


@pytest.mark.parametrize("block_bytes", [1, 5, 64, 1 << 16])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_every_cut_of_a_file_gives_each_line_once(
    tmp_path: Path, block_bytes: int, newline: bytes, last: bytes
) -> None:
    path = tmp_path / "cut.jsonl"
    content = BOM + newline.join([b'{"text":"%d"}' % number for number in range(5)] + [b"", b"bad"]) + last
    path.write_bytes(content)
    expected = reference(content, ("text",))
    assert len(expected.records) == 5
    for cut in range(len(content) + 1):
        assert read_ranges(path, [0, cut, len(content)], ("text",), block_bytes=block_bytes) == expected


def test_a_line_longer_than_many_blocks_and_ranges(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    content = GOOD + b'\n{"title":"t","text":"' + b"long " * 100_000 + b'"}\n' + GOOD + b"\n" + GOOD
    path.write_bytes(content)
    cuts = [*range(0, len(content), 7000), len(content)]
    assert read_ranges(path, cuts, block_bytes=1000) == reference(content)


def test_a_line_over_the_limit_is_bad_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    content = GOOD + b'\n{"title":"t","text":"' + b"x" * 300_000 + b'"}\n' + GOOD + b"\n" + GOOD + b"x" * 1000
    path.write_bytes(content)
    blocks = list(
        read_records(
            TextPart(path=str(path), begin=0, end=len(content)), keys=KEYS, block_bytes=64, max_record_bytes=100
        )
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
    assert max(sizes) <= 101


@pytest.mark.slow
def test_memory_is_a_few_blocks(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    line = b'{"text":"' + b"words " * 200 + b'"}\n'
    path.write_bytes(line * 50_000)
    code = (
        "import resource, sys\n"
        "from dsindex.text.forms import TextPart\n"
        "from dsindex.text.records import read_records\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "def read(end):\n"
        "    blocks = read_records(TextPart(path=sys.argv[1], begin=0, end=end), keys=['text'], block_bytes=1 << 20)\n"
        "    return sum(len(block.offsets) for block in blocks)\n"
        "read(8_000_000); before = peak()\n"
        f"assert read({len(line) * 50_000}) == 50_000\n"
        "print(peak() - before)"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    grown = int(shown.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 16 << 20, f"peak memory grew by {grown} bytes over a file of {path.stat().st_size}"


@pytest.mark.parametrize("change", ["shorter", "longer", "touched"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "changing.jsonl"
    content = (GOOD + b"\n") * 1000
    path.write_bytes(content)
    blocks = read_records(TextPart(path=str(path), begin=0, end=len(content)), keys=KEYS, block_bytes=256)
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


def test_unsuitable_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    path.write_bytes(GOOD)
    with pytest.raises(InputError, match=r"small\.jsonl: expected at least 99 bytes, got 34; the file became shorter"):
        list(read_records(TextPart(path=str(path), begin=0, end=99), keys=KEYS))
    with pytest.raises(
        InputError, match=r"small\.jsonl: expected 35 bytes, got 34; the file changed since the job was planned"
    ):
        list(read_records(TextPart(path=str(path), begin=0, end=34, expected_size=35), keys=KEYS))
    with pytest.raises(
        InputError, match=r"none\.jsonl: expected a file that can be read, got 'No such file or directory'"
    ):
        list(read_records(TextPart(path=str(tmp_path / "none.jsonl"), begin=0, end=1), keys=KEYS))
    with pytest.raises(InputError, match="expected a file that can be read, got 'Is a directory'"):
        list(read_records(TextPart(path=str(tmp_path), begin=0, end=1), keys=KEYS))


def test_empty_files_and_ranges_give_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b"")
    assert list(read_records(TextPart(path=str(path), begin=0, end=0, expected_size=0), keys=KEYS)) == []
    path.write_bytes(GOOD + b"\n")
    for begin, end in [(0, 0), (5, 5), (1, 35), (35, 35)]:
        assert list(read_records(TextPart(path=str(path), begin=begin, end=end), keys=KEYS)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"begin": 5}, "0 <= begin <= end, got \\[5, 4\\)"),
        ({"begin": -1}, "0 <= begin <= end"),
        ({"block_bytes": 0}, "at least 1 byte, got block_bytes=0"),
        ({"max_record_bytes": 0}, "max_record_bytes=0"),
        ({"keys": "text"}, "sequence of different keys, at least one, got 'text'"),
        ({"keys": []}, "at least one"),
        ({"keys": ["a", "a"]}, "different keys"),
    ],
)
def test_misuse_is_refused_at_once(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"begin": 0, "end": 4, "keys": KEYS, **change}
    part = TextPart(path="never opened", begin=options.pop("begin"), end=options.pop("end"))
    with pytest.raises(ValueError, match=message):
        read_records(part, **options)


def test_importing_the_reader_leaves_pyarrow_json_out() -> None:
    code = "import sys, dsindex.text.records; print('pyarrow.json' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_a_line_block_gives_lines_as_they_stand() -> None:
    block = in_memory(BOM + GOOD + b"\r\n" + GOOD)
    assert (block.line(0), block.text(0)) == (BOM + GOOD + b"\r", GOOD + b"\r")
    assert replace(block, offset=10).offsets().tolist() == [10, 49]
