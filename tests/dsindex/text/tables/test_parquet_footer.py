from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.text.tables.files import open_table
from dsindex.text.tables.parquet_footer import read_parquet_groups

if TYPE_CHECKING:
    from pathlib import Path

TABLE = pa.table(
    {
        "text": [f"a longer text, number {number}" for number in range(50)],
        "meta": [{"tags": ["x", None], "score": 0.5, "flag": True}] * 50,
        "map": pa.array([[("k", b"v")]] * 50, pa.map_(pa.string(), pa.binary())),
        "day": [datetime.date(2026, 1, 1)] * 50,
        **{f"column {number}": [number] * 50 for number in range(20)},
    }
).replace_schema_metadata({"key": "v" * 300, "other": ""})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"version": "1.0", "data_page_version": "2.0", "compression": "gzip", "use_dictionary": False},
        {"write_statistics": False, "store_schema": False, "compression": {"text": "brotli", "day": "none"}},
        {"write_page_index": True, "write_page_checksum": True, "sorting_columns": [pq.SortingColumn(3)]},
        {"column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "use_dictionary": False, "compression": "lz4"},
    ],
)
def test_the_footer_says_what_pyarrow_reads_in_it(options: dict[str, Any], tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(TABLE, path, row_group_size=20, **options)
    metadata = pq.ParquetFile(path).metadata
    leaves = range(metadata.num_columns)

    with open_table(path) as file:
        groups = read_parquet_groups(file, leaves)
        some = read_parquet_groups(file, [2, 5])

    assert [group.num_rows for group in groups] == [20, 20, 10]
    assert [list(group.columns) for group in some] == [[2, 5]] * 3
    for number, group in enumerate(groups):
        for leaf in leaves:
            column, expected = group.columns[leaf], metadata.row_group(number).column(leaf)
            assert column.codec_name.removesuffix("_RAW") == expected.compression
            assert column.num_values == expected.num_values
            assert column.uncompressed_bytes == expected.total_uncompressed_size
            assert column.has_dictionary == expected.has_dictionary_page
            assert column.is_all_dictionary == (expected.has_dictionary_page and expected.compression != "none")
            assert not column.is_encrypted


def test_a_column_whose_dictionary_became_too_large_is_not_all_dictionary(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"text": [f"{number}" * 100 for number in range(1000)], "kind": ["k"] * 1000}),
        path,
        dictionary_pagesize_limit=1000,
        write_batch_size=10,
    )

    with open_table(path) as file:
        (group,) = read_parquet_groups(file, [0, 1])

    assert [column.has_dictionary for column in group.columns.values()] == [True, True]
    assert [column.is_all_dictionary for column in group.columns.values()] == [False, True]
