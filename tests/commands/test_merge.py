"""`dsindex merge`: Megatron's bytes, refusals, and documents that are traced into what they were merged from."""

import json
import os
import shutil
from pathlib import Path

import pytest

import dsindex
from dsindex.datasets import IndexedDataset
from dsindex.errors import InputError, OutputError
from dsindex.formats.manifest import read_manifest
from dsindex.options.datasets import MergeConfig
from dsindex.runtime.assembly import Assembly
from tests.support.golden import GOLDEN_SETS, OWN
from tests.support.jobs import run_config
from tests.support.published import edit_manifest, published, read_pair


def merge_into(prefix, inputs, **options):
    return MergeConfig(**{"input": inputs, "output_prefix": str(prefix), "executor": "local", "workers": 2, **options})


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=lambda golden: golden.name)
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_merge_equals_megatron(golden, executor, tmp_path):
    # Megatron's order is that of the names; the suffix may be typed, as a shell completes it.
    inputs = tuple(map("{}{}".format, golden.merge_inputs, ("", ".bin", ".idx")))
    run_config(merge_into(tmp_path / "m", inputs, executor=executor))
    assert read_pair(tmp_path / "m") == read_pair(golden.merged)
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.idx", "m.manifest.json", "m.progress.json"]


def test_an_input_that_vanishes_during_a_merge_is_no_internal_error(tmp_path, monkeypatch):
    for suffix in ("bin", "idx"):
        shutil.copy(f"{OWN.merge_inputs[0]}.{suffix}", tmp_path / f"a.{suffix}")
    complete = Assembly.complete
    monkeypatch.setattr(Assembly, "complete", lambda self: (complete(self), (tmp_path / "a.bin").unlink())[0])
    with pytest.raises(InputError, match=r"a\.bin: cannot be read \(No such file or directory\)"):
        run_config(merge_into(tmp_path / "m", [str(tmp_path / "a")]))


def test_failed_merge_leaves_nothing_new(tmp_path, monkeypatch):
    def fail(_task):
        raise OutputError("the disk is full")

    run_config(merge_into(tmp_path / "m", inputs := tuple(map(str, OWN.merge_inputs))))
    before = published(tmp_path)
    monkeypatch.setattr("dsindex.runtime.assembly.merge_range", fail)
    with pytest.raises(OutputError, match="the disk is full"):
        run_config(merge_into(tmp_path / "m", inputs[:2], replace=True))
    assert published(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.idx", "m.manifest.json", "m.progress.json"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Datasets a and b, inner merged of b and a, and outer of a and inner."""
    folder = tmp_path_factory.mktemp("merged")
    lines = Path(OWN.docs).read_bytes().splitlines(keepends=True)
    (folder / "a.jsonl").write_bytes(b"".join(lines[:20]))
    (folder / "b.jsonl").write_bytes(b"\n" + b"".join(lines[20:35]))
    for name in "ab":
        options = {"append_eod": True, "output_prefix": str(folder / name)}
        dsindex.build(str(folder / f"{name}.jsonl"), tokenizer=str(OWN.plain_tokenizer), **options)
    a, b = (str(folder / f"{name}_text_document") for name in "ab")
    dsindex.merge([b, a], output_prefix=str(folder / "inner"))
    dsindex.merge([f"{a}.bin", str(folder / "inner")], output_prefix=str(folder / "outer"))
    return folder


def test_shared_tokenizer_is_recorded(folder):
    built, merged = (read_manifest(str(folder / name)) for name in ("a_text_document", "outer"))
    assert built is not None
    assert merged is not None
    assert merged.content.tokenizer == built.content.tokenizer
    assert merged.run.tokenizer_path == built.run.tokenizer_path
    text = json.loads((folder / "b.jsonl").read_bytes().splitlines()[1])["text"]
    assert IndexedDataset(str(folder / "outer")).decode_document(20) == f"{text}<|endoftext|>"


CHANGES = {
    "another": lambda manifest: manifest["content"]["tokenizer"].update(sha256="0" * 64),
    "stale": lambda manifest: manifest["content"].update(documents=0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tokenizer_that_is_not_shared_is_not_recorded(folder, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    edit_manifest(copy / "b_text_document", CHANGES[change])
    result = dsindex.merge([str(copy / f"{name}_text_document") for name in "ab"], output_prefix=str(copy / "m"))
    assert (change == "another") == ("b_text_document: the same id is another token" in "".join(result.notes))
    merged = read_manifest(str(copy / "m"))
    assert merged is not None
    assert merged.content.tokenizer is None
