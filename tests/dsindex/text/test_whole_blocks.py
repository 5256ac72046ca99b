"""Whole blocks give the records that their lines give one by one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from dsindex.text.fields import MAX_NESTING
from dsindex.text.record_lines import parse_lines
from dsindex.text.whole_blocks import SCAN_BYTES, parse_block
from tests.dsindex.text.nasty_lines import GOOD, GOOD_LIST, NASTY, around, contents
from tests.dsindex.text.readings import BOM, WANTED, as_reading, in_memory, reference

pytestmark = pytest.mark.usefixtures("either_way")


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
