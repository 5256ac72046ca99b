"""Stores, disks and credentials that fail while a job writes to a bucket, and secrets that show up nowhere."""

import errno
import os
import subprocess
import sys
import tempfile

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from dsindex.engine.shards import attempt as held_file
from dsindex.errors import DsindexError, OutputError
from dsindex.store.requests import gate_of
from dsindex.store.urls import parse_url
from tests.jobs.objects.object_builds import build, built, on_disk
from tests.support.golden import OWN, ROOT
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault


@pytest.mark.usefixtures("small_ranges")
def test_upload_that_the_store_gave_up_is_begun_again(store, text, tmp_path):
    """As a rule of the bucket does with uploads of a certain age."""

    def give_up(moment, operation, target):
        if (moment, operation) == ("done", "UploadPart") and ".bin?" in target and "partNumber=3" in target:
            store.uploads.clear()

    store.watch = give_up
    with pytest.raises(OutputError, match=r"x_text_document.*: the upload was given up"):
        build(text, "s3://out/x", workers=1)
    store.watch = None
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")


def test_full_disk_of_a_worker_is_named(store, text, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(held_file, "HELD_BYTES", 0)
        patched.setattr(held_file, "append_all", full)
        with pytest.raises(OutputError, match=r"No space left on device.*set TMPDIR to a larger disk"):
            build(text, "s3://out/x")
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")


def test_worker_has_nothing_to_leave_on_its_node(store, text, monkeypatch, tmp_path):
    """Large shards are in files without names, which are gone with their process, however it ends."""
    node = tmp_path / "node"
    node.mkdir()
    seen = []
    written = []

    def look(moment, operation, target):
        if moment == "arrived" and operation == "PutObject" and "/shards/" in target:
            seen.extend(os.listdir(node))
            written.append(target)

    monkeypatch.setattr(held_file, "HELD_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(node))
    store.watch = look
    build(text, "s3://out/x")
    assert written
    assert seen == []


def test_throttled_writes_are_fewer_at_once(store, text):
    before = gate_of(parse_url("s3://out/x")).limit
    store.faults.append(Fault(kind="503", operation="UploadPart", times=3))
    build(text, "s3://out/x")
    assert gate_of(parse_url("s3://out/x")).limit < before
    assert store.faults_taken["UploadPart 503"] == 3


@pytest.mark.quick(3)
@pytest.mark.parametrize(("fault", "said"), [
    (Fault(kind="403", code="AccessDenied", operation="PutObject", times=99), "may write"),
    (Fault(kind="403", code="RequestTimeTooSkewed", operation="PutObject", times=99), "clock is wrong"),
    (Fault(kind="404", code="NoSuchBucket", operation="PutObject", times=99), "no such bucket"),
    (Fault(kind="400", code="AuthorizationHeaderMalformed", operation="PutObject", times=99), "--region"),
    (Fault(kind="501", code="NotImplemented", operation="PutObject", times=99), "lacks what a build needs"),
    (Fault(kind="403", code="ExpiredToken", operation="UploadPart", times=99), "renew them"),
], ids=lambda value: value.code if isinstance(value, Fault) else "")  # fmt: skip
def test_refusals_are_one_sentence(fault, said, store, text, cli):
    store.faults.append(fault)
    command = ["build", "--input", str(text), "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    error = cli([*command, "--executor", "local", "--output-prefix", "s3://out/x"], 1).err.splitlines()[-1]
    assert error.startswith("dsindex build: s3://out/x")
    assert said in error
    fault.times = 0
    build(text, "s3://out/x", shard_size=None)
    assert not store.uploads


def test_profile_is_read(store, text, tmp_path, monkeypatch):
    """Both libraries take the credentials of the profile, the one that writes and the one that reads."""
    credentials = f"[mine]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / "credentials").write_text(credentials)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    store.put("in", text.parent)
    build("s3://in/text.jsonl", "s3://out/x")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(DsindexError, match=r"s3://in.*profile"):
        build("s3://in/text.jsonl", "s3://out/y", work_dir=str(tmp_path / "work"))


def test_secret_is_nowhere(store, text, tmp_path):
    """Not in objects, files, messages or errors, also where every answer is an error."""
    command = [sys.executable, "-m", "dsindex", "build", "--input", str(text), "--tokenizer-model"]
    command += [str(OWN.plain_tokenizer), "--append-eod", "--keep-shards", "--executor", "processes"]
    said = ""
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "AWS_SESSION_TOKEN": "planted-token-8e1b"}
    for fault in (None, Fault(kind="403", code="AccessDenied", operation="UploadPart", times=99)):
        store.faults[:] = [fault] if fault else []
        prefix = f"s3://out/{'refused' if fault else 'whole'}"
        ended = subprocess.run(
            [*command, "--output-prefix", prefix, "--debug"], cwd=ROOT, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert ended.returncode == (1 if fault else 0), ended.stderr
        said += ended.stdout + ended.stderr
    contents = [store.content(name) for name in store.all_names()]
    contents += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (SECRET_KEY, "planted-token-8e1b"):
        assert secret not in said
        assert not [True for content in contents if secret.encode() in content]
