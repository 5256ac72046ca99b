"""Plain conditions of `--where` keep the records that jq keeps, and find the same bad records."""

import datetime
import decimal
import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from dsindex.errors import InputError
from dsindex.text.conditions import parse_condition
from dsindex.text.selection import open_selection
from tests.support.datasets import part_of, read_part
from tests.text.readings import parse
from tests.text.test_tables import STORED, collect, table_part, write_table

PATHS = (".a", ".b", ".text", ".m.a", ".m.n.b", '."k k"', '.["a"]', '.m["a"]', ".tags", ".A")
CONSTANTS = (
    *("null", "true", "false", '""', '"en"', '"EN"', '"1"', '"é"', '"\U0001f600"', '"\uffee"', "0", "-0", "-0.0"),
    *("1", "1.0", "1e0", "10", "-1", "-1.5", "0.5", "0.50", "0.1", "0.10000000000000000555", "5e-1", "1E+2"),
    *("9007199254740992", "9007199254740993", "9007199254740993.0", "1" * 30, "1e999", "-1e999", "1e-999"),
)
TAME = (*CONSTANTS, r'"\u0065n"', r'"a\"b"', "[]", "{}", '["en"]', '{"a": "en"}')
WILD = (
    *("18446744073709551616", "1" * 400, "1." + "0" * 120, "1." + "0" * 120 + "1"),
    *("1e9999999999", "1e-9999999999", "1e99999999999999999999", '{"n": {"b": 1}}', '{"n": null, "a": false}'),
    *("NaN", "Infinity", r'"\ud800"', r'"\ud83d\ude00"', "01", "tru", '"\x01"', "[" * 300_000 + "]" * 300_000),
)


def draw_condition(rng, depth=0):
    """Draw a plain condition, or one that only jq can evaluate."""
    path, constant = rng.choice(PATHS), rng.choice(CONSTANTS)
    if depth < 3 and rng.random() < 0.4:
        inner = [draw_condition(rng, depth + 1) for _ in range(rng.choice((2, 2, 3)))]
        if rng.random() < 0.3:
            return f"({inner[0]} | not)"
        return rng.choice(("({})", "{}")).format(rng.choice((" and ", " or ", "\nand ", ")or(")).join(inner))
    constants = ",".join(rng.choices(CONSTANTS, k=rng.randrange(1, 4)))
    return rng.choice((
        *[f"{path} {rng.choice(('==', '!=', '<', '<=', '>', '>='))} {constant}"] * 6,
        f"{path}=={constant}", path, f"({path})", f'has("{rng.choice(("a", "m", "k k", "text"))}")',
        f"({path} | IN({constants}))", f"IN({path}; {constants})", f"({path}|not)", f"{path} | IN({constants})",
        f"{path} | not | not", f"{constant} == {path}", f"{path}[0] == {constant}", f"{path} == ({constants})",
        f'({path} | has("a"))',
    ))  # fmt: skip


def outcome(blocks):
    """The values of each record by line, and the reason of each bad record."""
    texts, bad, _ = collect(blocks)
    return texts, {line: reason for line, (reason, _) in bad.items()}


def draw_selection(rng):
    """Draw keys and a condition that jq accepts."""
    while True:
        try:
            keys = rng.choice((["text"], ["text", ".m.a"], ["text|b"], ["a"]))
            return open_selection(keys, where=draw_condition(rng))
        except InputError:  # its brackets do not match
            continue


def draw_line(rng, *, is_tame):
    """Draw a record; one that is not tame may be bad, or must be read line by line."""
    names = rng.sample(("a", "b", "k k", "tags", "x", r"\u0061", "a", *("m", "m") * (not is_tame)), rng.randrange(7))
    values = TAME if is_tame or rng.random() < 0.8 else WILD
    pairs = [(name, rng.choice(values)) for name in names]
    pairs += [("m", f'{{"a": {rng.choice(TAME)}, "n": {{"b": {rng.choice(values)}}}}}')] * (rng.random() < 0.7)
    texts = ('"some text"', '"a"', '["x", "y"]', *("null", "3", '"\\ud800"') * (not is_tame))
    pairs += [("text", rng.choice(texts))] * (is_tame or rng.random() < 0.9)
    rng.shuffle(pairs)
    return "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"


@pytest.mark.parametrize("seed", range(3))
def test_drawn_conditions_keep_the_lines_that_jq_keeps(seed):
    rng = random.Random(seed)
    num_plain = 0
    for _ in range(40):
        selection, is_tame = draw_selection(rng), rng.random() < 0.5
        lines = [draw_line(rng, is_tame=is_tame) for _ in range(rng.choice((1, 3, 60)))]
        num_plain += selection.condition is not None
        content = "\n".join(lines).encode()
        by_jq = outcome([parse(content, replace(selection, condition=None))])
        assert outcome([parse(content, selection)]) == by_jq, (selection.where, lines)
    assert num_plain > 15


TYPES = [
    (pa.string(), ("en", "EN", "", "é", None)),
    (pa.dictionary(pa.int8(), pa.string()), ("en", None, "1")),
    (pa.float64(), (0.1, 0.5, 1.0, -0.0, 0.1 + 2**-56, math.nan, math.inf, None, 1e300)),
    (pa.float32(), (0.1, 0.5, None)),
    (pa.int64(), (0, 1, 10, 2**53 + 1, None)),
    (pa.bool_(), (True, False, None)),
    (pa.null(), (None,)),
    (pa.binary(), (b"en", b"\xff", None)),
    (pa.decimal128(5, 2), (decimal.Decimal("0.50"), None)),
    (pa.date32(), (datetime.date(2026, 1, 1), None)),
    (pa.list_(pa.string()), ([], ["en"], None)),
    (pa.map_(pa.string(), pa.string()), ([("a", "en")], [], None)),
]
"""Types of columns, and their values."""


def draw_column(rng, num_rows):
    kind, values = rng.choice(TYPES)
    return pa.array(rng.choices(values, k=num_rows), kind)


@pytest.mark.parametrize("format", STORED)
def test_drawn_conditions_keep_the_rows_that_jq_keeps(format, tmp_path):
    rng = random.Random(format)
    for _ in range(30):
        num_rows = rng.choice((1, 4, 9))
        inner = pa.StructArray.from_arrays([draw_column(rng, num_rows)], names=["b"])
        mask = pa.array(rng.choices((False, False, True), k=num_rows))
        meta = pa.StructArray.from_arrays([draw_column(rng, num_rows), inner], names=["a", "n"], mask=mask)
        columns = {"text": pa.array([["x"], ["y", "z"], []] * 3).slice(0, num_rows), "m": meta} | {
            name: draw_column(rng, num_rows) for name in rng.sample(("a", "b", "k k", "tags", "m"), 3)
        }
        path = write_table(tmp_path / "table", pa.table(columns), format, group_rows=rng.choice((2, 9)))
        selection = open_selection(["text"], where=draw_condition(rng).replace(")or(", " or "))
        part = table_part(path, format)
        by_jq = outcome(read_part(part, replace(selection, condition=None)))
        assert outcome(read_part(part, selection)) == by_jq, (selection.where, columns)


def test_values_of_folders_are_compared(tmp_path):
    folder = tmp_path / "lang=en" / "n=7"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "a"}\n{"text": "b", "lang": "de"}\n{"text": "c", "lang": null}\n')
    write_table(folder / "a.parquet", pa.table({"text": ["a", "b"], "n": [7, None]}), "parquet")
    for where, lines, rows in (('.lang == "en"', 1, 2), (".n == 7", 3, 1), ('has("lang") and .n >= 7', 3, 1)):
        selection = open_selection(["text"], where=where)
        table = table_part(folder / "a.parquet", "parquet")
        for part, num_kept in ((part_of(folder / "a.jsonl"), lines), (table, rows)):
            values = outcome(read_part(part, selection))
            assert values == outcome(read_part(part, replace(selection, condition=None)))
            assert len(values[0]) == num_kept


@pytest.mark.parametrize("where", [
    ".text | length > 9", ".a[0] == 1", ".a?", ".a == .b", '.a == "\\u0041"', ".a == en", ".a // 1 == 1", ". == 1",
    "true", '.a | has("b")', '.a | IN("x") and .b', ".a ==", "(.a", ".a == 1 == true", "(" * 101 + ".a" + ")" * 101,
    '.a | test("x")', ".größe", "has(1)", "IN(.a; 1)", ".a | IN(1,)", ".a |", "1 == .a", ".a == [1]", ".a == (1, 2)",
    ".a -1 == 2", ".a = 1 | .a", "",
])  # fmt: skip
def test_every_other_expression_is_left_to_jq(where):
    assert parse_condition(where) is None


def test_an_assignment_is_refused():
    with pytest.raises(InputError, match=r"'\.a = 1': `=` assigns, and keeps every record\nhint: `==` compares"):
        open_selection(["text"], where=".a = 1")
