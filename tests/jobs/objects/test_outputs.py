"""Outputs and work folders in buckets have the bytes that they have on a disk."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from dsindex.options.merge import MergeConfig
from tests.faults.corpus import write_corpus
from tests.jobs.objects.object_builds import FILES, build, built, on_disk
from tests.support.compressed import COMPRESSORS
from tests.support.jobs import run_config


@pytest.mark.quick(2)
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    "options",
    [{}, {"shard_size": "3KiB", "workers": 1}, {"shard_size": None}, {"keep_shards": True}],
    ids=["8KiB", "3KiB", "one shard", "kept"],
)
def test_objects_are_the_files_of_a_disk(options, store, text, tmp_path):
    build(text, str(tmp_path / "x"))
    build(text, "s3://out/data/x", **options)
    assert built(store, "out/data/x") == on_disk(tmp_path / "x")
    left = store.names("out", "data/x.build")
    assert bool(left) == bool(options.get("keep_shards"))
    assert not store.uploads


@pytest.mark.exhaustive
def test_other_processes_write_the_same(store, text, tmp_path, monkeypatch):
    """Their way to the store travels in their tasks, and the credentials are in their environment."""
    build(text, str(tmp_path / "x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    build(text, "s3://out/x", executor="processes", endpoint_url=store.url)
    assert built(store, "out/x") == on_disk(tmp_path / "x")


@pytest.mark.usefixtures("small_ranges")
def test_either_may_be_on_a_disk(store, text, tmp_path):
    build(text, str(tmp_path / "x"))
    build(text, "s3://out/x", work_dir=str(tmp_path / "work"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert not (tmp_path / "work").exists()
    build(text, str(tmp_path / "y"), work_dir="s3://out/work")
    assert on_disk(tmp_path / "y") == on_disk(tmp_path / "x")
    assert not store.names("out", "work")


@pytest.mark.usefixtures("small_ranges")
def test_merge_of_files_becomes_an_object(store, text, tmp_path):
    for name in "ab":
        build(text, str(tmp_path / name))
    parts = tuple(str(tmp_path / f"{name}_text_document") for name in "ab")
    for prefix in (str(tmp_path / "all"), "s3://out/all"):
        run_config(MergeConfig(input=parts, output_prefix=prefix, executor="local"))
    for suffix in ("bin", "idx"):
        assert store.content(f"out/all.{suffix}") == (tmp_path / f"all.{suffix}").read_bytes()
    assert sorted(store.names("out")) == ["all.bin", "all.idx", "all.manifest.json"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["one.gz", "one.zst"])
def test_streams_are_unpacked_into_the_bucket(name, store, text, tmp_path):
    packed = tmp_path / f"text.jsonl.{name[4:]}"
    packed.write_bytes(COMPRESSORS[name](text.read_bytes()))
    build(packed, str(tmp_path / "x"))
    build(packed, "s3://out/x")
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert len(store.names("out")) == len(FILES) + 1


def test_empty_text_is_an_empty_object(store, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b'{"text": ""}\n')
    build(path, "s3://out/x", no_provenance=True)
    assert store.content("out/x_text_document.bin") == b""
    assert not store.uploads


def test_inputs_are_added_to_kept_shards(store, text, tmp_path):
    more = tmp_path / "more.jsonl"
    write_corpus(more, num_lines=50, broken={}, seed=9)
    build(text, "s3://out/x", keep_shards=True)
    shards = set(store.names("out", "x.build/shards/"))
    build(text, "s3://out/x", input=(str(text), str(more)), keep_shards=True)
    assert shards < set(store.names("out", "x.build/shards/"))
    build(text, str(tmp_path / "y"), input=(str(text), str(more)))
    assert built(store, "out/x") == on_disk(tmp_path / "y")


def test_requests_are_few_and_counted(store, text):
    report = build(text, "s3://out/x")
    shards = report.run.shards
    assert report.requests.puts == sum(
        store.operations[name]
        for name in (
            *("PutObject", "UploadPart", "CreateMultipartUpload", "CompleteMultipartUpload"),
            *("DeleteObjects", "AbortMultipartUpload"),
        )
    )
    assert store.operations["PutObject"] <= 3 * shards + 20
    assert report.requests.lists <= 30  # whatever the number of shards
