"""Packed data in buckets: the same bytes as on a disk, with a header that is known last."""

import json

import orjson
import pytest

from dsindex.cli.main import main
from dsindex.execution import local
from dsindex.jobs import pack as pbin_ends
from dsindex.options.pack import PackConfig
from tests.jobs.objects.conftest import make_ranges_small
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.object_server import Fault

FILES = ("pbin", "provenance.parquet")


def pack(source, output, **options):
    config = config_of(PackConfig, source, **{"output": output, "shard_size": "8KiB", **options})
    return run_config(config)


def packed(store, prefix):
    """The objects of packed data; of the manifest, the part under the one law."""
    found = {suffix: store.content(f"{prefix}.{suffix}") for suffix in FILES}
    return {**found, "content": orjson.dumps(json.loads(store.content(f"{prefix}.manifest.json"))["content"])}


def on_disk(prefix):
    found = {suffix: prefix.with_name(f"{prefix.name}.{suffix}").read_bytes() for suffix in FILES}
    manifest = json.loads(prefix.with_name(f"{prefix.name}.manifest.json").read_bytes())
    return {**found, "content": orjson.dumps(manifest["content"])}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the golden text becomes on a disk, in each version of the format."""
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patched:
        make_ranges_small(patched)
        for era in ("current", "2024-01-30"):
            pack(OWN.docs, str(folder / f"{era}.pbin"), pbin_era=era, shard_size=None)
    return {era: on_disk(folder / era) for era in ("current", "2024-01-30")}


@pytest.mark.quick(2)
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    "options",
    [{}, {"shard_size": "3KiB", "workers": 1}, {"shard_size": None}, {"pbin_era": "2024-01-30"}],
    ids=["8KiB", "3KiB", "one shard", "other byte order"],
)
def test_object_is_the_file_of_a_disk(options, store, expected, monkeypatch):
    monkeypatch.setattr(pbin_ends, "INDEX_FILE_BYTES", 1000)  # several pieces, and pieces within a part
    monkeypatch.setattr(local, "RECENT_BYTES", 0 if options else 1 << 20)  # what is held needs no request
    pack(OWN.docs, "s3://out/data/x.pbin", **options)
    assert packed(store, "out/data/x") == expected[options.get("pbin_era", "current")]
    assert sorted(store.names("out")) == ["data/x.manifest.json", "data/x.pbin", "data/x.provenance.parquet"]
    assert not store.uploads


@pytest.mark.usefixtures("small_ranges")
def test_parts_are_sent_before_the_header_is_known(store):
    order = []

    def note(moment, operation, target):
        if moment == "done" and operation == "UploadPart" and "x.pbin?" in target:
            order.append(target.partition("partNumber=")[2].partition("&")[0])
        if moment == "done" and operation == "PutObject" and target.endswith(".head"):
            order.append("header")

    store.watch = note
    pack(OWN.docs, "s3://out/x.pbin", workers=1)
    assert order.index("2") < order.index("header") < order.index("1")


@pytest.mark.usefixtures("small_ranges")
def test_either_may_be_on_a_disk(store, expected, tmp_path):
    pack(OWN.docs, "s3://out/x.pbin", work_dir=str(tmp_path / "work"))
    assert packed(store, "out/x") == expected["current"]
    assert not (tmp_path / "work").exists()
    pack(OWN.docs, str(tmp_path / "y.pbin"), work_dir="s3://out/work")
    assert on_disk(tmp_path / "y") == expected["current"]
    assert not store.names("out", "work")


@pytest.mark.parametrize(("flags", "said"), [
    (["--output", "az://out/x.pbin"], "--output: az://out/x.pbin: expected a path or an address of s3://"),
    (["--output", "s3://out/x"], "--output: expected the name of a .pbin file, got 's3://out/x'"),
    (["--output", "s3://out/.pbin"], "--output: expected the name of a .pbin file, got 's3://out/.pbin'"),
    (["--output", "s3://x.pbin"], "--output: s3://x.pbin/: expected s3://BUCKET/KEY"),
    (["--merge", "a.pbin", "--output", "s3://out/x.pbin"], "s3://out/x.pbin: expected a path for --output with"),
    (["--output", "x.pbin", "--work-dir", "https://a.b/c"], "--work-dir: https://a.b/c: expected a path or"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused_when_options_are_read(flags, said, cli):
    text = [] if "--merge" in flags else ["--input", "a.jsonl", "--tokenizer-model", "t"]
    shown = cli(["pack", *text, *flags], 2).err
    assert said in shown
    assert shown.count("expected") == 1


def test_refused_upload_is_one_sentence_and_cleaned_up(store, capsys):
    words = ["pack", "--input", str(OWN.docs), "--tokenizer-model", str(OWN.plain_tokenizer), "--executor", "local"]
    store.faults.append(Fault(kind="403", code="AccessDenied", operation="CompleteMultipartUpload", times=99))
    assert main([*words, "--output", "s3://out/x.pbin"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("dsindex pack: s3://out/x.")
    assert "cannot be written (403 AccessDenied); check what this node's credentials may write" in error
    assert store.uploads
    assert main(["clean", "s3://out/x.pbin", "--yes"]) == 0
    assert "s3://out/x.build: an unfinished job, whose output is s3://out/x.pbin" in capsys.readouterr().out
    assert not store.uploads
    assert not store.names("out")
