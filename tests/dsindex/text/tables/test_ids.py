from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from dsindex.errors import InputError
from dsindex.text.tables.ids import read_table_ids
from tests.dsindex.text.tables.readings import STORED, write_table

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [[1, 2], [], None, [2**32 - 1], [3, None], [-1], [2**32], [4, 5, 6]]


def read(path: str, begin: int, end: int, **options: Any) -> tuple[list[tuple[int, int, list[int]]], list[Any]]:
    records, bad = [], []
    for block in read_table_ids(path, begin, end, **options):
        assert block.num_lines == len(block.offsets) + len(block.bad)
        assert block.ids.dtype == np.uint32
        stops = [0, *np.cumsum(block.ids_per_record).tolist()]
        ids = [block.ids[first:end].tolist() for first, end in pairwise(stops)]
        records += list(zip(block.offsets.tolist(), block.lines.tolist(), ids, strict=True))
        bad += block.bad
    return records, bad


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())], ids=str)
@pytest.mark.parametrize("format", STORED)
def test_ids_are_those_of_the_rows(format: str, kind: pa.DataType, block_bytes: int, tmp_path: Path) -> None:
    inner = pa.array(ROWS, kind)
    table = pa.table({"id": range(8), "meta": pa.StructArray.from_arrays([inner], ["input_ids"])})
    path = write_table(tmp_path / "table", table, format, group_rows=3)

    records, bad = read(path, 0, 3, format=format, column=("meta", "input_ids"), block_bytes=block_bytes)

    assert records == [(0, 0, [1, 2]), (0, 1, []), (1, 3, [2**32 - 1]), (2, 7, [4, 5, 6])]
    assert [(record.offset, record.line) for record in bad] == [(0, 2), (1, 4), (1, 5), (2, 6)]
    found = [record.reason.rpartition(", got ")[2] for record in bad]
    assert found == ["null", "null as item 2", "-1 as item 1", "4294967296 as item 1"]
    assert bad[1].line_bytes == b'{"meta.input_ids":[3,null]}'
    assert read(path, 2, 3, format=format, column=("meta", "input_ids"))[0] == [(2, 1, [4, 5, 6])]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.uint16()], ids=str)
def test_any_integers_are_ids(kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"ids": pa.array([[1, 2], [3, 4]], pa.list_(kind, 2))})
    path = write_table(tmp_path / "table", table, "arrow-file")

    assert read(path, 0, 1, format="arrow-file", column=("ids",))[0] == [(0, 0, [1, 2]), (0, 1, [3, 4])]


def test_a_column_of_texts_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "table", pa.table({"text": ["a"]}), "parquet")

    with pytest.raises(InputError, match="expected a column of lists of integers at 'text', got string"):
        read(path, 0, 1, format="parquet", column=("text",))
