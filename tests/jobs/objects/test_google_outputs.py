"""Outputs and work folders in Google Cloud Storage: the same bytes as on a disk, by Google's words."""

import json
import subprocess
import sys
import time

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")
pytest.importorskip("google.auth")

from dsindex.errors import InputError, OutputError, PlanError
from tests.jobs.objects.object_builds import build, built, on_disk
from tests.support.golden import OWN, ROOT
from tests.support.google_server import SUBJECT, TOKEN, account_key, serving_google
from tests.support.object_server import Fault
from tests.support.object_server_rules import Conditions, Piece, Stored


@pytest.fixture
def store(monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    with serving_google(monkeypatch, tmp_path / "home", buckets={"out"}) as server:
        yield server


@pytest.mark.usefixtures("small_ranges")
def test_objects_are_the_files_of_a_disk(store, text, tmp_path):
    store.objects["in/text.jsonl"] = text
    build("gs://in/*.jsonl", str(tmp_path / "x"))
    build("gs://in/*.jsonl", "gs://out/data/x")
    assert built(store, "out/data/x") == on_disk(tmp_path / "x")
    assert not store.uploads
    assert {"PutObject", "UploadPart", "CompleteMultipartUpload", "DeleteObjects"} <= set(store.operations)


LOCK = {"host": "elsewhere", "boot": "b", "pid_namespace": "n", "pid": 7, "started": "5", "token": "t"}


def test_lock_of_a_dead_owner_is_taken_by_one_driver(store, text):
    """Its generation is compared: where another driver was quicker, nothing is replaced."""
    store.objects["out/x.build/owner.json"] = json.dumps(LOCK).encode()  # changed long ago, so it has lapsed
    other = json.dumps({**LOCK, "host": "third"}).encode()
    piece = Piece(content=other, size=len(other), digest="0", modified=time.time())
    puts = []

    def be_quicker(moment, operation, target):
        if (moment, operation) == ("arrived", "PutObject") and "owner.json" in target:
            puts.append(target)
            if len(puts) == 2:  # the first one found the lock
                stored = Stored(pieces=(piece,), etag='"0"', modified=piece.modified)
                store.write("out/x.build/owner.json", stored, Conditions())

    store.watch = be_quicker
    with pytest.raises(PlanError, match="process 7 on third"):
        build(text, "gs://out/x")
    assert store.content("out/x.build/owner.json") == other


@pytest.mark.parametrize(("fault", "said"), [
    (Fault(kind="403", code="AccessDenied", operation="PutObject", times=99), "may write"),
    (Fault(kind="401", code="AuthenticationRequired", operation="PutObject", times=99), "renew them"),
    (Fault(kind="404", code="NoSuchBucket", operation="PutObject", times=99), "no such bucket"),
], ids=lambda value: value.code if isinstance(value, Fault) else "")  # fmt: skip
def test_refusals_are_one_sentence(fault, said, store, text):
    store.faults.append(fault)
    with pytest.raises(OutputError, match=rf"^gs://out/x.*{said}"):
        build(text, "gs://out/x")


def test_account_that_is_refused_is_a_sentence(store, text, monkeypatch):
    store.has_account = False
    with pytest.raises(OutputError, match="Google refuses the credentials of this node"):
        build(text, "gs://out/x")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    with pytest.raises(OutputError, match=r"this node has no credentials\); run `gcloud auth"):
        build(text, "gs://out/x")


def test_identity_of_another_cloud_reads_and_writes(store, text, tmp_path, monkeypatch):
    """Workload identity federation, which obstore does not know itself."""
    file, subject = tmp_path / "federation.json", tmp_path / "subject"
    subject.write_text(SUBJECT)
    described = {"type": "external_account", "audience": "//iam.googleapis.com/pool", "token_url": f"{store.url}/token"}
    described["subject_token_type"] = "urn:ietf:params:oauth:token-type:jwt"
    file.write_text(json.dumps({**described, "credential_source": {"file": str(subject)}}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    store.objects["in/text.jsonl"] = text
    build("gs://in/text.jsonl", str(tmp_path / "x"))
    build("gs://in/text.jsonl", "gs://out/data/x")
    assert built(store, "out/data/x") == on_disk(tmp_path / "x")
    subject.write_text("of yesterday")
    monkeypatch.setenv("GOOGLE_LATER", "yes")  # a new client, which knows no token
    with pytest.raises(InputError, match=r"cannot be read \(Google refuses the credentials of this node\); renew them"):
        build("gs://in/text.jsonl", str(tmp_path / "other"))
    file.write_text("{}")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(file))
    with pytest.raises(InputError, match="gs://in: expected credentials of Google"):
        build("gs://in/text.jsonl", str(tmp_path / "other"))
    with pytest.raises(OutputError, match="the credentials of this node cannot be read"):
        build(text, "gs://out/other")


def test_token_is_not_sent_without_encryption(store, text, monkeypatch):
    monkeypatch.delenv("GOOGLE_ALLOW_HTTP")
    with pytest.raises(OutputError, match="GOOGLE_BASE_URL has no https://"):
        build(text, "gs://out/x")
    assert not store.requests


def run(*options, program=("-m", "dsindex")):
    command = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--executor", "processes"]
    return subprocess.run(
        [sys.executable, *program, *command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.exhaustive
def test_metadata_server_gives_what_is_found_nowhere(store, text, tmp_path, monkeypatch):
    """The account of a virtual machine or of a pod: its token is in no object, file or message."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    said = ""
    for fault in (None, Fault(kind="403", code="AccessDenied", operation="UploadPart", times=99)):
        store.faults[:] = [fault] if fault else []
        prefix = f"gs://out/{'refused' if fault else 'whole'}"
        ended = run("--input", str(text), "--output-prefix", prefix, "--keep-shards", "--debug")
        assert ended.returncode == (1 if fault else 0), ended.stderr
        said += ended.stdout + ended.stderr
    contents = [store.content(name) for name in store.all_names()]
    (tmp_path / "home" / "account.json").unlink()
    contents += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (TOKEN, account_key()[0].splitlines()[1]):
        assert secret not in said
        assert not [True for content in contents if secret.encode() in content]
    store.has_account = False
    ended = run("--input", str(text), "--output-prefix", "gs://out/other")
    assert ended.returncode == 1
    assert "gs://out/other" in ended.stderr.splitlines()[-1]
    assert "credentials" in ended.stderr.splitlines()[-1]
    assert len(ended.stderr.splitlines()) < 5
