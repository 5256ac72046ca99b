"""Parquet and Arrow: rows are read like the same rows as JSON; what is damaged, encrypted or something else is said."""

import base64
import datetime
import decimal
import errno
import gzip
import json
import os
import random
import re
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.store.read import open_readable
from dsindex.text.input_format import InputForm, detect_form
from dsindex.text.reader import TaskReader
from dsindex.text.records import parse_block
from dsindex.text.selection import open_selection
from dsindex.text.tables import json_values, measure_table
from tests.support.datasets import part_of, read_part
from tests.support.failing import fail_calls

STORED = ("parquet", "arrow-file", "arrow-stream")
TEXT = {"text": ("text",)}
TABLE = pa.table({
    "text": [f"text {number}é" * 3 for number in range(40)],
    "list": [["a", f"b{number}"] for number in range(40)],
    "kind": pa.array(["p", "q"] * 20).dictionary_encode(),
    "pair": pa.array([["x", "y"]] * 40, pa.list_(pa.string(), 2)),
})  # fmt: skip


def write_table(path, table, format, *, group_rows=2, compression=None):
    """Write a table with `group_rows` rows in a row group or record batch; return the path."""
    if format == "parquet":
        pq.write_table(table, path, row_group_size=group_rows, compression=compression or "none")
        return str(path)
    write = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if format == "arrow-file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=write) as writer:
        writer.write_table(table, max_chunksize=group_rows)
    return str(path)


def content(folder, table, format, **options):
    write_table(folder / "whole", table, format, **options)
    return (folder / "whole").read_bytes()


def measure(path, format, columns=None):
    return measure_table(part_of(path, form=InputForm(format=format)), columns)


def table_part(path, format):
    return part_of(path, end=len(measure(path, format)), form=InputForm(format=format))


def read_lines(path, format, block_bytes):
    blocks = TaskReader([table_part(path, format)]).lines(block_bytes=block_bytes, max_line_bytes=1 << 30)
    return (block for _, block in blocks)


def collect(blocks):
    """Texts by row, and the rows and reasons of bad records."""
    texts, bad, num_lines = {}, {}, 0
    for block in blocks:
        columns = [map(list, c.items_by_record()) for c in block.columns.values()]
        texts |= dict(zip(block.lines.tolist(), zip(*columns, strict=True), strict=True))
        bad |= {record.line: (record.reason, record.line_bytes) for record in block.bad_records}
        num_lines += block.num_lines
    return texts, bad, num_lines


def read(path, format, keys=("text",), **options):
    return collect(read_part(table_part(path, format), open_selection(keys), **options))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(["", "é" * 30, "a\0b", "\r\n", '"'])
STRINGS = st.none() | TEXTS
LISTS = st.none() | st.lists(st.none() | TEXTS, max_size=3)
ENCODED = pa.dictionary(pa.int32(), pa.string())
KINDS = [
    (pa.string(), STRINGS), (pa.large_string(), STRINGS), (pa.string_view(), STRINGS), (ENCODED, STRINGS),
    (pa.list_(pa.string()), LISTS), (pa.large_list(pa.large_string()), LISTS), (pa.list_(ENCODED), LISTS),
    (pa.list_(pa.string_view()), LISTS),
    (pa.list_(pa.string(), 2), st.none() | st.lists(TEXTS, min_size=2, max_size=2)),
    (pa.null(), st.none()),
]  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize("format", STORED)
@given(
    data=st.data(), group_rows=st.integers(1, 5), limit=st.sampled_from([1, 9, 40, 1 << 30]), block=st.integers(1, 60)
)
@settings(max_examples=60)
def test_rows_are_read_like_the_same_rows_in_json(data, group_rows, limit, block, format, tmp_path):
    kinds = [pair for pair in KINDS if not (format == "parquet" and "view" in str(pair[0]))]
    (kind, values), (inner_kind, inner_values) = data.draw(st.tuples(st.sampled_from(kinds), st.sampled_from(kinds)))
    rows = data.draw(st.lists(st.tuples(values, st.none() | inner_values), max_size=12))
    fields = [pa.field("n", pa.int64()), pa.field("text", inner_kind)]
    inner = pa.array([row[1] for row in rows], inner_kind)
    meta = pa.StructArray.from_arrays([pa.array(range(len(rows)), pa.int64()), inner], fields=fields)
    path = write_table(
        tmp_path / "table", pa.table({"text": pa.array([row[0] for row in rows], kind), "meta": meta}), format,
        group_rows=group_rows,
    )  # fmt: skip
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": row[0], "meta": {"text": row[1]}}) + "\n" for row in rows))
    keys = ["text", ".meta.text"]
    part = part_of(lines)
    texts, bad, _ = collect(read_part(part, open_selection(keys)))
    too_large = {number for number, row_texts in texts.items() if text_bytes(row_texts) > limit}

    table_texts, table_bad, num_lines = read(path, format, keys, max_record_bytes=limit, block_bytes=block)

    assert num_lines == len(rows)
    assert table_texts == {number: row_texts for number, row_texts in texts.items() if number not in too_large}
    assert table_bad.keys() == bad.keys() | too_large
    for number, (reason, _) in table_bad.items():
        size = text_bytes(texts[number]) if number in too_large else 0
        expected = f"record of {size} bytes is larger than the limit of {limit} bytes"
        assert reason == (expected if number in too_large else bad[number][0])


def text_bytes(columns):
    return sum(len(text.encode()) for column in columns for text in column)


@pytest.mark.quick(6)
@pytest.mark.parametrize("format", STORED)
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_binary(), pa.list_(pa.binary())], ids=str)
def test_binary_values_are_utf8_or_bad(format, kind, tmp_path):
    values = [b"good", b"\xff\n", "fine é".encode()]
    stored = pa.binary() if kind == pa.string() else kind
    array = pa.array([[value] for value in values] if pa.types.is_list(kind) else values, stored).view(kind)
    path = write_table(tmp_path / "table", pa.table({"text": array, "id": [1, 2, 3]}), format)
    assert read(path, format)[0] == {0: (["good"],), 2: (["fine é"],)}
    [(number, (reason, _))] = read(path, format)[1].items()
    assert (number, "a text that is not UTF-8" in reason) == (1, True)
    selection = open_selection(['x=.text | if type == "array" then .[0] else . end'])
    texts, bad, _ = collect(parse_block(block, selection, 1 << 30) for block in read_lines(path, format, 1))
    assert list(texts.values()) == [(["good"],), (["fine é"],)]
    expected = "not UTF-8" if kind == pa.string() else "is a number|with a number as item 1"
    assert [number for number, (reason, _) in bad.items() if re.search(expected, reason)] == [1]


def decoded(value):
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def shown_us(us):
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=us)
    return moment.isoformat().replace("+00:00", "Z")


LEAVES = [
    (pa.string(), st.text(max_size=3), lambda value: value),
    (pa.string_view(), st.text(max_size=3), lambda value: value),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("abc"), lambda value: value),
    (pa.binary(), st.binary(max_size=2), decoded),
    (pa.date32(), st.dates(), lambda value: value.isoformat()),
    (pa.timestamp("us"), st.datetimes(), lambda value: value.isoformat()),
    (pa.timestamp("ms", "UTC"), st.integers(0, 10**9), lambda ms: shown_us(1000 * ms)),
    (pa.decimal128(9, 2), st.integers(0, 999).map(lambda cents: decimal.Decimal(cents).scaleb(-2)), str),
    (pa.duration("ms"), st.integers(-9, 10**6), lambda ms: ms / 1000),
    (pa.timestamp("ns", "UTC"), st.integers(0, 10**9).map(lambda us: us * 1000), lambda ns: shown_us(ns // 1000)),
]  # fmt: skip


UUIDS = (pa.uuid(), st.uuids().map(lambda value: value.bytes), lambda value: str(uuid.UUID(bytes=value)))
"""pyarrow makes no lists of them from values of Python."""


def nested(inner):
    """Types that hold another, with their values and the form of these in JSON."""
    kind, values, form = inner
    lists = st.lists(st.none() | values, max_size=3)
    pairs = st.lists(st.tuples(st.sampled_from("xyz"), st.none() | values), max_size=3, unique_by=lambda pair: pair[0])

    def forms(items):
        return [item if item is None else form(item) for item in items]

    def row(value):
        return {key: form(field_value) for key, field_value in value.items() if field_value is not None}

    return st.sampled_from([
        (pa.list_(kind), lists, forms),
        (pa.large_list(kind), lists, forms),
        (pa.list_(kind, 2), st.lists(st.none() | values, min_size=2, max_size=2), forms),
        (pa.struct([("a", kind), ("b", kind)]), st.fixed_dictionaries({"a": st.none() | values, "b": values}), row),
        (pa.map_(pa.string(), kind), pairs, lambda mapping: {key: forms([item])[0] for key, item in mapping}),
    ])  # fmt: skip


@given(st.data())
@settings(max_examples=300)
def test_values_of_drawn_types_have_their_form_in_json(data):
    kinds = st.recursive(st.sampled_from(LEAVES), lambda inner: inner.flatmap(nested), max_leaves=3)
    kind, values, form = data.draw(kinds | st.just(UUIDS))
    rows = data.draw(st.lists(st.none() | values, max_size=5))
    begin = data.draw(st.integers(0, len(rows)))
    assert json_values(pa.array(rows, kind).slice(begin)) == [row if row is None else form(row) for row in rows[begin:]]


def test_dictionaries_of_views_are_decoded():
    words = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), pa.array(["a", "é"], pa.string_view()))
    assert json_values(words.slice(1)) == [None, "a"]


@pytest.mark.parametrize(("kind", "days", "shown"), [
    (pa.date32(), 2_932_897, "10000-01-01"), (pa.timestamp("us"), 2_932_897, "10000-01-01T00:00:00"),
    (pa.timestamp("s", "Europe/Berlin"), -719_529, "-0001-12-31T00:00:00Z"), (pa.date64(), 10**8, "275760-09-13"),
], ids=str)  # fmt: skip
def test_years_that_python_lacks_are_read(kind, days, shown):
    units = {"s": 86_400, "us": 86_400 * 10**6}.get(getattr(kind, "unit", ""), 86_400_000 if kind == pa.date64() else 1)
    array = pa.array([None, days * units, 0], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    assert json_values(array)[:2] == [None, shown]
    assert json_values(pa.StructArray.from_arrays([array], ["t"]))[1] == {"t": shown}


@pytest.mark.parametrize("format", STORED)
def test_token_ids_are_taken_from_lists(format, tmp_path):
    table = pa.table({"ids": [[1, 2], [], [100], None, [3]], "deep": [[[1], [2, 3]], [[4]], [], [[5]], [[100]]]})
    path = write_table(tmp_path / "table", table, format)
    for key, expected in (("ids", [1, 2, 3]), ("deep", [1, 2, 3, 4, 5])):
        selection = open_selection([key], vocabulary_size=100)
        blocks = list(read_part(table_part(path, format), selection))
        assert [token for block in blocks for ids in block.columns[key].items for token in ids] == expected
    assert "a list with 100 as item 1" in blocks[-1].bad_records[0].reason


SHARED_ROW = pa.array(["x" * 99] * 3000).dictionary_encode()


@pytest.mark.parametrize("column", [pa.nulls(3000), SHARED_ROW, pa.ListArray.from_arrays(range(3001), SHARED_ROW)])
def test_rows_that_share_bytes_are_read_in_small_blocks(column, tmp_path):
    path = write_table(tmp_path / "x", pa.table({"text": column}), "arrow-file", group_rows=3000)
    blocks = read_part(table_part(path, "arrow-file"), open_selection(["text"]), block_bytes=1 << 20)
    assert max(block.num_lines for block in blocks) <= 1024


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("format", STORED)
def test_a_table_with_damaged_bytes_is_read_or_refused(format, compression, tmp_path):
    """Whatever the offsets, sizes and pages claim: no crash, and every refusal names the file."""
    columns = TABLE.append_column("deep", pa.StructArray.from_arrays([TABLE["list"].combine_chunks()], ["x"]))
    data = content(tmp_path, columns, format, group_rows=15, compression=compression)
    path, chance, refused = tmp_path / "damaged", random.Random(7), 0
    keys = ["text", "list", "kind", "pair", ".deep.x"]
    for _ in range(int(os.environ.get("DAMAGED_TABLES", "40"))):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 3])):
            damaged[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        path.write_bytes(damaged)
        refused += refusal(str(path), format, keys).startswith(str(path))
    assert refused > 3


@pytest.mark.parametrize("kind", ["list", "struct", "dictionary", "another column"])
def test_offsets_are_checked_though_text_is_not_utf_8(kind, tmp_path):
    def array(kind, numbers, buffers, children=()):
        buffers = [None, pa.py_buffer(np.array(numbers, np.int32).tobytes()), *map(pa.py_buffer, buffers)]
        return pa.Array.from_buffers(kind, 2, buffers, children=children)

    text, wild = array(pa.string(), [0, 1, 2], [b"\xffa"]), array(pa.string(), [0, 10**9, 2], [b"ab"])
    columns = {
        "list": array(pa.list_(pa.string()), [0, 10**9, 2], [], [text]),
        "struct": pa.StructArray.from_arrays([text, wild], ["a", "b"]),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 10**9], pa.int32()), text, safe=False),
        "another column": wild,
    }
    path = write_table(tmp_path / "x", pa.table({"text": ["a", "b"], "wild": columns[kind]}), "arrow-stream")
    assert refusal(path, "arrow-stream", ["text"], where=".wild != null").startswith(path)
    assert refusal(path, "arrow-stream", ["text"]).startswith(path)


def refusal(path, format, keys, **options):
    try:
        list(read_part(table_part(path, format), open_selection(keys, **options)))
        if not options:
            list(read_lines(path, format, 1000))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("format", STORED)
def test_a_table_that_is_cut_off_is_told_by_its_content_and_refused(format, tmp_path):
    data = content(tmp_path, TABLE, format, group_rows=15)
    path = tmp_path / "cut"
    for size in [0, 3, 12, 100, len(data) - 20]:
        path.write_bytes(data[:size])
        with pytest.raises(InputError, match="cut: cannot be read as "):
            read(str(path), format)
    with open_readable(str(path)) as file:
        assert detect_form(file, shown_as="x.jsonl").format == format


@pytest.mark.parametrize("plain_footer", [True, False])
def test_encryption_is_named(plain_footer, tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        """Wraps keys in nothing."""

        def __init__(self, _config):
            super().__init__()

        def wrap_key(self, key, _master):
            return base64.b64encode(key).decode()

    factory = encryption.CryptoFactory(Keys)
    how = encryption.EncryptionConfiguration("footer", column_keys={"key": ["text"]}, plaintext_footer=plain_footer)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    path = str(tmp_path / "a.parquet")
    pq.write_table(TABLE.select(["text", "kind"]), path, encryption_properties=properties)
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read .*crypt.*\nhint: decrypt it into a new file"):
        measure(path, "parquet", TEXT)
    if plain_footer:
        assert len(measure(path, "parquet", {"kind": ("kind",)})) == 1


@pytest.mark.parametrize("format", [*STORED, "plain", "gzip"])
def test_an_input_is_read_again_after_three_errors_of_its_disk(format, tmp_path, monkeypatch):
    """Of pyarrow and of decompressors, too: the fourth error is the disk's, not a damaged file."""
    lines = b'{"text": "a"}\n' * 40
    path = tmp_path / "input"
    if format in STORED:
        part = table_part(write_table(path, TABLE, format), format)
    else:
        path.write_bytes(gzip.compress(lines) if format == "gzip" else lines)
        part = part_of(path, form=InputForm(container=format))
    fail_calls(monkeypatch, "preadv", errno.EIO, times=3)
    assert sum(len(block.offsets) for block in read_part(part, open_selection(["text"]))) == 40
    fail_calls(monkeypatch, "preadv", errno.EIO, times=4)
    with pytest.raises(InputError, match=r"input: cannot be read \(Input/output error\)") as caught:
        list(read_part(part, open_selection(["text"])))
    assert caught.value.transient


def test_columns_of_one_name_are_refused_if_all_are_read(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["text", "id", "text"])
    path = write_table(tmp_path / "table", table, "parquet")
    with pytest.raises(InputError, match="table: 2 columns have the name 'text'"):
        measure(path, "parquet")
    with pytest.raises(InputError, match="table: column 'text': there are 2 columns of that name"):
        measure(path, "parquet", TEXT)
