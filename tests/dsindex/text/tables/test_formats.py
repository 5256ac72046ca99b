import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.text.forms import HEAD_BYTES, detect_table
from tests.dsindex.text.tables.readings import STORED

TABLE = pa.table({"text": ["a", "b"]})


def content(format, table=TABLE):
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_file if format == "arrow-file" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("table", [TABLE, TABLE.slice(0, 0), pa.table({})], ids=["rows", "no rows", "no columns"])
@pytest.mark.parametrize("format", STORED)
def test_a_table_is_told_by_its_content_even_if_it_is_cut_off(format, table):
    data = content(format, table)

    assert detect_table(data[:HEAD_BYTES], data[-HEAD_BYTES:]) == format
    assert detect_table(data[:HEAD_BYTES], data[-30:-20]) == format


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"text": "a"}\n',
        b"PAR1 is the first word of this text\n",
        b"ARROW1 is another\n",
        "\ufeff{}".encode("utf-16"),
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
    ],
)
def test_what_is_no_table_is_none(data):
    assert detect_table(data[:HEAD_BYTES], data[-HEAD_BYTES:]) is None


def test_an_encrypted_parquet_file_is_recognised_to_be_refused_by_name():
    assert detect_table(b"PARE\x00\x01\x02\x03", b"\x00\x00\x00\x00PARE") == "parquet"
