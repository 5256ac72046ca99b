"""What a job in a bucket refuses: what is not its own, another driver, and stores that are no use to it."""

import hashlib
import json
import subprocess
import sys

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from dsindex.cli.main import main
from dsindex.errors import OutputError, PlanError
from dsindex.store.clients import Blocks, StoreWriteError
from dsindex.store.uploads import abort_upload, begin_upload, complete_upload, write_part
from dsindex.store.urls import parse_url
from dsindex.store.writing import put_if_same
from tests.jobs.objects.object_builds import build, built
from tests.support.golden import OWN, ROOT
from tests.support.object_server import Handler, serving_objects
from tests.support.object_server_rules import Refusal


def test_same_command_again_does_nothing_and_another_is_refused(store, text):
    build(text, "s3://out/x")
    store.operations.clear()
    assert build(text, "s3://out/x").already_complete
    assert store.operations["PutObject"] == store.operations["UploadPart"] == 0
    with pytest.raises(PlanError, match=r"s3://out/x_text_document: finished output of another plan.*append-eod"):
        build(text, "s3://out/x", append_eod=False)
    before = built(store, "out/x")
    build(text, "s3://out/x", append_eod=False, replace=True)
    assert built(store, "out/x")["bin"] != before["bin"]


def test_object_of_somebody_else_is_not_replaced(store, text):
    store.objects["out/x_text_document.bin"] = b"mine"
    with pytest.raises(OutputError, match=r"s3://out/x_text_document.bin: exists already, and no manifest says"):
        build(text, "s3://out/x")
    store.objects["out/y.build/notes.txt"] = b"mine"
    with pytest.raises(PlanError, match=r"found s3://out/y.build/notes.txt and no dsindex-work-folder.json"):
        build(text, "s3://out/y")
    assert sorted(store.names("out")) == ["x_text_document.bin", "y.build/notes.txt"]


def test_object_that_appears_meanwhile_is_not_replaced(store, text):
    def put(moment, operation, _):
        if (moment, operation) == ("arrived", "UploadPart"):
            store.objects["out/x_text_document.idx"] = b"mine"

    store.watch = put
    with pytest.raises(OutputError, match=r"s3://out/x_text_document.idx: expected no change since this job began"):
        build(text, "s3://out/x")
    assert store.content("out/x_text_document.idx") == b"mine"
    assert "x_text_document.bin" not in store.names("out")


def test_objects_beside_those_of_the_job_stay(store, text):
    def put(moment, operation, _):
        if (moment, operation) == ("arrived", "CreateMultipartUpload"):
            store.objects["out/x.build/shards/0000/00000000.mine.bin"] = b"mine"

    store.watch = put
    other = store.create_upload("out/x_text_document.bin", {})
    build(text, "s3://out/x")
    assert store.content("out/x.build/shards/0000/00000000.mine.bin") == b"mine"
    assert set(store.uploads) == {other.upload_id}


LOCK = {"host": "elsewhere", "boot": "b", "pid_namespace": "n", "pid": 7, "started": "5", "token": "t"}


def test_second_driver_is_refused_until_the_lock_lapses(store, text):
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    client.put_object(Bucket="out", Key="x.build/owner.json", Body=json.dumps(LOCK).encode())
    with pytest.raises(PlanError, match=r"owner.json: another driver \(process 7 on elsewhere\) works on .*lapses in"):
        build(text, "s3://out/x")
    stored = store.find("out/x.build/owner.json")
    object.__setattr__(stored, "modified", stored.modified - 61)
    build(text, "s3://out/x")
    assert "x.build/owner.json" not in store.names("out")


def test_driver_whose_ledger_another_one_continues_ends(store, text):
    """As if its lock had lapsed: the next segment of its ledger is there already, by somebody else."""

    def continue_it(moment, operation, target):
        if (moment, operation) == ("arrived", "PutObject") and "/ledger/00000002.jsonl" in target:
            store.objects.setdefault("out/x.build/ledger/00000002.jsonl", b"of another driver")

    store.watch = continue_it
    with pytest.raises(PlanError, match=r"ledger/00000002.jsonl: .* another driver continues this job"):
        build(text, "s3://out/x")
    assert "x_text_document.idx" not in store.names("out")


@pytest.mark.usefixtures("store")
def test_store_that_ignores_conditions_is_refused(text, monkeypatch):
    class Careless(Handler):
        def carry_out(self):
            del self.headers["If-None-Match"]
            super().carry_out()

    with serving_objects(handler=Careless, buckets={"out"}) as careless:
        monkeypatch.setenv("AWS_ENDPOINT_URL", careless.url)
        for options in ({}, {"work_dir": str(text.parent / "work")}):
            with pytest.raises(PlanError, match=r"s3://out/x.*: expected a store with conditional writes"):
                build(text, "s3://out/x", **options)
        assert careless.names("out") == []


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("words", [
    ["build", "--input", "TEXT", "--output-prefix", "s3://out/x"],
    ["build", "--input", "s3://out/x.jsonl", "--output-prefix", "here"],
    ["clean", "s3://out/x"],
    ["verify", "s3://out/x"],
], ids=["build there", "build from there", "clean", "verify"])  # fmt: skip
def test_web_page_is_not_taken_for_a_store(words, text, monkeypatch, capsys):
    """As of the console that a store has at another port."""

    class Page(Handler):
        def carry_out(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            page = b"<html><body>Welcome!</body></html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page)

    tokenizer = ["--tokenizer-model", str(OWN.plain_tokenizer)] if words[0] == "build" else []
    with serving_objects(handler=Page, buckets={"out"}) as page:
        monkeypatch.setenv("AWS_ENDPOINT_URL", page.url)
        code = main([*(str(text) if word == "TEXT" else word for word in words), *tokenizer])
    assert code == 1
    said = capsys.readouterr().err
    assert "got another server; check --endpoint-url: a store's web console has another address" in said


class Ceph(Handler):
    """Differs from S3 as Ceph's radosgw 16 does."""

    def carry_out(self):
        if self.command == "PUT" and self.headers.get("If-Match", "").startswith('"'):
            self.headers.replace_header("If-Match", "what no object has")
        try:
            super().carry_out()
        except Refusal as refusal:
            if (self.operation, refusal.code) == ("ListParts", "NoSuchUpload"):
                raise Refusal(404, "NoSuchKey") from refusal
            raise


@pytest.mark.usefixtures("store")
def test_completed_upload_is_known_where_its_parts_are_called_a_missing_key(monkeypatch):
    """A driver that was killed after it had published an object could not be continued."""
    with serving_objects(handler=Ceph, buckets={"out"}) as ceph:
        monkeypatch.setenv("AWS_ENDPOINT_URL", ceph.url)
        url = parse_url("s3://out/x")
        upload = begin_upload(url)
        write_part(upload, 1, Blocks.of(b"part"), checked={})
        complete_upload(upload, size_bytes=4)
        complete_upload(upload, size_bytes=4)
        assert ceph.content("out/x") == b"part"
        given_up = begin_upload(url)
        abort_upload(given_up)
        with pytest.raises(StoreWriteError, match="the upload was given up by another run"):
            complete_upload(given_up, size_bytes=4)


@pytest.mark.usefixtures("store")
def test_store_that_wants_etags_without_quotation_marks_is_written_to(text, monkeypatch):
    """For the condition of a write: a dead driver's lock could be neither taken nor renewed."""
    with serving_objects(handler=Ceph, buckets={"out"}) as ceph:
        monkeypatch.setenv("AWS_ENDPOINT_URL", ceph.url)
        lock = parse_url("s3://out/x.build/owner.json")
        ceph.objects["out/x.build/owner.json"] = json.dumps(LOCK).encode()  # changed long ago, so it has lapsed
        etag = f'"{hashlib.md5(json.dumps(LOCK).encode(), usedforsecurity=False).hexdigest()}"'
        assert put_if_same(lock, b"{}", '"of another object"') is None
        before = ceph.find("out/x.build/owner.json").modified
        assert put_if_same(lock, json.dumps(LOCK).encode(), etag) == etag
        assert ceph.find("out/x.build/owner.json").modified > before
        ceph.objects["out/x.build/owner.json"] = json.dumps(LOCK).encode()
        build(text, "s3://out/x")
        assert "x.build/owner.json" not in ceph.names("out")


@pytest.mark.parametrize(("module", "extra", "source", "prefix"), [
    ("obstore", "objects", "s3://b/a.jsonl", "x"),
    ("boto3", "objects", "text.jsonl", "s3://out/x"),
    ("google.auth", "google", "text.jsonl", "gs://out/x"),
])  # fmt: skip
def test_without_its_library_a_sentence_says_what_to_install(module, extra, source, prefix, text):
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.path.insert(0, {str(ROOT)!r}); import dsindex.cli.main as m"
    )
    words = ["build", "--input", source, "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", prefix]
    command = [sys.executable, "-c", f"{program}; sys.exit(m.main(sys.argv[1:]))", *words, "--executor", "local"]
    ended = subprocess.run(command, cwd=text.parent, capture_output=True, text=True, check=False)
    assert (ended.returncode, f"pip install 'dsindex[{extra}]'" in ended.stderr) == (1, True), ended.stderr


@pytest.mark.parametrize(("flags", "said"), [
    (["--output-prefix", "az://out/x"], "the only object stores that are written to"),
    (["--output-prefix", "s3://out/"], "expected s3://BUCKET/KEY"),
    (["--output-prefix", "x", "--work-dir", "https://a.b/c"], "the only object stores that are written to"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused_when_options_are_read(flags, said, cli):
    assert said in cli(["build", "--input", "a.jsonl", "--tokenizer-model", "t", *flags], 2).err
