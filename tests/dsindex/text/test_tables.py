"""Tables by their content: groups, columns, rows as lines of JSON."""

import datetime
import decimal
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.errors import InputError
from dsindex.text.forms import HEAD_BYTES, detect_table
from dsindex.text.records import parse_blocks
from dsindex.text.selection import select_keys
from dsindex.text.tables import batches
from dsindex.text.tables.batches import measure_table
from dsindex.text.tables.lines import json_values
from tests.dsindex.text.tables.readings import STORED, read_table_lines, write_table

TABLE = pa.table(
    {
        "n": pa.nulls(5),
        "vectors": pa.array([[0.5] * 100] * 5, pa.list_(pa.float32(), 100)),
        "view": pa.array(["a view of this text"] * 5, pa.string_view()),
        "kind": pa.array(["k"] * 5).dictionary_encode(),
        "meta": [{"text": "m" * 10, "id": 1}] * 5,
        "text": ["x" * 1000] * 5,
        "last": [1] * 5,
    }
)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("format", STORED)
def test_groups_have_their_rows_and_the_bytes_of_the_wanted_columns(format, compression, tmp_path):
    plain = {"use_dictionary": False, "write_statistics": False} if format == "parquet" else {}
    path = write_table(tmp_path / "table", TABLE, format, group_rows=2, compression=compression, **plain)

    groups = measure_table(path, format, {"text": ("text",)})

    assert [group.num_rows for group in groups] == [2, 2, 1]
    for group in groups:
        assert group.num_rows is not None
        room = (0, 200) if format == "parquet" else (600 * group.num_rows, 1000 * group.num_rows)
        assert 1000 * group.num_rows - room[0] <= group.text_bytes <= 1000 * group.num_rows + room[1]


def test_a_column_is_found_by_the_path_of_its_fields_or_by_a_name_with_dots(tmp_path):
    flat = pa.table({"meta.text": ["a"]})
    nested = write_table(tmp_path / "nested", TABLE, "parquet")
    path = write_table(tmp_path / "flat", flat, "parquet")

    for name in (nested, path):
        assert measure_table(name, "parquet", {"x": ("meta", "text")})[0].num_rows


@pytest.mark.parametrize(("fields", "message"), [
    (("nope",), r"expected the column 'x', got no such column; it has the columns n \(null\), "),
    (("meta", "nope"), "expected the column 'x', got no such column; "),
    (("last",), "expected a column of strings or of lists of strings at 'x', got int64; "),
    (("meta",), "expected a column of strings or of lists of strings at 'x', got struct<"),
    (("text", "x"), "expected a column of structs at 'text', to read 'x', got string; "),
])  # fmt: skip
@pytest.mark.parametrize("format", STORED)
def test_a_wrong_column_is_refused_with_those_that_there_are(format, fields, message, tmp_path):
    path = write_table(tmp_path / "table", TABLE, format)

    with pytest.raises(InputError, match=rf"table: {message}.*last \(int64\); choose with --json-keys$"):
        measure_table(path, format, {"x": fields})


def test_two_columns_of_the_wanted_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    path = write_table(tmp_path / "table", table, "arrow-file")

    with pytest.raises(InputError, match="expected the column 'text', got 2 columns of that name"):
        measure_table(path, "arrow-file", {"text": ("text",)})


def test_the_parts_of_a_file_share_its_footer_until_it_is_written_anew(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(batches, "_check_magic", opened.append)
    path = write_table(tmp_path / "table", TABLE, "parquet", group_rows=1)
    for _ in range(3):
        assert len(measure_table(path, "parquet", {"text": ("text",)})) == 5
    assert len(opened) == 1

    write_table(path, pa.concat_tables([TABLE, TABLE]), "parquet", group_rows=1)
    assert len(measure_table(path, "parquet", {"text": ("text",)})) == 10
    assert len(opened) == 2


def test_a_file_of_another_size_than_planned_is_refused(tmp_path):
    path = write_table(tmp_path / "table", TABLE, "parquet")

    with pytest.raises(InputError, match="expected 7 bytes, got"):
        measure_table(path, "parquet", {"text": ("text",)}, expected_size=7)


def test_arrow_files_with_padding_after_their_magic_are_read(tmp_path):
    path = write_table(tmp_path / "table", TABLE, "arrow-file", group_rows=2)
    content = (tmp_path / "table").read_bytes()
    (tmp_path / "table").write_bytes(content[:8] + bytes(56) + content[8:])
    assert [group.num_rows for group in measure_table(path, "arrow-file", {"text": ("text",)})] == [2, 2, 1]


SMALL = pa.table({"text": ["a", "b"]})


def content(format, table=SMALL):
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_file if format == "arrow-file" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("table", [SMALL, SMALL.slice(0, 0), pa.table({})], ids=["rows", "no rows", "no columns"])
@pytest.mark.parametrize("format", STORED)
def test_a_table_is_told_by_its_content_even_if_it_is_cut_off(format, table):
    data = content(format, table)

    assert detect_table(data[:HEAD_BYTES], data[-HEAD_BYTES:]) == format
    assert detect_table(data[:HEAD_BYTES], data[-30:-20]) == format


@pytest.mark.parametrize("data", [
    b"",
    b"{}",
    b'{"text": "a"}\n',
    b"PAR1 is the first word of this text\n",
    b"ARROW1 is another\n",
    "\ufeff{}".encode("utf-16"),
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x00\x00\x00\x00",
])  # fmt: skip
def test_what_is_no_table_is_none(data):
    assert detect_table(data[:HEAD_BYTES], data[-HEAD_BYTES:]) is None


def test_an_encrypted_parquet_file_is_recognised_to_be_refused_by_name():
    assert detect_table(b"PARE\x00\x01\x02\x03", b"\x00\x00\x00\x00PARE") == "parquet"


PAIRS = pa.array([[("a", 1)], None, [("b", None), ("c", 2)]], pa.map_(pa.string(), pa.int32()))


@pytest.mark.parametrize(("array", "expected"), [
    (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
    (pa.array([1.5, None], pa.float16()), [1.5, None]),
    (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None]),
    (pa.array([datetime.time(1, 2, 3)]), ["01:02:03.000000"]),
    (pa.array([1500, None], pa.duration("ms")), ["1500ms", None]),
    (pa.array([b"ab"], pa.binary(2)), ["YWI="]),
    (PAIRS, [{"a": 1}, None, {"b": None, "c": 2}]),
    (PAIRS.slice(1), [None, {"b": None, "c": 2}]),
    (PAIRS.slice(2), [{"b": None, "c": 2}]),
    (pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())), [[[1, "a"]]]),
    (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], None, [3, 4]]),
    (pa.array([[1, 2], None, []], pa.list_view(pa.int32())), [[1, 2], None, []]),
    (pa.array([{"a": [{"b": b"x"}]}, None]), [{"a": [{"b": "eA=="}]}, None]),
    (pa.array([{}, None], pa.struct([])), [{}, None]),
    (pa.array([b"x", None]).dictionary_encode(), ["eA==", None]),
    (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), ["a", "a", "b"]),
    (pa.array(['{"a": null}', "x", None], pa.json_()), [{"a": None}, "x", None]),
    (pa.array([{"a": 1, "b": None}, {"a": None, "b": [None]}]), [{"a": 1}, {"b": [None]}]),
], ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None)  # fmt: skip
def test_values_have_a_form_in_json(array, expected):
    assert json_values(array) == expected


TYPED = pa.table(
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
    path = write_table(tmp_path / "table", TYPED, format)

    lines, groups = read(path, 0, 2, format=format, block_bytes=block_bytes)

    assert [json.loads(line) for line in lines] == ROWS
    assert groups == [0, 0, 1]


@pytest.mark.parametrize("format", STORED)
def test_a_text_that_is_not_utf8_makes_its_line_bad_alone(format, tmp_path):
    texts = pa.array([b"good", b"\xff", b"fine"]).view(pa.string())
    path = write_table(tmp_path / "table", pa.table({"text": texts, "id": [1, 2, 3]}), format)

    lines = read_table_lines(path, 0, 2, format=format)
    found = list(parse_blocks(lines, select_keys(["text"]), None))

    assert [text for block in found for text in block.columns["text"].texts.to_pylist()] == ["good", "fine"]
    bad = [record for block in found for record in block.bad]
    assert [(record.offset, record.line) for record in bad] == [(0, 1)]
    assert "expected UTF-8, got byte 0xff" in bad[0].reason


@pytest.mark.parametrize("format", STORED)
def test_columns_of_one_name_are_refused_if_all_are_read(format, tmp_path):
    names = ["text", "", "", "text"]
    path = str(tmp_path / "table")
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
