"""A plan is the ordered list of its inputs, repetitions included, and their bytes: nothing else continues it."""

import os
import re
from pathlib import Path

import pytest

from tests.support.golden import LINES


@pytest.fixture(autouse=True)
def _inputs(in_folder):  # noqa: ARG001 - the working folder
    """Three inputs in a working folder of the test's own."""
    for number, name in enumerate("abc"):
        Path(f"{name}.jsonl").write_bytes(b"".join(LINES[20 * number : 20 * number + 20]))


def datasets(prefix):
    """Every file of a dataset but the manifest, by suffix."""
    folder, name = os.path.split(prefix)
    files = [path for path in Path(folder).glob(f"{name}_*") if path.is_file() and path.suffix != ".json"]
    return {path.name.removeprefix(name): path.read_bytes() for path in files}


OTHER_INPUTS = [
    ("a a", "a", "the input .*/a.jsonl is gone"),
    ("a b a", "a a b", "the inputs are in another order"),
    ("a", "a a", "the input .*/a.jsonl is new"),
    ("a b", "c a a b", "the input .*/[ca].jsonl and 1 more are new"),
    ("a b", "b c", "the input .*/a.jsonl is gone; the input .*/c.jsonl is new"),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize(("before", "after", "reason"), OTHER_INPUTS, ids=[f"{a} then {b}" for a, b, _ in OTHER_INPUTS])
@pytest.mark.parametrize("is_kept", [False, True], ids=["published", "kept"])
def test_other_inputs_are_another_plan(before, after, reason, is_kept, build_text):
    build_text(before, options=["--keep-shards"] if is_kept else [])
    files = datasets("out/x")
    error = build_text(after, code=1).err
    assert re.search(f"other inputs or options .*here: {reason}", error), error
    assert datasets("out/x") == files
    if is_kept:  # what a bad record or a kill leaves: shards, and no output
        for path in Path("out").glob("x_text_document.*"):
            path.unlink()
    build_text(after, options=[] if is_kept else ["--replace"])
    build_text(after, "other/x")
    assert datasets("out/x") == datasets("other/x")


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.quick(4)
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "stopped"])
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_only_changed_inputs_are_tokenized_again(executor, finished, build_text, monkeypatch):
    """One is mended, one left out, one added, and the one that stays has another place."""
    for name in "abcd":
        count = "abcd".index(name) * 7 + 10
        Path(f"{name}.jsonl").write_bytes(b"".join(LINES[:count] * 3))
    options = ["--executor", executor, "--shard-size", "3KiB", "--keep-shards"]
    with monkeypatch.context() as patch:
        if not finished:
            patch.setattr("dsindex.runtime.assembly.Assembly.complete", interrupt)
        build_text("c a b", options=options, code=0 if finished else 130)
    assert finished or " finished shards are kept in " in Path("out/x.progress.json").read_text()
    old = tokenized_inputs()
    Path("b.jsonl").write_bytes(b"".join(LINES[5:50]))
    output = build_text("d b a", options=[*options, *(["--replace"] if finished else [])]).err
    remade = tokenized_inputs()[len(old) :]
    assert re.search("/b.jsonl is changed; the input .*/c.jsonl is gone; the input .*/d.jsonl is new", output)
    assert f"{old.count('a.jsonl')} of {old.count('a.jsonl') + len(remade)} shards kept, {len(remade)} to be" in output
    assert set(remade) == {"b.jsonl", "d.jsonl"}
    build_text("d b a", "other/x", options)
    assert datasets("out/x") == datasets("other/x")


def tokenized_inputs():
    """The input of each shard that was made, in order."""
    journal = Path("out/x.build/journal.jsonl").read_text()
    return re.findall(r'\{"kind":"shard".*?"task":"[^"]*?([^"/]+?)\\u0000', journal)


def test_shard_size_of_a_large_job_is_kept_when_inputs_are_added(monkeypatch, build_text):
    monkeypatch.setattr("dsindex.runtime.plan.JOB_SHARDS", 4)
    monkeypatch.setattr("dsindex.options.common.TextConfig.largest_shard", 1 << 10)
    for name, lines in (("a", 60), ("b", 90)):
        Path(f"{name}.jsonl").write_bytes(b"".join(LINES[:lines] * 3))
    build_text("a", options=["--keep-shards"])
    before = tokenized_inputs()
    assert len(before) <= 4
    assert f"{len(before)} of " in build_text("a b", options=["--keep-shards", "--replace"]).err
    assert set(tokenized_inputs()[len(before) :]) == {"b.jsonl"}
    build_text("a b", "other/x", ["--shard-size", "1KiB"])
    assert datasets("out/x") == datasets("other/x")


def test_several_datasets_of_one_build_are_one_dataset_cut_between_inputs(monkeypatch, build_text, cli):
    for name, lines in zip("abcd", (10, 40, 80, 5), strict=True):
        Path(f"{name}.jsonl").write_bytes(b"".join(LINES[:lines]))
    max_bytes = Path("b.jsonl").stat().st_size + Path("a.jsonl").stat().st_size
    options = ["--json-keys", "text", "title", "--on-bad-record", "quarantine", "--sample", "80%", "--hold-out", "20%"]
    build_text("a b c d", "other/x", [*options, "--shard-size", "1KiB"])
    several = [*options, "--max-dataset-size", f"{max_bytes}B", "--shard-size", "9KiB"]
    with monkeypatch.context() as patch:
        patch.setattr("dsindex.runtime.assembly.Assembly.complete", interrupt)
        build_text("a b c d", options=several, code=130)
    assert "already complete" not in build_text("a b c d", options=several).out
    for name in ("text", "title", "valid_text", "valid_title"):
        prefixes = [str(Path(f"out/x_{name}_document_{number:03d}").absolute()) for number in range(3)]
        assert not Path(f"out/x_{name}_document_003.bin").exists()
        content = Path(f"other/x_{name}_document.bin").read_bytes()
        assert b"".join(Path(f"{prefix}.bin").read_bytes() for prefix in prefixes) == content
        words = Path(f"out/x_{name}_document.txt").read_text().split()
        tokens = {prefix: Path(f"{prefix}.bin").stat().st_size // 2 for prefix in prefixes}
        listed_tokens = dict(zip(words[1::2], map(int, words[::2]), strict=True))
        assert listed_tokens == {prefix: number for prefix, number in tokens.items() if number}
        cli(["verify", *prefixes, "--against-source"])
    assert "already complete" in build_text("a b c d", options=several).out
    assert not Path("out/x.build").exists()


def test_build_with_too_many_documents_for_a_dataset_makes_several_and_says_so(monkeypatch, build_text):
    for name in "abcd":
        Path(f"{name}.jsonl").write_bytes(b"".join(LINES[:40]))
    monkeypatch.setattr("dsindex.commands.build.MOST_DOCUMENTS", 120)
    planned = build_text("a b c d", "x/x", ["--dry-run"]).out
    [size] = set(re.findall(r"so several are made, as with --max-dataset-size (\d+B)", planned))
    error = build_text("a b c d", "x/x", ["--num-samples", "9", "--seq-length", "8"], code=2).err
    assert "index caches need all datasets at once\nhint: leave out" in error
    errors = build_text("a b c d").err + build_text("a b c d").err
    assert f"so several are made, as with --max-dataset-size {size}" in errors
    build_text("a b c d", "other/x", ["--max-dataset-size", size])
    names = sorted(path.name for path in Path("out").iterdir())
    assert len([name for name in names if name.endswith(".bin")]) in {2, 4}
    assert names == sorted(path.name for path in Path("other").iterdir())
    for name in (name for name in names if name.endswith((".bin", ".idx"))):
        assert Path("out", name).read_bytes() == Path("other", name).read_bytes()
