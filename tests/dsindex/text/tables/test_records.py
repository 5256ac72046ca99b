import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.text.forms import InputForm, TextPart
from dsindex.text.records import read_records
from dsindex.text.tables.batches import measure_table, read_rows
from tests.dsindex.text.tables.readings import STORED, collect, read_table_records, write_table

TEXT = {"text": ("text",)}


def read(path, format, columns=TEXT, **options):
    """Read a whole table."""
    groups = len(measure_table(path, format, columns))
    return collect(read_table_records(path, 0, groups, format=format, columns=columns, **options))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(["", "é" * 30, "a\0b", "\r\n", '"'])
STRINGS = st.none() | TEXTS
LISTS = st.none() | st.lists(st.none() | TEXTS, max_size=3)
PAIRS = st.none() | st.lists(st.none() | TEXTS, min_size=2, max_size=2)


def can_be_made(kind: pa.DataType) -> bool:
    try:
        return len(pa.array(["a"], kind)) == 1
    except pa.ArrowNotImplementedError:  # an old pyarrow
        return False


ENCODED = pa.dictionary(pa.int32(), pa.string())
KINDS = [
    (pa.string(), STRINGS),
    (pa.large_string(), STRINGS),
    (pa.string_view(), STRINGS),
    (ENCODED, STRINGS),
    *((kind, STRINGS) for kind in [pa.dictionary(pa.int8(), pa.large_string())] if can_be_made(kind)),
    (pa.list_(pa.string()), LISTS),
    (pa.large_list(pa.large_string()), LISTS),
    (pa.list_(ENCODED), LISTS),
    (pa.list_(pa.string_view()), LISTS),
    (pa.list_(pa.string(), 2), PAIRS),
    (pa.null(), st.none()),
]


@st.composite
def tables(draw, *, is_parquet):
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


def _array(values, kind, is_parquet):
    if not is_parquet and pa.types.is_dictionary(kind) and kind.index_type == pa.int32() and values:
        # With a null among the dictionary's values, and one that nothing uses.
        known = sorted({value for value in values if value is not None})
        indices = [len(known) if value is None else known.index(value) for value in values]
        return pa.DictionaryArray.from_arrays(
            pa.array(indices, pa.int32()), pa.array([*known, None, "unused"], kind.value_type)
        )
    return pa.array(values, kind)


@pytest.mark.quick(1)
@pytest.mark.parametrize("format", STORED)
@given(data=st.data(), group_rows=st.integers(1, 5), limit=st.none() | st.integers(1, 40), block=st.integers(1, 60))
@settings(max_examples=80)
def test_rows_are_read_like_the_same_rows_in_json(data, group_rows, limit, block, format, tmp_path):
    table, rows = data.draw(tables(is_parquet=format == "parquet"))
    path = write_table(tmp_path / "table", table, format, group_rows=group_rows)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    size = (tmp_path / "lines.jsonl").stat().st_size
    columns = {"text": ("text",), "meta.text": ("meta", "text")}
    lines = collect(read_records(TextPart(path=str(tmp_path / "lines.jsonl"), begin=0, end=size), keys=tuple(columns)))
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


def _text_bytes(values):
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return sum(len(text.encode()) for text in texts if text is not None)


@pytest.mark.parametrize("is_delta", [True, False])
def test_dictionaries_that_grow_or_change_in_a_stream_are_those_of_the_range(is_delta, tmp_path):
    words = [["a", "b"], ["a", "b", "c"] if is_delta else ["x", "y", "z"], ["a", "b", "c", "d"] if is_delta else ["q"]]
    kind = pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])
    path = str(tmp_path / "stream")
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=is_delta)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, kind, options=options) as writer:
        for known in words:
            indices = pa.array(range(len(known)), pa.int32())
            rows = [pa.DictionaryArray.from_arrays(indices, pa.array(known))]
            writer.write_batch(pa.RecordBatch.from_arrays(rows, schema=kind))

    for group, known in enumerate(words):
        found = collect(read_table_records(path, group, group + 1, format="arrow-stream", columns=TEXT))
        assert found.texts == [([word],) for word in known]


@pytest.mark.parametrize("format", STORED)
def test_indices_of_large_strings_are_decoded_a_block_at_a_time(format, tmp_path):
    words = pa.array(["x" * 100_000, "y" * 100_000])
    indices = pa.array([0, 1] * 5_000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(indices, words)})  # 1 GB, if decoded
    path = write_table(tmp_path / "table", table, format, group_rows=10_000)
    before = pa.total_allocated_bytes()

    num_rows = peak = 0
    for block in read_table_records(path, 0, 1, format=format, columns=TEXT):
        num_rows += block.num_lines
        assert block.columns["text"].texts.nbytes < 3 << 20
        peak = max(peak, pa.total_allocated_bytes() - before)

    assert num_rows == 10_000
    assert peak < 20 << 20


def test_dictionary_of_different_texts_is_made_a_few_times(tmp_path):
    """Writers look at a dictionary's size once in 1,024 rows, so that a smaller row group has all its texts in one."""
    texts = [f"{number} " * 1000 for number in range(1000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "table", write_statistics=False)
    part = TextPart(path=str(tmp_path / "table"), begin=0, end=1, form=InputForm(format="parquet"))

    batches = list(read_rows(part, TEXT, batch_bytes=1 << 20, purpose="texts"))
    assert [text for rows in batches for text in rows.columns["text"].to_pylist()] == texts
    assert len(batches) < 5


@pytest.mark.parametrize("format", STORED)
def test_texts_that_are_not_utf8_are_bad(format, tmp_path):
    texts = pa.array([b"good", b"a\xe9", b"\xed\xa0\x80", b"fine"]).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 4], pa.int32()), texts)
    path = write_table(tmp_path / "table", pa.table({"text": texts, "list": lists}), format)

    found = read(path, format)
    assert [text for ((text,),) in found.texts] == ["good", "fine"]
    assert found.places == [(0, 0), (1, 3)]
    assert found.bad == [(0, 1), (1, 2)]
    assert found.reasons[0] == (
        "expected UTF-8 under the column 'text', got byte 0xe9 at byte 2 of the text: unexpected end of data"
    )
    assert found.lines[0] == b'{"text":"a\\udce9"}'
    found = read(path, format, {"list": ("list",)})
    assert found.texts == [(["good"],), ([],), (["fine"],)]
    assert found.bad == [(1, 2)]


def test_the_head_of_a_row_that_is_too_large_is_kept(tmp_path):
    table = pa.table({"title": ["é" * 3], "text": [["é" * 1000, "b"]]})
    path = write_table(tmp_path / "table", table, "parquet")
    columns = {"title": ("title",), "text": ("text",)}
    whole = '{"title":"ééé","text":["' + "é" * 1000

    for limit in range(6, 60):
        found = read(path, "parquet", columns, max_record_bytes=limit)
        assert found.lines == [whole.encode()[:limit]]


@pytest.mark.parametrize("is_repeated", [True, False], ids=["one text", "different texts"])
def test_large_texts_behind_small_ones_are_read_a_few_at_a_time(is_repeated, tmp_path):
    large = [f"{0 if is_repeated else number:06}" + "x" * 200_000 for number in range(400)]  # 80 MB
    table = pa.table({"text": ["s"] * 2_000 + large})
    path = write_table(tmp_path / "table", table, "parquet", group_rows=20_000, compression="zstd", write_batch_size=16)
    del table
    before = pa.total_allocated_bytes()

    num_rows = peak = 0
    for block in read_table_records(path, 0, 1, format="parquet", columns=TEXT):
        num_rows += block.num_lines
        peak = max(peak, pa.total_allocated_bytes() - before)

    assert num_rows == 2_400
    assert peak < 40 << 20
