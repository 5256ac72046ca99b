import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.text.tables import csv_rows
from tests.dsindex.text.tables.readings import collect, read_table_records

TEXT = {"text": ("text",)}


def read(path, format="csv", columns=TEXT, **options):
    return collect(read_table_records(str(path), 0, 1, format=format, columns=columns, **options))


def texts(reading):
    return [text for row in reading.texts for (text,) in row]


@pytest.fixture
def small_blocks(monkeypatch):
    """pyarrow's blocks are as small as rows, so that larger rows make it read again."""
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 24)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.sampled_from(
    ["", '"', "a,b", "a\nb", "\r\n", "NULL", "x" * 60]
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("format", ["csv", "tsv"])
@given(rows=st.lists(st.tuples(CELLS, CELLS.filter(bool)), max_size=10), bom=st.booleans(), line_end=st.booleans())
@settings(max_examples=60)
@pytest.mark.usefixtures("small_blocks")
def test_cells_are_read_as_they_were_written(rows, bom, line_end, format, tmp_path):
    written = io.StringIO(newline="")
    writer = csv.writer(written, delimiter=csv_rows.DELIMITERS[format], quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("id", "text", "é"), *(("1", *row) for row in rows)])
    content = written.getvalue() if line_end else written.getvalue().removesuffix("\n")
    (tmp_path / "a.csv").write_text("\ufeff" * bom + content, encoding="utf-8", newline="")

    found = read(tmp_path / "a.csv", format, {"é": ("é",), "text": ("text",)})

    assert found.texts == [([second], [first]) for first, second in rows]
    assert found.places == [(0, row) for row in range(len(rows))]


@pytest.mark.usefixtures("small_blocks")
def test_rows_with_a_wrong_number_of_cells_are_bad(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,a\n2\n\n3,"b\n",4\n4,\n,,\n' + b"5," + b"x" * 50 + b"\n6\n,,\n")

    found = read(tmp_path / "a.csv")

    assert texts(found) == ["a", "", "x" * 50]
    assert found.places == [(0, 0), (0, 3), (0, 5)]
    assert found.bad == [(0, 1), (0, 2), (0, 4), (0, 6), (0, 7)]
    assert found.lines == [b"2", b'3,"b\n",4', b",,", b"6", b",,"]
    assert found.reasons[:2] == [f"expected 2 cells, one for each column, got {number}" for number in (1, 3)]
    assert found.num_lines == 8


@pytest.mark.parametrize(("content", "place"), [
    (b"text,a\xe9\n", "line 1: expected UTF-8, got byte 0xe9"),
    ("text\n".encode("utf-16"), "line 1: expected UTF-8, got byte 0xff"),
    ("ü,text\n1,é\n".encode() + b"2,a\xffb\n3,c\n", "line 3: expected UTF-8, got byte 0xff"),
    (b"id,text\n" + b"1,a\n" * 500_000 + b'"\n",\xfc\n', "line 500003: expected UTF-8, got byte 0xfc"),
    (b"text\na\n\xc3", "line 3: expected UTF-8, got byte 0xc3"),
], ids=["header", "UTF-16", "cell", "later", "cut"])  # fmt: skip
def test_another_encoding_is_refused(content, place, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(InputError, match=f"a.csv, {place}; convert the text from its encoding, as in `iconv -f "):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize("content", [b'text\na\n"b\nc\nd\n', b'text\n"', b'text\na\n"b ""'])
def test_a_quote_that_is_left_open_is_an_error(content, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(InputError, match="got a quote that is still open at its end"):
        read(tmp_path / "a.csv")


def test_a_header_of_too_many_columns_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "MOST_COLUMNS", 3)
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf\ntext,"a,""b\n,c",d"e,\n'[:-2] + b"\n1,2,3\n,,,,\n")
    assert texts(read(tmp_path / "a.csv")) == ["1"]
    for header in (b"text,,,", b'text,"",b,"c'):
        (tmp_path / "a.csv").write_bytes(header + b"\n1,2,3,4\n")
        with pytest.raises(InputError, match=r"a.csv: expected at most 3 columns, got more in the header row; check"):
            read(tmp_path / "a.csv")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"a" * (1 << 17) + b"b\n", b"abc," * (1 << 18) + b"d\n1\n"])
def test_a_file_without_a_readable_header_is_refused(content, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(
        InputError, match=r"a.csv: expected a header row with the names of the columns, of at most 1 MiB, got"
    ):
        read(tmp_path / "a.csv")


def test_a_row_that_is_larger_than_the_largest_block_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(csv_rows, "_LARGEST_BLOCK_BYTES", 1 << 20)
    (tmp_path / "a.csv").write_bytes(b"text\na\n" + b"x" * (2 << 20) + b"\n")

    with pytest.raises(
        InputError, match="expected rows of at most 1 MiB, got a larger one after row 1; a quote may be"
    ):
        read(tmp_path / "a.csv")


def test_a_compressed_file_is_read_as_it_is_decoded(tmp_path):
    members = [b"id,te", b'xt\n1,"a', b'\nb"\n2,c\n']
    (tmp_path / "a.csv.gz").write_bytes(b"".join(map(gzip.compress, members)))

    found = read(tmp_path / "a.csv.gz", container="gzip")

    assert texts(found) == ["a\nb", "c"]


@pytest.mark.parametrize("num_bytes", [100, 3_000_000], ids=["in the header", "later"])
def test_a_compressed_file_that_is_cut_off_is_refused(num_bytes, tmp_path):
    rows = "".join(f"{number},{number * 7919 % 10007}\n" for number in range(1_000_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(f"id,text\n{rows}".encode(), 1)[:num_bytes])

    with pytest.raises(InputError, match=r"a.csv.gz: expected gzip data, but the member .* is cut off"):
        read(tmp_path / "a.csv.gz", container="gzip")


def test_line_ends_in_cells_are_kept_wherever_a_block_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 64)
    expected = ["é\r\n" * (number % 7) for number in range(100)]
    rows = "".join(f'"{text}"\r\n' for text in expected)
    (tmp_path / "a.csv").write_bytes(b"text\r\n" + rows.encode())

    assert texts(read(tmp_path / "a.csv")) == expected
