from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsindex.text.records import read_records
from dsindex.text.tables.records import read_table_records
from dsindex.text.tables.shapes import measure_table
from tests.dsindex.text.tables.readings import STORED, Reading, collect, write_table

if TYPE_CHECKING:
    from pathlib import Path

TEXT = {"text": ("text",)}


def read(path: str, format: str, columns: dict[str, tuple[str, ...]] = TEXT, **options: Any) -> Reading:
    """Read a whole table."""
    groups = len(measure_table(path, format, columns).groups)
    return collect(read_table_records(path, 0, groups, format=format, columns=columns, **options))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(["", "é" * 30, "a\0b", "\r\n", '"'])
STRINGS = st.none() | TEXTS
LISTS = st.none() | st.lists(st.none() | TEXTS, max_size=3)
PAIRS = st.none() | st.lists(st.none() | TEXTS, min_size=2, max_size=2)
ENCODED = pa.dictionary(pa.int32(), pa.string())
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), STRINGS),
    (pa.large_string(), STRINGS),
    (pa.string_view(), STRINGS),
    (ENCODED, STRINGS),
    (pa.dictionary(pa.int8(), pa.large_string()), STRINGS),
    (pa.list_(pa.string()), LISTS),
    (pa.large_list(pa.large_string()), LISTS),
    (pa.list_(ENCODED), LISTS),
    (pa.list_(pa.string_view()), LISTS),
    (pa.list_(pa.string(), 2), PAIRS),
    (pa.null(), st.none()),
]


@st.composite
def tables(draw: st.DrawFn, *, is_parquet: bool) -> tuple[pa.Table, list[dict[str, Any]]]:
    """A table of a plain column and one in a struct, sliced and in chunks, and its rows."""
    # pyarrow writes neither views nor nulls in dictionaries to Parquet.
    kinds = [pair for pair in KINDS if not (is_parquet and "view" in str(pair[0]))]
    kind, values = draw(st.sampled_from(kinds))
    inner_kind, inner_values = draw(st.sampled_from(kinds))
    rows = draw(st.lists(st.tuples(values, st.none() | st.tuples(inner_values)), max_size=12))
    texts = _array([row[0] for row in rows], kind, is_parquet)
    inner = _array([None if row[1] is None else row[1][0] for row in rows], inner_kind, is_parquet)
    is_null = pa.array([row[1] is None for row in rows], pa.bool_())
    other = pa.array(range(len(rows)), pa.int64())
    fields = [pa.field("n", pa.int64()), pa.field("text", inner_kind)]
    meta = pa.StructArray.from_arrays([other, inner], fields=fields, mask=is_null)
    whole = pa.table({"id": other, "text": texts, "meta": meta})
    begin = draw(st.integers(0, len(rows)))
    cut = draw(st.integers(begin, len(rows)))
    chunks = pa.concat_tables([whole.slice(begin, cut - begin), whole.slice(cut)])
    plain = [{"text": row[0], "meta.text": None if row[1] is None else row[1][0]} for row in rows]
    return chunks, plain[begin:]


def _array(values: list[Any], kind: pa.DataType, is_parquet: bool) -> pa.Array:
    if not is_parquet and pa.types.is_dictionary(kind) and kind.index_type == pa.int32() and values:
        # With a null among the dictionary's values, and one that nothing uses.
        known = sorted({value for value in values if value is not None})
        indices = [len(known) if value is None else known.index(value) for value in values]
        return pa.DictionaryArray.from_arrays(
            pa.array(indices, pa.int32()), pa.array([*known, None, "unused"], kind.value_type)
        )
    return pa.array(values, kind)


@pytest.mark.parametrize("format", STORED)
@given(data=st.data(), group_rows=st.integers(1, 5), limit=st.none() | st.integers(1, 40), block=st.integers(1, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=80)
def test_rows_are_read_like_the_same_rows_in_json(
    data: st.DataObject,
    group_rows: int,
    limit: int | None,
    block: int,
    format: str,
    tmp_path: Path,
) -> None:
    table, rows = data.draw(tables(is_parquet=format == "parquet"))
    path = write_table(tmp_path / "table", table, format, group_rows=group_rows)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    size = (tmp_path / "lines.jsonl").stat().st_size
    columns = {"text": ("text",), "meta.text": ("meta", "text")}
    lines = collect(read_records(str(tmp_path / "lines.jsonl"), 0, size, keys=tuple(columns)))
    texts = dict(zip((row for _, row in lines.places), lines.texts, strict=True))
    too_large = {number for number, row in enumerate(rows) if limit is not None and _text_bytes(row.values()) > limit}

    found = read(path, format, columns, max_record_bytes=limit, block_bytes=block)

    assert found.num_lines == len(rows)
    assert found.texts == [texts[number] for number in texts if number not in too_large]
    assert [row for _, row in found.places] == [number for number in texts if number not in too_large]
    expected = {number: reason for (_, number), reason in zip(lines.bad, lines.reasons, strict=True)}
    for (_, number), reason, line in zip(found.bad, found.reasons, found.lines, strict=True):
        if number in too_large:
            assert (
                reason
                == f"record of {_text_bytes(rows[number].values())} bytes is larger than the limit of {limit} bytes"
            )
        else:
            assert reason == expected[number].replace("under the key", "under the column")
        stored = json.dumps(rows[number], ensure_ascii=False, separators=(",", ":")).encode()
        assert limit is not None or json.loads(line) == json.loads(stored)
        assert limit is None or len(line) <= limit


def _text_bytes(values: Any) -> int:
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return sum(len(text.encode()) for text in texts if text is not None)
