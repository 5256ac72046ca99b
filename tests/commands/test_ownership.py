"""What stands where an output or a work folder goes: refused unless it is this plan's, replaced with --replace."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dsindex.runtime.shards import Shards
from dsindex.runtime.work_folder import MARKER_FILE, read_shard_size
from tests.support.golden import LINES, OWN


@pytest.fixture(autouse=True)
def _inputs(in_folder):  # noqa: ARG001 - the working folder
    """Two inputs in a working folder of the test's own."""
    Path("a.jsonl").write_bytes(b"".join(LINES[:40]))
    Path("b.jsonl").write_bytes(b"".join(LINES[40:70]))


def contents(folder="."):
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def test_recorded_shard_size_may_be_damaged():
    Path("shard-size.txt").write_text("9" * 5000)
    assert read_shard_size(".") is None


def test_folder_of_inputs_is_no_work_folder(build_text):
    Path("proj/shards").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl"):
        shutil.move(name, f"proj/shards/{name}")
    before = contents("proj")
    errors = build_text("proj/shards/*", options=["--work-dir", "proj"], code=1).err
    assert "it has 'shards/a.jsonl'\nhint: choose another --work-dir" in errors
    assert contents("proj") == before


@pytest.mark.parametrize("name", ["ledger.jsonl", "owner.json", MARKER_FILE])
@pytest.mark.parametrize("fresh", [[], ["--replace"]], ids=["plain", "fresh"])
def test_users_files_of_our_names_are_no_work_folder(name, fresh, build_text):
    Path("proj").mkdir()
    Path("proj", name).write_text("mine")
    build_text("a", options=["--work-dir", "proj", *fresh], code=1)
    assert contents("proj") == {f"proj/{name}": b"mine"}
    assert not Path("out/x_text_document.idx").exists()


@pytest.mark.parametrize("is_finished", [True, False])
def test_kept_shards_of_another_job_stay(is_finished, build_text):
    build_text("a", options=["--keep-shards", "--work-dir", "work"])
    before = contents("work")
    if is_finished:
        build_text("b", prefix="out/y")
    errors = build_text("b", prefix="out/y", options=["--work-dir", "work"], code=0 if is_finished else 1).err
    assert contents("work") == before
    if not is_finished:
        assert "this work folder belongs to another build, of " in errors
        build_text("b", prefix="out/y", options=["--work-dir", "work", "--replace"], code=1)
        assert contents("work") == before


@pytest.mark.parametrize("work", [[], ["--work-dir", "work"], ["--work-dir", "work", "--keep-shards"]])
def test_foreign_dataset_is_not_replaced(work, build_text, cli):
    Path("out").mkdir()
    Path("work").mkdir()
    for suffix in ("bin", "idx"):
        shutil.copy(OWN.run("eod").prefixes["text"].with_suffix(f".{suffix}"), f"out/x_text_document.{suffix}")
        shutil.copy(f"out/x_text_document.{suffix}", f"out/m.{suffix}")
    before = contents("out")
    message = "exists already, and no manifest says that dsindex made it"
    assert message in build_text("a", options=work, code=1).err
    parts = [str(OWN.run("eod").prefixes["text"])] * 2
    assert "exists already" in cli(["merge", "--input", *parts, "--output-prefix", "out/m", *work], 1).err
    assert contents("out") == before
    build_text("a", options=["--replace", *work])
    assert contents("out")["out/x_text_document.bin"] != before["out/x_text_document.bin"]


def test_two_builds_to_one_output_do_not_meet(build_text, monkeypatch):
    from dsindex.runtime import job

    start, errors = job.make_executor, []

    def another_meanwhile(*arguments, **options):
        monkeypatch.setattr(job, "make_executor", start)
        errors.append(build_text("b", options=["--work-dir", "other"], code=1).err)
        return start(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "make_executor", another_meanwhile)
    build_text("a", options=["--work-dir", "work"])
    assert "out/x_text_document\nhint: wait until it has ended" in errors[0]
    assert not Path("other").exists()
    [text] = [json.loads(Path("out/x_text_document.manifest.json").read_text())["content"]["inputs"][0]["path"]]
    assert text == "a.jsonl"


def test_old_files_are_withdrawn_before_the_first_new_one_appears(build_text, monkeypatch):
    Path("bad.jsonl").write_bytes(b"not JSON\n" + LINES[0])
    build_text("bad", options=["--on-bad-record", "quarantine"])
    assert Path("out/x_text_document.quarantine.jsonl.zst").exists()
    names = ("bin", "provenance.parquet", "quarantine.jsonl.zst", "idx", "manifest.json")
    states = {}

    def replace(source, target, real=os.replace):
        states[tuple(name for name in names if Path(f"out/x_text_document.{name}").exists())] = True
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    build_text("a", options=["--replace", "--no-provenance"])
    assert list(states) == [names, names[:1], ("bin", "idx"), ("bin", "idx", "manifest.json")]


def test_publishing_that_was_stopped_before_its_last_file_continues_without_work(build_text, monkeypatch):
    build_text("b")

    def stop(source, target, real=os.replace):
        if str(target).endswith(".manifest.json"):
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stop)
        build_text("a", options=["--replace"], code=130)
    published = contents("out")
    assert "already complete" in build_text("a").out
    names = [f"out/x_text_document.{suffix}" for suffix in ("bin", "idx", "provenance.parquet", "manifest.json")]
    assert {name: data for name, data in contents("out").items() if name in names[:3]}.items() <= published.items()
    assert Path(names[3]).exists()


def test_driver_that_lost_its_lock_publishes_nothing(build_text, monkeypatch):
    complete = Shards.complete

    def lose(shards):
        Path("out/x_text_document.dsindex-lock").unlink()
        return complete(shards)

    monkeypatch.setattr(Shards, "complete", lose)
    errors = build_text("a", code=1).err
    assert "the lock of the output" in errors
    assert "another driver may have begun\nhint: run the same command again" in errors
    assert not list(Path("out").glob("*.manifest.json"))
