"""`dsindex plan`: what it says agrees with what a build then makes."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.cli.main import main
from dsindex.tools import estimate
from dsindex.tools.estimate import file_system, find_limits, find_place_limits, run_plan
from tests.support.golden import OWN
from tests.support.jobs import run_config


def test_plan_agrees_with_the_build_that_follows(make_config, tmp_path):
    """The sample of a small input is all of it, so the figures are exact."""
    config = make_config(json_keys=("text",), keep_shards=True)
    plan = run_plan(config)
    assert os.listdir(tmp_path) == []
    report = run_config(config)
    built = report.datasets[0]
    assert plan.num_shards == report.run.shards
    assert plan.documents == built.num_documents
    # EOD is counted for documents without tokens too, which get none.
    assert built.num_tokens <= plan.tokens <= built.num_tokens + built.num_documents
    assert plan.bin_bytes == pytest.approx(built.files["bin"].size_bytes, rel=0.01)
    assert plan.idx_bytes == pytest.approx(built.files["idx"].size_bytes, rel=0.05)
    shards = Path(f"{config.output_prefix}.build") / "shards"
    work = sum(path.stat().st_size for path in shards.rglob("*") if path.is_file())
    assert plan.work_bytes == pytest.approx(work, rel=0.1)
    assert plan.token_dtype == "uint16"
    assert plan.limits == ()


def test_sample_of_a_large_input_stands_for_the_whole(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "PIECE_BYTES", 4096)
    monkeypatch.setattr(estimate, "NUM_PIECES", 16)
    path = tmp_path / "large.jsonl"
    path.write_text("".join(f'{{"text": "word number {number} of many"}}\n' for number in range(30_000)))
    plan = run_plan(make_config(input=(str(path), str(OWN.docs)), shard_size="64KiB"))
    assert plan.sample.sampled_bytes <= 17 * 4096
    small = OWN.docs.read_bytes().count(b"\n")
    assert plan.documents == pytest.approx(30_000 + small, rel=0.15)
    assert plan.num_shards == -(-path.stat().st_size // 65536) + -(-OWN.docs.stat().st_size // 65536)


def test_time_and_memory_are_of_the_workers_asked_for(make_config):
    few, many = (
        run_plan(make_config(workers=2, shard_size="1KiB")),
        run_plan(make_config(workers=64, shard_size="1KiB")),
    )
    assert few.workers == 2
    assert many.memory_bytes - few.memory_bytes > (min(64, many.num_shards) - 2) * estimate.LOCAL_WORKER_BYTES * 0.99
    per_worker = many.encode_seconds * many.workers
    assert per_worker == pytest.approx(many.source.total_bytes / many.sample.bytes_per_second * many.sample.threads)


SMALL = {
    "documents": 1e6, "bin_bytes": 1e9, "longest_document": 10**6, "vocabulary_size": 50257, "num_shards": 1000,
    "wanted_shard_size": 64 << 20, "shard_size": 64 << 20,
}  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, []),
    ({"documents": 2.0**31}, ["document index is int32 and ends at 2,147,483,647"]),
    ({"documents": 2.0**31 - 1}, []),
    ({"longest_document": 2**31}, ["a document of 2,147,483,648 tokens: an .idx holds lengths as int32"]),
    ({"vocabulary_size": 65_500}, ["tokens take 4 bytes"]),
    ({"vocabulary_size": 65_499}, []),
    ({"bin_bytes": 20e12}, ["a .bin of 20.0 TB: a file on ext4 has at most 16 TiB"]),
    ({"bin_bytes": 60e12}, ["an S3 upload has at most 10,000 parts", "ext4"]),
    ({"shard_size": 128 << 20}, ["shards of 128 MiB instead of 64 MiB"]),
    ({"num_shards": 1_000_000}, ["1,000,000 shards, since no shard spans two inputs"]),
])  # fmt: skip
def test_limits_are_said_where_they_begin(changes, expected):
    limits = find_limits(**{**SMALL, **changes})
    assert len(limits) == len(expected)
    assert all(part in limit for part, limit in zip(expected, limits, strict=True))


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/x /mnt nfs4 rw,vers=4.2 0 0
/dev/vdb /mnt/fast\\040disk xfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/home/x", "ext4"), ("/mnt", "nfs4"), ("/mnt/a/b", "nfs4"), ("/mnt/fast disk/b", "xfs"), ("/mntx", "ext4")],
)
def test_file_system_is_that_of_the_longest_mount(folder, kind, tmp_path):
    table = tmp_path / "mounts"
    table.write_text(MOUNTS.replace("broken\n", ""))
    assert file_system(folder, mounts=str(table)) == kind
    assert file_system(folder, mounts=str(tmp_path / "none")) == ""


def test_network_storage_and_full_disks_are_limits(tmp_path, monkeypatch):
    table = tmp_path / "mounts"
    table.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(estimate, "free_bytes", lambda _folder: 15e9)
    needs = {str(tmp_path / "out"): 10e9, str(tmp_path / "work"): 6e9}
    first, second, third = find_place_limits(needs, mounts=str(table))
    assert first.startswith(f"{tmp_path}/out is on nfs4: ")
    assert second.startswith(f"{tmp_path}/work is on nfs4: ")
    assert third == f"{tmp_path}/out and {tmp_path}/work: about 16.00 GB are needed, 15.00 GB are free"


def test_command_takes_the_options_of_build_and_prints(make_config, tmp_path, cli):
    config = make_config()
    words = ["--input", *config.input, "--tokenizer-model", config.tokenizer_model, "--append-eod"]
    more = ["--epochs", "2", "--seq-length", "128", "--shard-size", "8KiB", "--workers", "3"]
    shown = cli(["plan", *words, *more, "--output-prefix", config.output_prefix]).out
    names = [line.split("  ")[0] for line in shown.splitlines()]
    assert names == [
        *["inputs", "sample", "shards", "documents", "tokens", "output", "work folder", "time", "memory", "limit"]
    ]
    assert "with 3 workers" in shown
    assert "none is near" in shown
    assert os.listdir(tmp_path) == []
    assert main(["plan", *words, "--output-prefix", "x", "--input", str(tmp_path / "none")]) == 1


def test_bad_records_of_the_sample_are_said(make_config, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\nbroken\n' * 10)
    plan = run_plan(make_config(input=(str(path),)))
    assert plan.sample.bad_records == 10
    assert "bad records  10 in the sample: see --on-bad-record" in "\n".join(plan.lines())
    assert "bad records" not in "\n".join(replace(plan, sample=replace(plan.sample, bad_records=0)).lines())


@pytest.mark.parametrize("form", ["gz", "zst", "parquet"])
def test_compressed_inputs_and_tables_are_counted_as_lines_are(form, make_config, tmp_path):
    rows = [{"text": f"number {number} " * (number // 20)} for number in range(1_000)]  # the last are the longest
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / f"in.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    else:
        path.write_bytes(gzip.compress(text) if form == "gz" else pa.compress(text, "zstd", asbytes=True))
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(text)
    of_lines, of_form = (run_plan(make_config(input=(str(each),))).estimate for each in (plain, path))
    assert (of_form.shown_documents, of_form.shown_tokens) == (of_lines.shown_documents, of_lines.shown_tokens)
    assert of_form.token_margin == 0
