"""What a user owns stays as it is: nothing is removed or replaced that dsindex cannot prove to have written."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.store.ownership import MARKER_FILE
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
    """Every file below a folder; links are not followed."""
    return {
        str(path): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def datasets():
    return {name: data for name, data in contents("out").items() if not name.endswith(".json")}


def message(capsys):
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "internal error" not in error
    return error.splitlines()[-1]


def test_folder_of_inputs_is_no_work_folder(capsys):
    Path("proj/shards").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl"):
        shutil.move(name, f"proj/shards/{name}")
    before = contents("proj")
    assert build("proj/shards/*.jsonl", options=["--work-dir", "proj"]) == 1
    assert f"found 'shards' in it and no {MARKER_FILE}; choose another --work-dir" in message(capsys)
    assert contents("proj") == before


@pytest.mark.parametrize("name", ["plan.json", "ledger.jsonl", "owner.json", "notes.tmp", MARKER_FILE])
@pytest.mark.parametrize("fresh", [[], ["--fresh"]], ids=["plain", "fresh"])
def test_users_files_of_our_names_are_no_work_folder(name, fresh):
    Path("proj").mkdir()
    Path("proj", name).write_text("mine")
    assert build("a.jsonl", options=["--work-dir", "proj", *fresh]) == 1
    assert contents("proj") == {f"proj/{name}": b"mine"}
    assert not Path("out/x_text_document.idx").exists()


def test_files_put_into_our_work_folder_stay(capsys):
    assert build("a.jsonl", options=["--keep-shards"]) == 0
    mine = [Path("out/x.build/notes.txt"), Path("out/x.build/shards/0000/00000000.0.bin"), Path("out/x.build/shards/x")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert build("a.jsonl", options=["--fresh"]) == 0
    assert {name for name in contents("out/x.build") if not name.endswith(MARKER_FILE)} == set(map(str, mine))
    assert build("a.jsonl", "b.jsonl", options=["--fresh"]) == 0  # it is still ours
    assert "mine" in mine[1].read_text()
    capsys.readouterr()


@pytest.mark.parametrize("fresh", [["--replace"], ["--fresh"]], ids=["replace", "fresh"])
def test_link_to_precious_files_is_not_followed(fresh, capsys):
    Path("precious/0000").mkdir(parents=True)
    Path("precious/0000/thesis.bin").write_text("mine")
    Path("out/x.build").mkdir(parents=True)
    Path("out/x.build/shards").symlink_to("../../precious")
    assert build("a.jsonl", options=fresh) == 1
    assert "found 'shards'" in message(capsys)
    shutil.rmtree("out")
    assert build("a.jsonl", options=["--keep-shards"]) == 0
    shutil.rmtree("out/x.build/shards")
    Path("out/x.build/shards").symlink_to("../../precious")
    assert build("a.jsonl", "b.jsonl", options=fresh) == 1
    assert "expected a folder, got a symbolic link" in message(capsys)
    assert Path("precious/0000/thesis.bin").read_text() == "mine"


def test_link_among_shards_is_not_followed():
    assert build("a.jsonl", options=["--keep-shards"]) == 0
    [name] = [path.name for path in Path("out/x.build/shards/0000").glob("*.0.bin")]
    Path("precious").mkdir()
    Path("precious", name).write_text("mine")
    Path("out/x.build/shards/0001").symlink_to(Path("precious").absolute())
    assert build("a.jsonl", options=["--fresh"]) == 0
    assert Path("precious", name).read_text() == "mine"


@pytest.mark.parametrize("is_finished", [True, False])
def test_kept_shards_of_another_job_stay(is_finished, capsys):
    assert build("a.jsonl", options=["--keep-shards", "--work-dir", "work"]) == 0
    before = contents("work")
    if is_finished:
        assert build("b.jsonl", prefix="out/y") == 0
    assert build("b.jsonl", prefix="out/y", options=["--work-dir", "work"]) == (0 if is_finished else 1)
    assert contents("work") == before
    if not is_finished:
        assert "expected no work on another output, got work on" in message(capsys)
        assert build("b.jsonl", prefix="out/y", options=["--work-dir", "work", "--fresh"]) == 1
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
    assert build("a.jsonl", options=["--fresh", *work]) == 0
    assert contents("out")["out/x_text_document.bin"] != before["out/x_text_document.bin"]


def test_file_that_replaced_ours_is_not_replaced(capsys):
    assert build("a.jsonl") == 0
    Path("out/x_text_document.idx").unlink()
    size = Path("out/x_text_document.bin").stat().st_size
    Path("out/x_text_document.bin").write_bytes(bytes(size))  # under our name and of our size, after the manifest
    before = contents("out")
    assert build("a.jsonl") == 1
    assert "expected the file that the manifest describes, got another one" in message(capsys)
    assert contents("out") == before


def test_copied_dataset_is_still_ours():
    assert build("a.jsonl") == 0
    expected = datasets()
    for path in list(Path("out").iterdir()):
        shutil.copy(path, f"{path}.copy")  # newer than the manifest, as after `cp -r`
        os.replace(f"{path}.copy", path)
    Path("out/x_text_document.idx").unlink()
    assert build("a.jsonl") == 0
    assert datasets() == expected


def test_file_that_appears_during_a_build_is_not_replaced(monkeypatch, capsys):
    from dsindex.engine import frame as job

    assemble = job.assemble

    def and_meanwhile(*arguments, **options):
        files = assemble(*arguments, **options)  # type: ignore[arg-type]
        Path("out/x_text_document.bin").write_bytes(b"mine")
        return files

    with monkeypatch.context() as patch:
        patch.setattr(job, "assemble", and_meanwhile)
        assert build("a.jsonl") == 1
    assert "expected no change since this job began" in message(capsys)
    assert Path("out/x_text_document.bin").read_bytes() == b"mine"
    assert not Path("out/x_text_document.idx").exists()


@pytest.mark.quick(3)
@pytest.mark.parametrize("options", [[], ["--fresh"]], ids=["plain", "fresh"])
@pytest.mark.parametrize("kind", ["folder link", "file link", "hard link", "same"])
def test_merge_does_not_replace_its_inputs(kind, options, capsys):
    for name in ("a", "b"):
        assert build(f"{name}.jsonl", prefix=f"mg/{name}") == 0
    prefixes = ["mg/a_text_document", "mg/b_text_document"]
    output = prefixes[0]
    if kind == "folder link":
        Path("link").symlink_to("mg")
        output = "link/a_text_document"
    elif kind != "same":
        Path("other").mkdir()
        output = "other/m"
        for suffix in ("bin", "idx"):
            link = os.symlink if kind == "file link" else os.link
            link(Path(f"{prefixes[0]}.{suffix}").absolute(), f"other/m.{suffix}")
    before = contents()
    assert main(["merge", "--input", *prefixes, "--output-prefix", output, *options]) == 1
    assert "expected an output that is none of the inputs" in message(capsys)
    assert contents() == before


def test_fresh_with_a_bad_line_keeps_the_old_dataset(capsys):
    assert build("a.jsonl") == 0
    before = contents("out")
    Path("b.jsonl").write_bytes(LINES[1] + b"{broken\n")
    assert build("b.jsonl", options=["--fresh"]) == 1
    assert "b.jsonl, line 2: " in message(capsys)
    after = {name: data for name, data in contents("out").items() if ".build" not in name}
    assert json.loads(after.pop("out/x.progress.json"))["state"] == "failed"
    del before["out/x.progress.json"]
    assert after == before


def test_users_file_of_the_name_of_the_progress_file_stays(capsys):
    Path("out").mkdir()
    Path("out/x.progress.json").write_text("mine")
    for fresh in ([], ["--fresh"]):
        assert build("a.jsonl", options=fresh) == 0
        assert "x.progress.json: is not dsindex's" in capsys.readouterr().err
        assert Path("out/x.progress.json").read_text() == "mine"
    assert not list(Path("out").glob("*.partial*"))


@pytest.mark.parametrize("options", [["--tokenizer-model", "nothing"], ["--input", "gone.jsonl"]])
def test_fresh_that_fails_its_checks_removes_nothing(options):
    assert build("a.jsonl", options=["--keep-shards"]) == 0
    before = contents("out")
    command = {"--input": "a.jsonl", "--tokenizer-model": str(OWN.plain_tokenizer), "--output-prefix": "out/x"}
    command |= dict([options])
    flags = [word for pair in command.items() for word in pair]
    assert main(["build", *flags, "--append-eod", "--fresh"]) == 1
    assert contents("out") == before


def test_two_builds_to_one_output_do_not_meet(capsys, monkeypatch):
    from dsindex.engine import frame as job

    start = job.start_and_examine

    def another_meanwhile(*arguments, **options):
        monkeypatch.setattr(job, "start_and_examine", start)
        assert build("b.jsonl", options=["--work-dir", "other"]) == 1
        return start(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "start_and_examine", another_meanwhile)
    assert build("a.jsonl", options=["--work-dir", "work"]) == 0
    error = capsys.readouterr().err
    assert "works on the output out/x_text_document" in error
    assert not Path("other").exists()
    [text] = [json.loads(Path("out/x_text_document.manifest.json").read_text())["content"]["inputs"][0]["path"]]
    assert text == "a.jsonl"


def test_partial_files_of_others_stay():
    Path("out").mkdir()
    mine = Path("out/x_text_document.bin.0123456789abcdef.partial")
    mine.write_text("mine")
    assert build("a.jsonl") == 0
    assert build("a.jsonl", "b.jsonl", options=["--replace"]) == 0
    assert build("b.jsonl", options=["--fresh"]) == 0
    assert mine.read_text() == "mine"
    assert [path.name for path in Path("out").glob("*partial*")] == [mine.name]


@pytest.mark.parametrize("options", [[], ["--no-provenance"]], ids=["provenance", "no provenance"])
def test_dataset_put_in_the_place_of_a_half_published_one_is_not_replaced(options, monkeypatch, capsys):
    from dsindex.engine import publishing

    rename = publishing._rename

    def only_the_tokens(target, suffix):
        if suffix != "bin":
            raise KeyboardInterrupt
        rename(target, suffix)

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_rename", only_the_tokens)
        assert build("a.jsonl", options=options) == 130
    assert Path("out/x_text_document.bin").exists()
    assert not Path("out/x_text_document.idx").exists()
    half = shutil.copytree("out", "half", copy_function=os.link)
    for suffix in ("bin", "idx"):
        Path(f"out/x_text_document.{suffix}").unlink(missing_ok=True)
        Path(f"out/x_text_document.{suffix}").write_bytes(b"mine")
    before = contents("out")
    assert build("a.jsonl", options=options) == 1
    assert "exists already, and no manifest says that dsindex made it" in message(capsys)
    assert contents("out") == before
    shutil.rmtree("out")
    Path(half).rename("out")
    assert build("a.jsonl", options=options) == 0
    got = datasets()
    shutil.rmtree("out")
    assert build("a.jsonl", options=options) == 0
    assert got == datasets()
