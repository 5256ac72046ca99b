"""What stands where an output or a work folder goes: refused unless it is this plan's, replaced with --replace."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.runtime.work_folder import MARKER_FILE
from tests.support.golden import OWN

TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod")
LINES = OWN.docs.read_bytes().splitlines(keepends=True)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Two inputs in a working folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(b"".join(LINES[:40]))
    Path("b.jsonl").write_bytes(b"".join(LINES[40:70]))


def build(*inputs, prefix="out/x", options=()):
    return main(["build", "--input", *inputs, *TOKENIZER, "--output-prefix", prefix, *options])


def contents(folder="."):
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def message(capsys):
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "internal error" not in error
    return error


def test_folder_of_inputs_is_no_work_folder(capsys):
    Path("proj/shards").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl"):
        shutil.move(name, f"proj/shards/{name}")
    before = contents("proj")
    assert build("proj/shards/*.jsonl", options=["--work-dir", "proj"]) == 1
    assert "it has 'shards/a.jsonl'\nhint: choose another --work-dir" in message(capsys)
    assert contents("proj") == before


@pytest.mark.parametrize("name", ["ledger.jsonl", "owner.json", MARKER_FILE])
@pytest.mark.parametrize("fresh", [[], ["--replace"]], ids=["plain", "fresh"])
def test_users_files_of_our_names_are_no_work_folder(name, fresh):
    Path("proj").mkdir()
    Path("proj", name).write_text("mine")
    assert build("a.jsonl", options=["--work-dir", "proj", *fresh]) == 1
    assert contents("proj") == {f"proj/{name}": b"mine"}
    assert not Path("out/x_text_document.idx").exists()


@pytest.mark.parametrize("is_finished", [True, False])
def test_kept_shards_of_another_job_stay(is_finished, capsys):
    assert build("a.jsonl", options=["--keep-shards", "--work-dir", "work"]) == 0
    before = contents("work")
    if is_finished:
        assert build("b.jsonl", prefix="out/y") == 0
    assert build("b.jsonl", prefix="out/y", options=["--work-dir", "work"]) == (0 if is_finished else 1)
    assert contents("work") == before
    if not is_finished:
        assert "this work folder belongs to another build, of " in message(capsys)
        assert build("b.jsonl", prefix="out/y", options=["--work-dir", "work", "--replace"]) == 1
        assert contents("work") == before


@pytest.mark.parametrize("work", [[], ["--work-dir", "work"], ["--work-dir", "work", "--keep-shards"]])
def test_foreign_dataset_is_not_replaced(work, capsys):
    Path("out").mkdir()
    Path("work").mkdir()
    for suffix in ("bin", "idx"):
        shutil.copy(OWN.run("eod").prefixes["text"].with_suffix(f".{suffix}"), f"out/x_text_document.{suffix}")
        shutil.copy(f"out/x_text_document.{suffix}", f"out/m.{suffix}")
    before = contents("out")
    assert build("a.jsonl", options=work) == 1
    assert "exists already, and no manifest says that dsindex made it" in message(capsys)
    parts = [str(OWN.run("eod").prefixes["text"])] * 2
    assert main(["merge", "--input", *parts, "--output-prefix", "out/m", *work]) == 1
    assert "exists already" in message(capsys)
    assert contents("out") == before
    assert build("a.jsonl", options=["--replace", *work]) == 0
    assert contents("out")["out/x_text_document.bin"] != before["out/x_text_document.bin"]


def test_two_builds_to_one_output_do_not_meet(capsys, monkeypatch):
    from dsindex.runtime import job

    start = job.make_executor

    def another_meanwhile(*arguments, **options):
        monkeypatch.setattr(job, "make_executor", start)
        assert build("b.jsonl", options=["--work-dir", "other"]) == 1
        return start(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "make_executor", another_meanwhile)
    assert build("a.jsonl", options=["--work-dir", "work"]) == 0
    error = capsys.readouterr().err
    assert "out/x_text_document\nhint: wait until it has ended" in error
    assert not Path("other").exists()
    [text] = [json.loads(Path("out/x_text_document.manifest.json").read_text())["content"]["inputs"][0]["path"]]
    assert text == "a.jsonl"


def test_old_files_are_withdrawn_before_the_first_new_one_appears(monkeypatch):
    Path("bad.jsonl").write_bytes(b"not JSON\n" + LINES[0])
    assert build("bad.jsonl", options=["--on-bad-record", "quarantine"]) == 0
    assert Path("out/x_text_document.quarantine.jsonl.zst").exists()
    names = ("bin", "provenance.parquet", "quarantine.jsonl.zst", "idx", "manifest.json")
    seen = {}

    def replace(source, target, real=os.replace):
        seen[tuple(name for name in names if Path(f"out/x_text_document.{name}").exists())] = True
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert build("a.jsonl", options=["--replace", "--no-provenance"]) == 0
    assert list(seen) == [names, names[:1], ("bin", "idx"), ("bin", "idx", "manifest.json")]
