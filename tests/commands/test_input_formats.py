"""The same records in every format give the same data, in every job: JSON lines, tables, plain text."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.cli.render import describe
from dsindex.commands.api import verify
from dsindex.commands.build import estimate_build
from dsindex.errors import BadRecordError, InputError
from dsindex.formats.provenance import read_rows
from dsindex.options.build import BuildConfig
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import read_quarantine
from tests.text.test_tables import write_table

WORDS = 'naïve 水 \u2028 words, "quoted" '
RECORDS = [{"text": f"Record {n}: {WORDS * (n % 7)}", "title": f"T{n % 5}", "n": n} for n in range(500)]
RECORDS[17]["text"] = ""
RECORDS[18]["text"] = "two\nlines\r\nand a half"


def build(source, out, **options):
    defaults = {"json_keys": ("text", "title"), "append_eod": True, "output_prefix": str(out / "x")}
    out.mkdir(exist_ok=True)
    inputs = tuple(source) if isinstance(source, list) else source
    return run_config(config_of(BuildConfig, inputs, **{**defaults, **options}))


def data(out):
    return {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".bin", ".idx")}


TABLE = pa.Table.from_pylist(RECORDS)
ENCODED = TABLE.set_column(1, "title", TABLE["title"].dictionary_encode())
FORMATS = {
    "dictionary.parquet": (ENCODED, "parquet", 33), "parquet-by-content": (TABLE, "parquet", 60),
    "file.arrow": (TABLE, "arrow-file", 70), "stream.arrow": (TABLE, "arrow-stream", 41),
}  # fmt: skip
"""Name of a file → what it holds, its format and the rows of a group."""
WAYS = [{"shard_size": "1KiB", "workers": 3}, {"shard_size": "9KiB", "executor": "processes"}]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    build(path, path.parent / "out")
    return data(path.parent / "out")


@pytest.mark.parametrize(("name", "way"), [(name, WAYS[n % 2]) for n, name in enumerate(FORMATS)], ids=str)
def test_a_table_gives_the_data_of_its_rows_as_lines(expected, tmp_path, name, way):
    table, format, group_rows = FORMATS[name]
    write_table(tmp_path / name, table, format, group_rows=group_rows, compression="zstd")
    report = build(tmp_path / name, tmp_path / "out", **way)
    assert data(tmp_path / "out") == expected
    assert report.counts.lines == report.counts.kept == len(RECORDS)
    if way.get("shard_size") == "1KiB":
        assert report.run.shards > 3


def test_provenance_of_a_table_names_row_groups_and_rows(tmp_path):
    write_table(tmp_path / "x.parquet", TABLE, "parquet", group_rows=60)
    build(tmp_path / "x.parquet", tmp_path / "out", shard_size="1KiB")
    inputs, groups, rows = read_rows(str(tmp_path / "out/x_text_document.provenance.parquet"), 0, len(RECORDS))
    assert set(inputs.tolist()) == {0}
    assert groups.tolist() == [number // 60 for number in range(len(RECORDS))]
    assert rows.tolist() == list(range(1, len(RECORDS) + 1))
    report = verify(tmp_path / "out/x_text_document", against_source=True, tokenizer=OWN.plain_tokenizer)
    assert report, report.findings
    assert "against the source" in report.reports[0].checks[-1].name


def test_plain_text_has_a_document_per_line_or_per_file(tmp_path):
    texts = [text for record in RECORDS[:100] if (text := " ".join(record["text"].split()))]
    options = {"json_keys": ("text",), "shard_size": "9KiB"}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(tmp_path / "x.jsonl", tmp_path / "expected", **options)
    (tmp_path / "x.txt").write_bytes("\r\n\n".join(texts).encode())
    report = build(tmp_path / "x.txt", tmp_path / "lines", input_format="lines", **options)
    assert report.counts.blank == len(texts) - 1
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number:03d}.txt")
        files[-1].write_bytes(text.encode() if number % 2 else gzip.compress(text.encode()))
    build(list(map(str, files)), tmp_path / "files", input_format="document", **options)
    for name in ("lines", "files"):
        assert data(tmp_path / name) == data(tmp_path / "expected")
    report = verify(tmp_path / "lines/x_text_document", against_source=True, tokenizer=OWN.plain_tokenizer)
    assert report, report.findings


def test_bad_rows_are_set_aside_with_their_place(tmp_path):
    rows = [{"text": None if number == 23 else f"row {number}", "title": "t"} for number in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=10)
    with pytest.raises(BadRecordError, match=r"x\.parquet, row 24: the value .* is null, and has to be a string"):
        build(tmp_path / "x.parquet", tmp_path / "out", shard_size="1B")
    report = build(tmp_path / "x.parquet", tmp_path / "out", on_bad_record="quarantine", shard_size="1B", replace=True)
    assert (report.counts.kept, report.counts.quarantined) == (49, 1)
    assert "50 lines = 49 kept + 1 quarantined" in "\n".join(describe(report))
    [entry] = read_quarantine(tmp_path / "out/x_text_document")
    assert (entry["offset"], entry["line"]) == (2, 24)
    assert json.loads(entry["raw"]) == {"text": None, "title": "t"}


def test_a_table_is_estimated_and_a_column_that_is_missing_or_of_another_type_is_named(tmp_path):
    write_table(tmp_path / "x.parquet", TABLE, "parquet", group_rows=60)
    pq.write_table(pa.table({"text": [""] * 40}), tmp_path / "empty.parquet")
    for name, expected in (("x", len(RECORDS)), ("empty", 40)):
        config = config_of(BuildConfig, tmp_path / f"{name}.parquet", output_prefix=str(tmp_path / "x"))
        assert estimate_build(config).estimate.documents == pytest.approx(expected, rel=0.3)
    for key, message in (("body", r"x\.parquet: column 'body': .*\n.*text"), ("n", r"x\.parquet: column 'n': .*int64")):
        with pytest.raises(InputError, match=message):
            build(tmp_path / "x.parquet", tmp_path / "out", json_keys=(key,))
    assert not list((tmp_path / "out").iterdir())


def test_a_name_is_held_to_what_it_promises(tmp_path):
    (tmp_path / "x.parquet").write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match=r"x\.parquet: not JSON lines, Parquet or Arrow\nhint: unpack it"):
        build(tmp_path / "x.parquet", tmp_path / "out")
