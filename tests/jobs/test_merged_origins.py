"""Merged datasets: their tokenizer is recorded, and their documents are traced into what they were merged from."""

import json
import shutil
from pathlib import Path

import pytest

import dsindex
from dsindex.datasets import IndexedDataset
from dsindex.datasets.origins import find_document_origins, find_parts
from dsindex.engine.manifest import read_manifest
from dsindex.errors import FormatError
from tests.jobs.test_trace import trace
from tests.support.golden import OWN


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Datasets a and b, inner merged of b and a, and outer of a and inner, with an index cache."""
    folder = tmp_path_factory.mktemp("merged")
    lines = Path(OWN.docs).read_bytes().splitlines(keepends=True)
    (folder / "a.jsonl").write_bytes(b"".join(lines[:20]))
    (folder / "b.jsonl").write_bytes(b"\n" + b"".join(lines[20:35]))
    for name in "ab":
        dsindex.build(
            [str(folder / f"{name}.jsonl")],
            tokenizer=str(OWN.plain_tokenizer),
            append_eod=True,
            output_prefix=str(folder / name),
        )
    a, b = (str(folder / f"{name}_text_document") for name in "ab")
    dsindex.merge([b, a], output_prefix=str(folder / "inner"))
    dsindex.merge([f"{a}.bin", str(folder / "inner")], output_prefix=str(folder / "outer"))
    dsindex.build_index(
        str(folder / "outer"), seq_length=64, epochs=1, split="1,0,0", data_cache_path=str(folder / "cache")
    )
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """A copy, whose manifests name its own files."""
    shutil.copytree(folder, tmp_path / "copy")
    for path in (tmp_path / "copy").glob("*.manifest.json"):
        path.write_text(path.read_text().replace(str(folder), str(tmp_path / "copy")))
    return tmp_path / "copy"


def expected_origin(folder, document):
    """Part, document in it, input and line of a document of outer: those of a, then of b, then of a again."""
    name, own = ("a", document) if document < 20 else ("b", document - 20) if document < 35 else ("a", document - 35)
    return str(folder / f"{name}_text_document"), own, str(folder / f"{name}.jsonl"), own + (1 if name == "a" else 2)


def test_shared_tokenizer_is_recorded(folder):
    own, merged = (read_manifest(str(folder / name)) for name in ("a_text_document", "outer"))
    assert own is not None
    assert merged is not None
    assert merged.content.tokenizer == own.content.tokenizer
    assert merged.run.tokenizer_path == own.run.tokenizer_path
    text = json.loads((folder / "b.jsonl").read_bytes().splitlines()[1])["text"]
    assert IndexedDataset(str(folder / "outer")).decode_document(20) == f"{text}<|endoftext|>"


@pytest.mark.parametrize("change", ["none", "another", "stale", "damaged"])
def test_tokenizer_that_is_not_shared_is_not_recorded(copy, change):
    path = copy / "b_text_document.manifest.json"
    manifest = json.loads(path.read_text())
    if change == "none":
        del manifest["content"]["tokenizer"]
    elif change == "another":
        manifest["content"]["tokenizer"]["sha256"] = "0" * 64
    elif change == "stale":
        manifest["content"]["documents"] += 1
    path.write_text("{" if change == "damaged" else json.dumps(manifest))
    dsindex.merge([str(copy / f"{name}_text_document") for name in "ab"], output_prefix=str(copy / "m"))
    merged = read_manifest(str(copy / "m"))
    assert merged is not None
    assert merged.content.tokenizer is None


def test_samples_are_traced_into_parts_of_parts(folder, cli):
    samples = len(dsindex.open(str(folder / "cache")))
    report = trace(cli, folder / "cache", "--sample", *range(samples), "--text-tokens", 4)
    assert report["notes"] == []
    seen = set()
    for part in (part for shown in report["samples"] for part in shown["parts"]):
        found = (part["part"]["prefix"], part["part"]["document"], part["source"]["path"], part["source"]["line"])
        assert found == expected_origin(folder, part["document"])
        assert part["text"] is not None
        seen.add(part["document"])
    assert len(seen) > 40  # some texts are empty, and the last tokens make no sample


def test_line_leads_to_all_its_copies(folder, cli):
    found = trace(cli, folder / "cache", "--line", f"{folder / 'a.jsonl'}:3")["documents"]
    assert [document["document"] for document in found] == [2, 37]
    assert [document["part"]["document"] for document in found] == [2, 2]
    for document in found:
        [same] = trace(cli, folder / "cache", "--document", document["document"])["documents"]
        assert same == document
    origin = f"document 2 of {folder / 'a_text_document'}, from {folder / 'a.jsonl'}, line 3\n"
    assert origin in cli(["trace", str(folder / "cache"), "--document", "37"]).out


def test_inspect_names_the_part_and_the_line(folder, cli):
    shown = cli(["inspect", str(folder / "outer"), "--document", "21", "--tokens", "3"]).out
    assert f", document 1 of {folder / 'b_text_document'}, {folder / 'b.jsonl'}, line 3\n" in shown
    assert "note:" not in shown


def test_part_without_provenance_is_named(copy, cli):
    (copy / "b_text_document.provenance.parquet").unlink()
    words = [copy / "cache", "--prefix", copy / "outer", "--document"]
    unknown, known = (trace(cli, *words, number) for number in (21, 3))
    assert unknown["documents"][0]["part"] == {"prefix": str(copy / "b_text_document"), "document": 1}
    assert unknown["documents"][0]["source"] is None
    assert "b_text_document.provenance.parquet: expected the provenance" in unknown["notes"][0]
    assert known["documents"][0]["source"]["line"] == 4
    shown = cli(["inspect", str(copy / "outer"), "--document", "21"]).out
    assert f"document 1 of {copy / 'b_text_document'}\n" in shown


def test_part_that_was_built_again_is_a_note(copy):
    shutil.copy(copy / "a_text_document.provenance.parquet", copy / "b_text_document.provenance.parquet")
    [origin, other], notes = find_document_origins(str(copy / "outer"), 55, [22, 0])
    assert origin.source is None
    assert other.source is not None
    assert "expected a row for each of 15 documents, got 20" in notes[0]


@pytest.mark.parametrize("damage", ["count", "itself"])
def test_manifests_that_cannot_be_are_refused(copy, damage):
    path = copy / "inner.manifest.json"
    manifest = json.loads(path.read_text())
    if damage == "count":
        manifest["content"]["inputs"][0]["documents"] += 1
    else:
        manifest["content"]["inputs"] = [{"path": str(copy / "inner"), "documents": 35}]
        manifest["run"]["plan"]["inputs"] = []
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"inner\.manifest\.json: expected parts of 35 documents together"):
        find_parts(str(copy / "outer"), 55)
