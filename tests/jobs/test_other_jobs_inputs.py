"""`pack`, `instruct`, `plan` and `--check` read compressed inputs and tables as `build` does."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.api.verify import verify
from dsindex.cli.main import main
from dsindex.options.build import BuildConfig
from dsindex.options.pack import PackConfig
from dsindex.tools.estimate import run_plan
from tests.jobs.instruct.instruct_jobs import SPLIT_IN_PARTS, job
from tests.support.compressed import zstd_frames
from tests.support.conversations import CONVERSATIONS
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import published

RECORDS = [{"text": f"Record {number} " + "of many words " * (number % 9), "n": number} for number in range(300)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def write(folder, name):
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=40)
    else:
        path.write_bytes(
            {".gz": gzip.compress, ".zst": lambda text: zstd_frames(text, 999)}.get(path.suffix, bytes)(LINES)
        )
    return path


def pack(source, out, **options):
    out.mkdir()
    run_config(config_of(PackConfig, source, output=str(out / "x.pbin"), **options))
    return (out / "x.pbin").read_bytes()


@pytest.mark.quick(1)
@pytest.mark.parametrize("pattern", [".text", '.text + "!"'])
def test_pack_gives_the_same_file_of_every_container(tmp_path, pattern):
    expected = pack(write(tmp_path, "x.jsonl"), tmp_path / "expected", jq_pattern=pattern)
    for name in ("x.jsonl.gz", "x.jsonl.zst", "x.parquet"):
        source = write(tmp_path, name)
        assert pack(source, tmp_path / f"out-{name}", jq_pattern=pattern, shard_size="1KiB") == expected
        report = verify(tmp_path / f"out-{name}/x.pbin", against_source=True, tokenizer=OWN.plain_tokenizer)
        assert report, report.findings


@pytest.mark.quick(1)
@pytest.mark.parametrize("shard_size", ["2KiB", "64MiB"])
def test_instruct_gives_the_same_data_of_every_container(tmp_path, shard_size):
    lines = CONVERSATIONS.read_bytes().splitlines()[:80]
    records = [json.loads(line) for line in lines]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    (tmp_path / "x.zst").write_bytes(zstd_frames(b"\n".join(lines) + b"\n", 3000))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "x.parquet", row_group_size=9)
    found = {}
    for name in ("x.jsonl", "x.gz", "x.zst", "x.parquet"):
        options = {"input": (str(tmp_path / name),), "shard_size": shard_size, "export": ("sft",)}
        run_config(job(tmp_path / f"out-{name}" / "chat", **options), SPLIT_IN_PARTS)
        files = published(tmp_path / f"out-{name}")
        found[name] = {file: content for file, content in files.items() if file.endswith((".bin", ".idx"))}
        found[name] |= {path.name: path.read_bytes() for path in tmp_path.glob(f"out-{name}/chat_sft/*.jsonl")}
    assert {"train.jsonl", "chat_train_loss_mask.bin"} <= found["x.jsonl"].keys()
    for name, files in found.items():
        assert files == found["x.jsonl"], name


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "x.parquet"])
def test_plan_and_check_read_every_container(tmp_path, name, cli):
    source = write(tmp_path, name)
    options = ["--input", str(source), "--tokenizer-model", str(OWN.plain_tokenizer)]
    options += ["--output-prefix", str(tmp_path / "x"), "--executor", "local"]
    assert main(["plan", *options]) == 0
    assert "all is well" in cli(["build", "--check", *options]).out
    estimate = run_plan(config_of(BuildConfig, source, output_prefix=str(tmp_path / "x"), workers=1))
    assert estimate.documents == pytest.approx(len(RECORDS), rel=0.3)
