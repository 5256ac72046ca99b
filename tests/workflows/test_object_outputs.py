"""Outputs and work folders in buckets: the same bytes as on a disk, and the same rules."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from dsindex import merging
from dsindex.errors import DsindexError, OutputError, PlanError
from dsindex.objects.in_flight import gate_of
from dsindex.shards.attempt import AttemptFile
from tests.faults.corpus import write_corpus
from tests.support.compressed import COMPRESSORS
from tests.support.golden import OWN, ROOT
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault, Handler, ObjectServer, serving_objects
from workflows.cli import main
from workflows.jobs.build import run_build
from workflows.jobs.merge import run_merge
from workflows.options.build import BuildConfig
from workflows.options.merge import MergeConfig
from workflows.progress.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = ("bin", "idx", "provenance.parquet")
STEP = 4096
"""Bytes of a range, and so of a part, in these tests."""


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "range_bytes", lambda _total: STEP)
    monkeypatch.setattr(merging, "DIGEST_BLOCK_BYTES", STEP)
    monkeypatch.setattr(merging, "COPY_BYTES", STEP // 4)
    monkeypatch.setattr("dsindex.storage.DIGEST_BLOCK_BYTES", STEP)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with serving_objects(min_part_bytes=1, equal_parts=True, buckets={"out"}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    write_corpus(path, num_lines=300, broken={})
    return path


def build(source: object, prefix: str, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "input": (str(source),),
        "tokenizer_model": str(OWN.plain_tokenizer),
        "append_eod": True,
        "output_prefix": prefix,
        "executor": "local",
        "workers": 2,
        "shard_size": "8KiB",
    }
    return run_build(BuildConfig(**{**defaults, **options}), reporter=Reporter())


def built(store: ObjectServer, prefix: str) -> dict[str, bytes]:
    """The objects of a dataset; of the manifest, the part under the one law."""
    found = {suffix: store.content(f"{prefix}_text_document.{suffix}") for suffix in FILES}
    manifest = json.loads(store.content(f"{prefix}_text_document.manifest.json"))
    return {**found, "content": orjson.dumps(manifest["content"])}


def on_disk(prefix: Path) -> dict[str, bytes]:
    found = {suffix: prefix.with_name(f"{prefix.name}_text_document.{suffix}").read_bytes() for suffix in FILES}
    manifest = json.loads(prefix.with_name(f"{prefix.name}_text_document.manifest.json").read_bytes())
    return {**found, "content": orjson.dumps(manifest["content"])}


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize(
    "options",
    [{}, {"shard_size": "3KiB", "workers": 1}, {"shard_size": None}, {"keep_shards": True}],
    ids=["8KiB", "3KiB", "one shard", "kept"],
)
def test_objects_are_the_files_of_a_disk(
    options: dict[str, Any], store: ObjectServer, text: Path, tmp_path: Path
) -> None:
    build(text, str(tmp_path / "x"))
    build(text, "s3://out/data/x", **options)
    assert built(store, "out/data/x") == on_disk(tmp_path / "x")
    left = store.names("out", "data/x.build")
    assert bool(left) == bool(options.get("keep_shards"))
    assert not store.uploads


def test_other_processes_write_the_same(
    store: ObjectServer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their way to the store travels in their tasks, and the credentials are in their environment."""
    build(text, str(tmp_path / "x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    build(text, "s3://out/x", executor="processes", endpoint_url=store.url)
    assert built(store, "out/x") == on_disk(tmp_path / "x")


@pytest.mark.usefixtures("small_ranges")
def test_either_may_be_on_a_disk(store: ObjectServer, text: Path, tmp_path: Path) -> None:
    build(text, str(tmp_path / "x"))
    build(text, "s3://out/x", work_dir=str(tmp_path / "work"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert not (tmp_path / "work").exists()
    build(text, str(tmp_path / "y"), work_dir="s3://out/work")
    assert on_disk(tmp_path / "y") == on_disk(tmp_path / "x")
    assert not store.names("out", "work")


@pytest.mark.usefixtures("small_ranges")
def test_merge_of_files_becomes_an_object(store: ObjectServer, text: Path, tmp_path: Path) -> None:
    for name in "ab":
        build(text, str(tmp_path / name))
    parts = tuple(str(tmp_path / f"{name}_text_document") for name in "ab")
    for prefix in (str(tmp_path / "all"), "s3://out/all"):
        run_merge(MergeConfig(input=parts, output_prefix=prefix, executor="local"), reporter=Reporter())
    for suffix in ("bin", "idx"):
        assert store.content(f"out/all.{suffix}") == (tmp_path / f"all.{suffix}").read_bytes()
    assert sorted(store.names("out")) == ["all.bin", "all.idx", "all.manifest.json"]


@pytest.mark.parametrize("name", ["one.gz", "one.zst"])
def test_streams_are_unpacked_into_the_bucket(name: str, store: ObjectServer, text: Path, tmp_path: Path) -> None:
    packed = tmp_path / f"text.jsonl.{name[4:]}"
    packed.write_bytes(COMPRESSORS[name](text.read_bytes()))
    build(packed, str(tmp_path / "x"))
    build(packed, "s3://out/x")
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert len(store.names("out")) == len(FILES) + 1


def test_empty_text_is_an_empty_object(store: ObjectServer, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b'{"text": ""}\n')
    build(path, "s3://out/x", no_provenance=True)
    assert store.content("out/x_text_document.bin") == b""
    assert not store.uploads


def test_same_command_again_does_nothing_and_another_is_refused(store: ObjectServer, text: Path) -> None:
    build(text, "s3://out/x")
    store.operations.clear()
    assert build(text, "s3://out/x").already_complete
    assert store.operations["PutObject"] == store.operations["UploadPart"] == 0
    with pytest.raises(PlanError, match=r"s3://out/x_text_document: finished output of another plan.*append-eod"):
        build(text, "s3://out/x", append_eod=False)
    before = built(store, "out/x")
    build(text, "s3://out/x", append_eod=False, fresh=True)
    assert built(store, "out/x")["bin"] != before["bin"]


def test_inputs_are_added_to_kept_shards(store: ObjectServer, text: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    write_corpus(more, num_lines=50, broken={}, seed=9)
    build(text, "s3://out/x", keep_shards=True)
    shards = set(store.names("out", "x.build/shards/"))
    build(text, "s3://out/x", input=(str(text), str(more)), keep_shards=True)
    assert shards < set(store.names("out", "x.build/shards/"))
    build(text, str(tmp_path / "y"), input=(str(text), str(more)))
    assert built(store, "out/x") == on_disk(tmp_path / "y")


def test_object_of_somebody_else_is_not_replaced(store: ObjectServer, text: Path) -> None:
    store.objects["out/x_text_document.bin"] = b"mine"
    with pytest.raises(OutputError, match=r"s3://out/x_text_document.bin: exists already, and no manifest says"):
        build(text, "s3://out/x")
    store.objects["out/y.build/notes.txt"] = b"mine"
    with pytest.raises(PlanError, match=r"found s3://out/y.build/notes.txt and no dsindex-work-folder.json"):
        build(text, "s3://out/y")
    assert sorted(store.names("out")) == ["x_text_document.bin", "y.build/notes.txt"]


def test_object_that_appears_meanwhile_is_not_replaced(store: ObjectServer, text: Path) -> None:
    def put(moment: str, operation: str, _: str) -> None:
        if (moment, operation) == ("arrived", "UploadPart"):
            store.objects["out/x_text_document.idx"] = b"mine"

    store.watch = put
    with pytest.raises(OutputError, match=r"s3://out/x_text_document.idx: expected no change since this job began"):
        build(text, "s3://out/x")
    assert store.content("out/x_text_document.idx") == b"mine"
    assert "x_text_document.bin" not in store.names("out")


def test_objects_beside_those_of_the_job_stay(store: ObjectServer, text: Path) -> None:
    def put(moment: str, operation: str, _: str) -> None:
        if (moment, operation) == ("arrived", "CreateMultipartUpload"):
            store.objects["out/x.build/shards/0000/00000000.mine.bin"] = b"mine"

    store.watch = put
    other = store.create_upload("out/x_text_document.bin", {})
    build(text, "s3://out/x")
    assert store.content("out/x.build/shards/0000/00000000.mine.bin") == b"mine"
    assert set(store.uploads) == {other.upload_id}


LOCK = {"host": "elsewhere", "boot": "b", "pid_namespace": "n", "pid": 7, "started": "5", "token": "t"}


def test_second_driver_is_refused_until_the_lock_lapses(store: ObjectServer, text: Path) -> None:
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    client.put_object(Bucket="out", Key="x.build/owner.json", Body=json.dumps(LOCK).encode())
    with pytest.raises(PlanError, match=r"owner.json: another driver \(process 7 on elsewhere\) works on .*lapses in"):
        build(text, "s3://out/x")
    stored = store.find("out/x.build/owner.json")
    object.__setattr__(stored, "modified", stored.modified - 61)
    build(text, "s3://out/x")
    assert "x.build/owner.json" not in store.names("out")


def test_two_drivers_at_once(store: ObjectServer, text: Path, tmp_path: Path) -> None:
    """The second one is refused, and the first one does not notice."""
    refused: list[str] = []

    def start_another(moment: str, operation: str, _: str) -> None:
        if (moment, operation) == ("arrived", "UploadPart") and not refused:
            with pytest.raises(PlanError) as error:
                build(text, "s3://out/x")
            refused.append(str(error.value))

    store.watch = start_another
    build(text, "s3://out/x", shard_size=None, workers=1)
    assert f"another driver (process {os.getpid()} on" in refused[0]
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")


def test_driver_whose_ledger_another_one_continues_ends(store: ObjectServer, text: Path) -> None:
    """As if its lock had lapsed: the next segment of its ledger is there already, by somebody else."""

    def continue_it(moment: str, operation: str, target: str) -> None:
        if (moment, operation) == ("arrived", "PutObject") and "/ledger/00000002.jsonl" in target:
            store.objects.setdefault("out/x.build/ledger/00000002.jsonl", b"of another driver")

    store.watch = continue_it
    with pytest.raises(PlanError, match=r"ledger/00000002.jsonl: .* another driver continues this job"):
        build(text, "s3://out/x")
    assert "x_text_document.idx" not in store.names("out")


@pytest.mark.usefixtures("store")
def test_store_that_ignores_conditions_is_refused(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Handler):
        def carry_out(self) -> None:
            del self.headers["If-None-Match"]
            super().carry_out()

    with serving_objects(handler=Careless, buckets={"out"}) as careless:
        monkeypatch.setenv("AWS_ENDPOINT_URL", careless.url)
        for options in ({}, {"work_dir": str(text.parent / "work")}):
            with pytest.raises(PlanError, match=r"s3://out/x.*: expected a store with conditional writes"):
                build(text, "s3://out/x", **options)
        assert careless.names("out") == []


@pytest.mark.usefixtures("small_ranges")
def test_upload_that_the_store_gave_up_is_begun_again(store: ObjectServer, text: Path, tmp_path: Path) -> None:
    """As a rule of the bucket does with uploads of a certain age."""

    def give_up(moment: str, operation: str, target: str) -> None:
        if (moment, operation) == ("done", "UploadPart") and ".bin?" in target and "partNumber=3" in target:
            store.uploads.clear()

    store.watch = give_up
    with pytest.raises(OutputError, match=r"x_text_document.*: the upload was given up"):
        build(text, "s3://out/x", workers=1)
    store.watch = None
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")


def test_full_disk_of_a_worker_is_named(
    store: ObjectServer, text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(AttemptFile, "write", full)
        with pytest.raises(OutputError, match=r"No space left on device.*set TMPDIR to a larger disk"):
            build(text, "s3://out/x")
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")


def test_throttled_writes_are_fewer_at_once(store: ObjectServer, text: Path) -> None:
    before = gate_of("s3://out").limit
    store.faults.append(Fault(kind="503", operation="UploadPart", times=3))
    build(text, "s3://out/x")
    assert gate_of("s3://out").limit < before
    assert store.faults_taken["UploadPart 503"] == 3


def test_profile_is_read(store: ObjectServer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(kind="403", code="AccessDenied", operation="PutObject", times=99), "may write"),
        (Fault(kind="403", code="RequestTimeTooSkewed", operation="PutObject", times=99), "clock is wrong"),
        (Fault(kind="404", code="NoSuchBucket", operation="PutObject", times=99), "no such bucket"),
        (Fault(kind="400", code="AuthorizationHeaderMalformed", operation="PutObject", times=99), "--region"),
        (Fault(kind="501", code="NotImplemented", operation="PutObject", times=99), "lacks what a build needs"),
        (Fault(kind="403", code="ExpiredToken", operation="UploadPart", times=99), "renew them"),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_refusals_are_one_sentence(
    fault: Fault, said: str, store: ObjectServer, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.faults.append(fault)
    command = ["build", "--input", str(text), "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    assert main([*command, "--executor", "local", "--output-prefix", "s3://out/x"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("dsindex build: s3://out/x")
    assert said in error
    fault.times = 0
    build(text, "s3://out/x", shard_size=None)
    assert not store.uploads


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--output-prefix", "az://out/x"], "the only object stores that are written to"),
        (["--output-prefix", "gs://out/"], "expected gs://BUCKET/KEY"),
        (["--output-prefix", "s3://out"], "expected s3://BUCKET/KEY"),
        (["--output-prefix", "s3://out/"], "expected s3://BUCKET/KEY"),
        (["--output-prefix", "s3://out/x/"], "expected s3://BUCKET/KEY"),
        (["--output-prefix", "x", "--work-dir", "https://a.b/c"], "the only object stores that are written to"),
        (["--output-prefix", "s3://out/x", "--shuffle-documents", "1"], "needs a work folder on a disk"),
    ],
)
def test_what_cannot_be_written_is_refused_when_options_are_read(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "--input", "a.jsonl", "--tokenizer-model", "t", *flags]) == 2
    assert said in capsys.readouterr().err


def test_requests_are_few_and_counted(store: ObjectServer, text: Path) -> None:
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


def test_secret_is_nowhere(store: ObjectServer, text: Path, tmp_path: Path) -> None:
    """Not in objects, files, messages or errors, also where every answer is an error."""
    command = [sys.executable, "-m", "workflows", "build", "--input", str(text), "--tokenizer-model"]
    command += [str(OWN.plain_tokenizer), "--append-eod", "--keep-shards", "--executor", "processes"]
    said = ""
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "AWS_SESSION_TOKEN": "planted-token-8e1b"}
    for fault in (None, Fault(kind="403", code="AccessDenied", operation="UploadPart", times=99)):
        store.faults[:] = [fault] if fault else []
        prefix = f"s3://out/{'refused' if fault else 'whole'}"
        ended = subprocess.run(
            [*command, "--output-prefix", prefix, "--debug"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == (1 if fault else 0), ended.stderr
        said += ended.stdout + ended.stderr
    contents = [store.content(name) for name in store.all_names()]
    contents += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (SECRET_KEY, "planted-token-8e1b"):
        assert secret not in said
        assert not [True for content in contents if secret.encode() in content]


def test_without_the_library_a_sentence_says_what_to_install(text: Path) -> None:
    program = "import sys; sys.modules['boto3'] = None; from workflows.cli import main; sys.exit(main(sys.argv[1:]))"
    command = ["build", "--input", str(text), "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *command, "--executor", "local", "--output-prefix", "s3://out/x"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "pip install 'dsindex[objects]'" in ended.stderr
