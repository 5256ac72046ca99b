"""Inputs in object stores: the same records, the same files, wherever the records are."""

import gzip
import json
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("obstore")

from dsindex.engine.input_paths import find_paths
from dsindex.engine.inputs import look_at_inputs
from dsindex.errors import InputError
from dsindex.functions import verify
from dsindex.options.build import BuildConfig
from tests.faults.corpus import write_corpus
from tests.support.compressed import COMPRESSORS
from tests.support.golden import OWN, ROOT
from tests.support.jobs import config_of, run_config
from tests.support.object_server import Fault
from tests.support.processes import wait_until

PUBLISHED = ("bin", "idx", "provenance.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same 300 records in every form."""
    folder = tmp_path_factory.mktemp("forms")
    plain = folder / "text.jsonl"
    write_corpus(plain, num_lines=300, broken={})
    for name, compress in COMPRESSORS.items():
        (folder / f"text.{name}").write_bytes(compress(plain.read_bytes()))
    rows = [json.loads(line) for line in plain.read_bytes().splitlines() if line.strip()]
    table = pa.table({"text": [row["text"] for row in rows], "title": [row["title"] for row in rows]})
    pq.write_table(table, folder / "rows.parquet", row_group_size=40)
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=50)
    with pa.ipc.new_stream(
        folder / "stream.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(table, max_chunksize=50)
    (folder / "lines.txt").write_bytes(b"".join(b"%d alpha beta\n" % line for line in range(200)))
    return folder


@pytest.fixture
def store(store, folder):
    """The store, with the records in the bucket `b`."""
    store.put("b", folder)
    return store


def build(source, out, **options):
    config = config_of(BuildConfig, source, append_eod=True, output_prefix=str(out / "x"), **options)
    return run_config(config)


def outputs(out):
    return {suffix: (out / f"x_text_document.{suffix}").read_bytes() for suffix in PUBLISHED}


def both(folder, tmp_path, name, **options):
    """What is published from the disk, and from the bucket in the given way."""
    kept = {key: value for key, value in options.items() if key == "input_format"}
    build(str(folder / name), tmp_path / "disk", **kept)
    build(f"s3://b/{name}", tmp_path / "bucket", **options)
    return outputs(tmp_path / "disk"), outputs(tmp_path / "bucket")


FORMS = [
    *("text.jsonl", "rows.parquet", "rows.arrow", "stream.arrow", "lines.txt"),
    *("text.one.gz", "text.blocks.gz", "text.frames.zst", "text.one.xz", "text.one.bz2"),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", FORMS)
def test_bucket_gives_the_files_of_the_disk(folder, store, tmp_path, name):
    wanted = "lines" if name.endswith(".txt") else "auto"
    disk, bucket = both(folder, tmp_path, name, shard_size="3KiB", input_format=wanted)
    assert bucket == disk
    assert store.count("GET") > 0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "way",
    [{"shard_size": "1KiB", "workers": 1}, {"workers": 3}, {"executor": "processes", "shard_size": "9KiB"}],
    ids=str,
)
def test_way_of_building_changes_nothing(folder, store, tmp_path, way):
    disk, bucket = both(folder, tmp_path, "text.jsonl", **way)
    assert bucket == disk
    assert not [request for request in store.requests if "list-type" in request]


@pytest.mark.quick(1)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
@pytest.mark.parametrize("name", ["text.jsonl", "rows.parquet"])
def test_ray_gives_the_same_from_a_server_that_only_the_driver_names(folder, store, tmp_path, monkeypatch, name):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")  # Ray's workers were started before with another environment
    store.signatures.clear()
    store.public.add("b")
    address = f"{store.url}/b/{name}"
    build(str(folder / name), tmp_path / "disk")
    build(address, tmp_path / "bucket", executor="ray", address="auto", shard_size="4KiB")
    assert outputs(tmp_path / "bucket") == outputs(tmp_path / "disk")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("source", "operation"),
    [("s3://b/", "ListObjectsV2"), ("s3://b/text.jsonl", "GetObject"), ("{}/b/text.jsonl", "GetObject")],
)
def test_build_that_waits_for_a_store_ends_at_a_signal(store, tmp_path, source, operation):
    store.public.add("b")
    store.faults.append(Fault(kind="hang", operation=operation, seconds=60))
    command = [sys.executable, "-m", "dsindex", "build", "--input", source.format(store.url)]
    command += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / "x")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: bool(store.requests))
        began = time.monotonic()
        process.terminate()
        _, said = process.communicate()
    assert process.returncode == 143
    assert "terminated" in said
    assert time.monotonic() - began < 20


def test_faults_on_the_way_change_nothing(folder, store, tmp_path):
    kinds = ("503", "reset", "500", "truncate", "429")
    store.faults += [Fault(kind=kind, match="text.jsonl", times=1) for kind in kinds]
    disk, bucket = both(folder, tmp_path, "text.jsonl", shard_size="4KiB")
    assert bucket == disk
    assert not any(fault.times for fault in store.faults)


@pytest.mark.parametrize(("pattern", "names"), [
    ("s3://b/d/*.jsonl", ["d/a.jsonl", "d/b c.jsonl"]),
    ("s3://b/d/[b]*", ["d/b c.jsonl"]),
    ("s3://b/**/*.jsonl", ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl"]),
    ("s3://b/d/", ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl"]),
    ("s3://b", ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl"]),
])  # fmt: skip
def test_patterns_and_folders_are_listed_once(store, pattern, names):
    store.page_size = 2
    others = ["d/.hidden.jsonl", "d/notes.md", "d/e/x.manifest.json"]
    store.objects = {f"b/{name}": b'{"text": "a"}\n' for name in [*names, *others]}
    store.objects |= {f"b/{name}": b"{}" for name in ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl"]}
    store.objects["b/d/"] = b""
    assert [file.path for file in look_at_inputs(find_paths([pattern]))] == [f"s3://b/{name}" for name in names]
    assert store.count("list-type") == len(store.requests)  # sizes and ETags come with the listing


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_other_clouds_are_read_and_listed(folder, store, tmp_path, monkeypatch, scheme):
    key = {"gcs_base_url": store.url, "disable_oauth": True}
    key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    for name in ("GOOGLE_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "AZURE_SKIP_SIGNATURE"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_ENDPOINT", f"{store.url}/account")
    store.public |= {"c", "account"}
    content = (folder / "text.jsonl").read_bytes()
    store.objects |= {"c/d/text.jsonl": content, "account/c/d/text.jsonl": content}
    build(f"{scheme}://c/d/*.jsonl", tmp_path / "bucket")
    build(str(folder / "text.jsonl"), tmp_path / "disk")
    assert outputs(tmp_path / "bucket") == outputs(tmp_path / "disk")


@pytest.mark.parametrize(("source", "words"), [
    ("s3://b/*.nothing", "expected at least one object to match"),
    ("s3://b/nothing/", "expected files with records"),
    ("s3://gone/", "there is no such bucket"),
    ("s3://b/empty.jsonl", "got an empty object"),
])  # fmt: skip
def test_what_is_not_there_is_a_sentence(store, source, words):
    store.objects["b/empty.jsonl"] = b""
    with pytest.raises(InputError, match=words):
        look_at_inputs(find_paths([source]))


def test_source_is_found_again(store, tmp_path):
    build("s3://b/text.jsonl", tmp_path)
    prefix = str(tmp_path / "x_text_document")
    assert verify(prefix, against_source=True, executor="local").is_whole
    store.objects["b/text.jsonl"] = b'{"text": "another"}\n'
    with pytest.raises(InputError, match=r"s3://b/text\.jsonl: expected the input of .* bytes .*, got another"):
        verify(prefix, against_source=True, executor="local")


def test_small_objects_share_shards(store, tmp_path):
    """Some are requested while others are parsed; a kept shard is used again by its objects' versions."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(90):
        text = b'{"text": "object %d"}\n' % number
        if number % 20 == 15:
            (source / f"{number:03d}.jsonl.gz").write_bytes(gzip.compress(text))
        else:
            (source / f"{number:03d}.jsonl").write_bytes(text)
    store.put("small", source)
    build(str(source), tmp_path / "disk")
    for _ in range(2):
        result = build("s3://small/", tmp_path / "bucket", keep_shards=True)
        assert result.run.shards == 33
        assert outputs(tmp_path / "bucket") == outputs(tmp_path / "disk")
        (tmp_path / "bucket" / "x_text_document.idx").unlink()
