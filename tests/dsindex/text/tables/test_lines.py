import datetime
import decimal
import json

import pyarrow as pa
import pytest

from dsindex.errors import InputError
from dsindex.text.forms import TextPart
from dsindex.text.records import parse_blocks
from dsindex.text.selection import select_keys
from tests.dsindex.text.tables.readings import STORED, read_table_lines, write_table

TABLE = pa.table(
    {
        "id": [1, 2, 3],
        "score": [0.5, float("nan"), None],
        "when": pa.array([datetime.datetime(2026, 1, 31, 12), None, None], pa.timestamp("us", "Europe/Berlin")),
        "day": pa.array([datetime.date(2026, 1, 31), None, None]),
        "price": pa.array([decimal.Decimal("1.50"), None, None]),
        "raw": pa.array([b"\xff\x00", b"", None]),
        "messages": [[{"role": "user", "content": "é\n"}], [], None],
        "kind": pa.array(["a", "a", None]).dictionary_encode(),
    }
)
ROWS = [
    {
        "id": 1,
        "score": 0.5,
        "when": "2026-01-31T12:00:00.000000Z",
        "day": "2026-01-31",
        "price": "1.50",
        "raw": "/wA=",
        "messages": [{"role": "user", "content": "é\n"}],
        "kind": "a",
    },
    {"id": 2, "score": None, "when": None, "day": None, "price": None, "raw": "", "messages": [], "kind": "a"},
    {"id": 3, **dict.fromkeys(["score", "when", "day", "price", "raw", "messages", "kind"])},
]


def read(path, begin, end, **options):
    """Return the lines of a range, and the group of each."""
    lines = []
    groups = []
    for block in read_table_lines(path, begin, end, **options):
        assert block.first_line == len(lines)
        assert block.line_sizes().tolist() == [len(block.text(number)) for number in range(len(block.starts))]
        assert block.num_bytes == block.ends[-1] + 1 == len(block.data)
        lines += [block.line(number) for number in range(len(block.starts))]
        groups += block.offsets().tolist()
    return lines, groups


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize("format", STORED)
def test_rows_are_lines_of_json_with_all_columns(format, block_bytes, tmp_path):
    path = write_table(tmp_path / "table", TABLE, format)

    lines, groups = read(path, 0, 2, format=format, block_bytes=block_bytes)

    assert [json.loads(line) for line in lines] == ROWS
    assert groups == [0, 0, 1]


@pytest.mark.parametrize("format", STORED)
def test_a_range_has_its_groups_and_the_wanted_columns_alone(format, tmp_path):
    path = write_table(tmp_path / "table", TABLE, format, group_rows=1)

    lines, groups = read(path, 1, 2, format=format, columns={"kind": ("kind",), "n": ("id",)})

    assert lines == [b'{"kind":"a","n":2}']
    assert groups == [1]


@pytest.mark.parametrize("format", STORED)
def test_a_text_that_is_not_utf8_makes_its_line_bad_alone(format, tmp_path):
    texts = pa.array([b"good", b"\xff", b"fine"]).view(pa.string())
    path = write_table(tmp_path / "table", pa.table({"text": texts, "id": [1, 2, 3]}), format)

    lines = read_table_lines(path, 0, 2, format=format)
    found = list(parse_blocks(lines, select_keys(["text"]), TextPart(path=path, begin=0, end=2), None))

    assert [text for block in found for text in block.columns["text"].texts.to_pylist()] == ["good", "fine"]
    bad = [record for block in found for record in block.bad]
    assert [(record.offset, record.line) for record in bad] == [(0, 1)]
    assert "expected UTF-8, got byte 0xff" in bad[0].reason


def test_csv_rows_are_objects_of_strings_and_wrong_rows_are_no_json(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"a\nb"\n{}\n2,\n')

    lines, groups = read(str(tmp_path / "a.csv"), 0, 1, format="csv")

    assert lines == [
        b'{"id":"1","text":"a\\nb"}',
        b'expected 2 cells, one for each column, got 1: "{}"',
        b'{"id":"2","text":""}',
    ]
    assert groups == [0, 0, 0]


@pytest.mark.parametrize("format", [*STORED, "csv"])
def test_columns_of_one_name_are_refused_if_all_are_read(format, tmp_path):
    names = ["text", "", "", "text"]
    path = str(tmp_path / "table")
    if format == "csv":
        (tmp_path / "table").write_text(f"{','.join(names)}\na,b,c,d\n")
    else:
        write_table(tmp_path / "table", pa.Table.from_arrays([pa.array(["a"])] * 4, names=names), format)

    with pytest.raises(
        InputError, match="table: expected columns of different names, got 2 of the name 'text'; rename"
    ):
        read(path, 0, 1, format=format)


def test_fields_of_one_name_in_a_struct_are_refused(tmp_path):
    struct = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    path = write_table(
        tmp_path / "table", pa.table({"id": [1], "pairs": pa.ListArray.from_arrays([0, 1], struct)}), "arrow-file"
    )

    with pytest.raises(InputError, match="got 2 of the name 'x'; rename them"):
        read(path, 0, 1, format="arrow-file")


def test_a_type_without_a_form_in_json_is_refused(tmp_path):
    table = pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    path = write_table(tmp_path / "table", table, "arrow-file")

    with pytest.raises(
        InputError, match=r"table: expected a table with values that JSON can store in row group 0, got"
    ):
        read(path, 0, 1, format="arrow-file")
