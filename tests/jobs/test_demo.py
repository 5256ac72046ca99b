"""The demo: pinned text, a folder that it owns, and a run from text to a traced sample."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import xxhash

from dsindex.demo.run import DEMO_MARKER, run_demo, write_demo_jsonl
from dsindex.errors import OutputError

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_demo_runs_from_text_to_a_traced_sample_and_again(tmp_path, cli):
    for _ in range(2):
        shown = cli(["demo", "--output", str(tmp_path / "demo"), "--documents", "300"]).out
        assert "demo_text_document: intact" in shown
        assert ", ray executor, " in shown
        assert "of 3 epochs" in shown
        assert f"{tmp_path}/demo/text/demo-" in shown


def begin_demo(folder):
    """Run the demo up to its workflow, which fails."""
    assert run_demo(str(folder), num_documents=30, run_workflow=lambda *_: 7) == 7


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_demo_marks_its_folder_and_writes_to_it_again(tmp_path):
    folder = tmp_path / "demo"
    begin_demo(folder)
    first = everything(folder)
    assert {DEMO_MARKER, "text/demo-0.jsonl", "tokenizer/tokenizer.json"} <= first.keys()
    (folder / "text" / "mine.jsonl").write_text("mine")
    (tmp_path / "kept.jsonl").hardlink_to(folder / "text" / "demo-0.jsonl")
    (folder / "text" / "demo-1.jsonl").write_text("of another demo")
    kept = (tmp_path / "kept.jsonl").stat()
    begin_demo(folder)
    assert everything(folder) == {**first, "text/mine.jsonl": b"mine"}
    assert (tmp_path / "kept.jsonl").stat().st_mtime_ns == kept.st_mtime_ns, "replaced, not written into"


@pytest.mark.parametrize("name", ["text", "notes.md", DEMO_MARKER, "demo_text_document.bin"])
def test_demo_leaves_a_folder_alone_that_it_has_not_made(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=rf"expected a new or empty folder, or one with .*found '{name}' in it; cho"):
        begin_demo(tmp_path)
    assert everything(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("name", ["text", "tokenizer", "cache", "text/demo-1.jsonl", "tokenizer/tokenizer.json"])
def test_demo_writes_through_no_link(tmp_path, name):
    folder, mine = tmp_path / "demo", tmp_path / "mine"
    begin_demo(folder)
    mine.mkdir()
    (mine / "demo-0.jsonl").write_text("mine")
    (mine / "tokenizer.json").write_text("mine")
    before = everything(mine)
    path = folder / name
    target = mine if "/" not in name else mine / "tokenizer.json"
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    path.symlink_to(target)
    with pytest.raises(OutputError, match=f"/{name}: expected"):
        begin_demo(folder)
    assert everything(mine) == before
    assert path.is_symlink()


def test_make_clean_removes_only_what_make_has_made(tmp_path):
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    begin_demo(tmp_path / "demo-output")
    for name in (".venv/mine", "site/mine", "elsewhere/dsindex-bench.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("mine")
    (tmp_path / "bench-output").symlink_to("elsewhere")
    done = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "site is kept: there is no site/.dsindex-site" in done.stdout
    assert sorted(os.listdir(tmp_path)) == [".venv", "Makefile", "bench-output", "elsewhere", "site"]
    assert (tmp_path / "elsewhere" / "dsindex-bench.txt").read_text() == "mine"
    for name in (".venv/.ready", "site/.dsindex-site"):
        (tmp_path / name).touch()
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert sorted(os.listdir(tmp_path)) == ["Makefile", "bench-output", "elsewhere"]


# The default demo's bytes. A change of a word list or a draw changes them, and with them every figure that was ever
# reported from the demo: change them on purpose only.
DEFAULT_DIGESTS = [
    "f8b22eed7f82e4b2800d6f28edc9f89f",
    "bbdff4d45a262c1c4424f359d73a5e7c",
    "25672645367c1cd579865775e63906f8",
]


@pytest.fixture(scope="module")
def demo_paths(tmp_path_factory):
    return write_demo_jsonl(tmp_path_factory.mktemp("demo"))


def test_default_demo_has_pinned_bytes(demo_paths):
    assert [path.name for path in demo_paths] == ["demo-0.jsonl", "demo-1.jsonl", "demo-2.jsonl"]
    assert [xxhash.xxh3_128_hexdigest(path.read_bytes()) for path in demo_paths] == DEFAULT_DIGESTS
