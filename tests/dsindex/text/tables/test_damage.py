"""Tables that are cut off, damaged, encrypted, or that claim what is not so."""

import base64
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.errors import InputError
from dsindex.text.tables.batches import measure_table
from tests.dsindex.text.tables.readings import STORED, collect, read_table_lines, read_table_records, write_table

TEXT = {"text": ("text",)}
CODEC = b"\x19\x18\x04text\x15"
"""In a footer: the path of a column, then the header of the field with its codec."""
TABLE = pa.table(
    {
        "text": [f"text {number}é" * 3 for number in range(40)],
        "list": [["a", f"b{number}"] for number in range(40)],
        "kind": pa.array(["p", "q"] * 20).dictionary_encode(),
        "pair": pa.array([["x", "y"]] * 40, pa.list_(pa.string(), 2)),
    }
)
NESTED = pa.ListArray.from_arrays(range(41), pa.array(["y"] * 40, pa.large_string()).dictionary_encode())
VIEWS = TABLE.append_column("view", pa.array(["v" * number for number in range(40)], pa.string_view())).append_column(
    "nested", pa.StructArray.from_arrays([NESTED], ["x"])
)


def read_all(path, format, columns):
    """Measure a table and read its rows both ways."""
    groups = len(measure_table(path, format, columns))
    collect(read_table_records(path, 0, groups, format=format, columns=columns, max_record_bytes=1000))
    for _ in read_table_lines(path, 0, groups, format=format):
        pass


@pytest.mark.exhaustive
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("format", STORED)
def test_a_table_with_damaged_bytes_is_read_or_refused(format, compression, tmp_path):
    table = TABLE if format == "parquet" else VIEWS
    whole = write_table(tmp_path / "whole", table, format, group_rows=15, compression=compression)
    data = (tmp_path / "whole").read_bytes()
    columns = {name: (name,) for name in table.column_names if name != "nested"}
    if format != "parquet":
        columns["nested"] = ("nested", "x")
    read_all(whole, format, columns)
    chance = random.Random(7)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 3])):
            damaged[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        (tmp_path / "damaged").write_bytes(damaged)
        message = _refusal(str(tmp_path / "damaged"), format, columns)
        assert message is None or message.startswith(str(tmp_path / "damaged"))
        refused += message is not None
    assert refused > 10


def _refusal(path, format, columns):
    try:
        read_all(path, format, columns)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("format", STORED)
def test_a_table_that_is_cut_off_is_refused(format, tmp_path):
    write_table(tmp_path / "whole", TABLE, format, group_rows=15)
    data = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for size in [0, 1, 3, 4, 8, 12, 100, len(data) // 2, len(data) - 20, len(data) - 9, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(InputError, match="cut: expected "):
            read_all(str(path), format, TEXT)


def test_a_stream_may_end_without_a_mark(tmp_path):
    path = write_table(tmp_path / "table", TABLE, "arrow-stream", group_rows=15)
    os.truncate(path, os.path.getsize(path) - 8)

    assert [group.num_rows for group in measure_table(path, "arrow-stream", TEXT)] == [15, 15, 10]


def test_an_encrypted_footer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected a Parquet file without encryption, got an encrypted one; decrypt"):
        measure_table(_write_encrypted(tmp_path / "a.parquet", plain_footer=False), "parquet", TEXT)


def test_an_encrypted_column_is_refused_and_others_are_read(tmp_path):
    path = _write_encrypted(tmp_path / "a.parquet", plain_footer=True)

    for read in (measure_table, lambda *_: next(read_table_records(path, 0, 1, format="parquet", columns=TEXT))):
        with pytest.raises(InputError, match="expected the column 'text' without encryption; decrypt the file"):
            read(path, "parquet", TEXT)
    found = collect(read_table_records(path, 0, 1, format="parquet", columns={"kind": ("kind",)}))
    assert found.texts[:2] == [(["p"],), (["q"],)]


def _write_encrypted(path, *, plain_footer):
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
    pq.write_table(TABLE.select(["text", "kind"]), path, encryption_properties=properties)
    return str(path)


@pytest.mark.parametrize(("codec", "name"), [(3, "LZO"), (20, "")])
def test_a_codec_that_pyarrow_does_not_have_is_refused(codec, name, tmp_path):
    path = tmp_path / "a.parquet"
    write_table(path, TABLE.select(["text", "kind"]), "parquet", compression="zstd")
    data = path.read_bytes()
    path.write_bytes(data.replace(CODEC + bytes([2 * 6]), CODEC + bytes([2 * codec])))
    assert path.read_bytes() != data
    if not name and int(pa.__version__.partition(".")[0]) < 22:
        pytest.skip("pyarrow 21 takes an unknown codec for none, and refuses what it then reads")
    for read in (measure_table, lambda *_: next(read_table_records(str(path), 0, 1, format="parquet", columns=TEXT))):
        with pytest.raises(
            InputError, match=rf"expected the column 'text' in a codec that pyarrow .* reads, got another \(.*{name}"
        ):
            read(str(path), "parquet", TEXT)
    assert measure_table(str(path), "parquet", {"kind": ("kind",)})


def test_a_damaged_page_names_its_row_group(tmp_path):
    path = write_table(tmp_path / "a.parquet", TABLE, "parquet", group_rows=20, compression="zstd")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[60:100] = bytes(40)
    (tmp_path / "a.parquet").write_bytes(data)

    with pytest.raises(
        InputError, match=r"a.parquet: expected a Parquet file with a readable row group 0, got an error"
    ):
        collect(read_table_records(path, 0, 2, format="parquet", columns=TEXT))
    assert collect(read_table_records(path, 1, 2, format="parquet", columns=TEXT)).num_lines == 20


@pytest.mark.parametrize("format", STORED)
def test_a_range_behind_the_last_group_is_refused(format, tmp_path):
    path = write_table(tmp_path / "table", TABLE, format, group_rows=20)

    with pytest.raises(InputError, match=r"expected at least 3 (row groups|record batches), got 2; the file changed"):
        collect(read_table_records(path, 1, 3, format=format, columns=TEXT))


@pytest.mark.parametrize("format", STORED)
def test_a_file_that_changes_while_it_is_read_is_refused(format, tmp_path):
    path = str(tmp_path / "table")
    write_table(tmp_path / "table", TABLE, format, group_rows=20)
    blocks = read_table_records(path, 0, 1, format=format, columns=TEXT, block_bytes=1)

    next(blocks)
    os.utime(path, ns=(1, 1))

    with pytest.raises(InputError, match="the file changed while it was read"):
        collect(blocks)


def test_a_mapped_file_that_becomes_shorter_does_not_end_the_process(tmp_path):
    path = write_table(tmp_path / "table", pa.table({"text": ["x" * 10_000] * 20}), "arrow-stream", group_rows=1)
    blocks = read_table_records(path, 0, 20, format="arrow-stream", columns=TEXT, block_bytes=1)

    next(blocks)
    os.truncate(path, 5000)

    with pytest.raises(InputError, match="the file changed while it was read"):
        collect(blocks)


@pytest.mark.parametrize("format", STORED)
def test_a_file_whose_name_is_not_utf8_is_read(format, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    (tmp_path / "a").touch()
    write_table(tmp_path / "a", TABLE, format)
    os.replace(tmp_path / "a", path)

    groups = len(measure_table(path, format, TEXT))
    assert collect(read_table_records(path, 0, groups, format=format, columns=TEXT)).num_lines == 40
