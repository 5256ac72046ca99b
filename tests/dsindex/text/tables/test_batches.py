import pyarrow as pa
import pytest

from dsindex.errors import InputError
from dsindex.text.tables.batches import measure_table
from tests.dsindex.text.tables.readings import STORED, write_table

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


@pytest.mark.parametrize("format", STORED)
def test_a_table_without_rows_has_no_text(format, tmp_path):
    path = write_table(tmp_path / "table", TABLE.slice(0, 0), format)

    assert sum(group.text_bytes for group in measure_table(path, format, {"text": ("text",)})) < 100


def test_a_column_is_found_by_the_path_of_its_fields_or_by_a_name_with_dots(tmp_path):
    flat = pa.table({"meta.text": ["a"]})
    nested = write_table(tmp_path / "nested", TABLE, "parquet")
    path = write_table(tmp_path / "flat", flat, "parquet")

    for name in (nested, path):
        assert measure_table(name, "parquet", {"x": ("meta", "text")})[0].num_rows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("nope",), r"expected the column 'x', got no such column; it has the columns n \(null\), "),
        (("meta", "nope"), "expected the column 'x', got no such column; "),
        (("last",), "expected a column of strings or of lists of strings at 'x', got int64; "),
        (("meta",), "expected a column of strings or of lists of strings at 'x', got struct<"),
        (("text", "x"), "expected a column of structs at 'text', to read 'x', got string; "),
    ],
)
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


def test_csv_is_one_group_of_unknown_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,a\n")

    (group,) = measure_table(str(path), "csv", {"text": ("text",)})

    assert (group.num_rows, group.text_bytes) == (None, 12)
    with pytest.raises(
        InputError, match=r"expected the column 'x', got no such column; it has the columns id .*, text"
    ):
        measure_table(str(path), "csv", {"x": ("x",)})


def test_a_file_of_another_size_than_planned_is_refused(tmp_path):
    path = write_table(tmp_path / "table", TABLE, "parquet")

    with pytest.raises(InputError, match="expected 7 bytes, got"):
        measure_table(path, "parquet", {"text": ("text",)}, expected_size=7)


def test_arrow_files_with_padding_after_their_magic_are_read(tmp_path):
    path = write_table(tmp_path / "table", TABLE, "arrow-file", group_rows=2)
    content = (tmp_path / "table").read_bytes()
    (tmp_path / "table").write_bytes(content[:8] + bytes(56) + content[8:])
    assert [group.num_rows for group in measure_table(path, "arrow-file", {"text": ("text",)})] == [2, 2, 1]
