"""`dsindex clean`: it shows and removes what a build left that nobody continues, and nothing else."""

import json

import pytest
import xxhash

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from dsindex.cli.main import main
from dsindex.json_text import encode_json
from tests.faults.corpus import write_corpus
from tests.support.golden import OWN
from tests.support.killed import run_until_killed


@pytest.fixture
def command(tmp_path):
    path = tmp_path / "text.jsonl"
    write_corpus(path, num_lines=100, broken={})
    command = ["build", "--input", str(path), "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    return [*command, "--executor", "local", "--shard-size", "6KiB", "--output-prefix"]


def test_killed_build_in_a_bucket(store, command, cli):
    run_until_killed([*command, "s3://out/x"], num_shards=3)
    store.objects["out/x.build/shards/0000/mine"] = b"mine"
    store.objects["out/x_text_document.bin"] = b"mine"
    upload = store.create_upload("out/x_text_document.idx", {})
    before = store.names("out")
    shown = cli(["clean", "s3://out/x"]).out
    assert "s3://out/x.build: an unfinished job, whose output is s3://out/x" in shown
    assert "nothing was removed: --yes removes it" in shown
    assert store.names("out") == before
    assert main(["clean", "s3://out/x.build", "--yes"]) == 0
    assert store.names("out") == ["x.build/dsindex-work-folder.json", "x.build/shards/0000/mine", "x_text_document.bin"]
    assert list(store.uploads) == [upload.upload_id]


def test_uploads_are_given_up(store, command, capsys):
    """Here the driver dies when all is assembled; its uploads cost money until somebody gives them up."""
    store.watch = lambda moment, operation, _: (
        store.objects.__setitem__("out/x_text_document.idx", b"mine")
        if (moment, operation) == ("done", "UploadPart")
        else None
    )
    assert main([*command, "s3://out/x"]) == 1  # something else has the name of its index by now
    assert "s3://out/x_text_document.idx: expected no change" in capsys.readouterr().err
    assert len(store.uploads) == 3
    assert main(["clean", "s3://out/x", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("unfinished upload: s3://out/x_text_document.") == 3
    assert not store.uploads
    assert store.names("out") == ["x_text_document.idx"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("place", ["s3://out/x", "s3://out/copy.build"], ids=["tampered", "copied"])
def test_uploads_of_others_are_not_given_up(place, store, command, cli):
    run_until_killed([*command, "s3://out/x"], num_shards=3)
    url = "s3://out/other.bin" if place == "s3://out/x" else "s3://out/x_text_document.bin"
    upload = store.create_upload(url.removeprefix("s3://"), {})
    body = encode_json({"kind": "uploading", "url": url, "others": []})
    line = xxhash.xxh3_64_hexdigest(body).encode() + b" " + body + b"\n"
    store.objects["out/x.build/ledger/00000099.jsonl"] = line
    for name, content in list(store.objects.items()):
        if name.startswith("out/x.build/"):
            store.objects[name.replace("x.build", "copy.build")] = content
    assert ("a copy of s3://out/x.build" in cli(["clean", place, "--yes"]).out) == ("copy" in place)
    assert upload.upload_id in store.uploads


@pytest.mark.parametrize("place", ["s3://out/x", "x"])
def test_running_build_is_refused(place, store, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    lock = {"host": "elsewhere", "boot": "b", "pid_namespace": "n", "pid": 7, "started": "5", "token": "t"}
    marker = {"format": "dsindex work folder 1", "id": "0123456789abcdef"}
    for name, content in (("owner.json", lock), ("dsindex-work-folder.json", marker)):
        store.objects[f"out/x.build/{name}"] = json.dumps(content).encode()
        (tmp_path / "x.build").mkdir(exist_ok=True)
        (tmp_path / "x.build" / name).write_text(json.dumps(content))
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    client.put_object(Bucket="out", Key="x.build/owner.json", Body=json.dumps(lock).encode())
    assert "another driver (process 7 on elsewhere) works on" in cli(["clean", place, "--yes"], 1).err
    assert (tmp_path / "x.build" / "owner.json").exists()
    assert "x.build/owner.json" in store.names("out")


def test_where_nothing_is_a_sentence_says_so(store, tmp_path, cli):
    for place in (str(tmp_path / "x"), "s3://out/x"):
        assert "expected a work folder of dsindex" in cli(["clean", place], 1).err
    assert store.names("out") == []
