"""Packed files are verified by their manifests, and compared with the records that they were made of."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dsindex.errors import InputError
from dsindex.store.reading import digest_file
from dsindex.tools import verify_tokens
from tests.jobs.pack.verifying import TOKENIZER, all_findings, change_tokens, document_ends, edit_manifest, verify
from tests.support.golden import OWN
from tests.support.pbin_files import VERSION_NAMES, joined_by_modalities, write_pbin


@pytest.mark.parametrize("options", [
    *({"pbin_era": version} for version in VERSION_NAMES),
    {"jq_pattern": ".text | ."},
    {"tokenizer_model": str(OWN.bos_tokenizer), "tokenizer_hf_no_include_special_tokens": True},
], ids=str)  # fmt: skip
def test_packed_file_is_intact_and_equals_its_source(options, pack):
    tokenizer = options.get("tokenizer_model", TOKENIZER)
    report = verify(pack(**options), against_source=True, tokenizer_model=tokenizer)
    assert (report.findings, report.version, report.verdict) == ((), options.get("pbin_era", "current"), "intact")
    assert "against the source: 1 of 1 shards tokenized again with gigatoken " in report.checks[-1].name


def test_damaged_and_missing_files_are_found(pack):
    path = pack()
    data = Path(path).read_bytes()
    change_tokens(path, {3: 65_535})
    assert "docs.pbin: expected the digest" in all_findings(verify(path))
    Path(path).write_bytes(data[:-9])
    report = verify(path, against_source=True)
    assert (report.verdict, report.counts) == ("damaged", None)
    assert report.notes == ("index or provenance are damaged, so the dataset was not compared with its source",)
    os.unlink(path)
    os.mkfifo(path)
    assert "a pipe" in all_findings(verify(path))


def test_file_of_others_is_sound_and_not_called_intact(tmp_path):
    for version in VERSION_NAMES:
        report = verify(write_pbin(tmp_path / "a.pbin", [[1, 2], [], [3]], version=version))
        assert (report.findings, report.version, report.verdict) == ((), version, "sound")
    with pytest.raises(InputError, match="expected the manifest of a build or pack, which names inputs"):
        verify(str(tmp_path / "a.pbin"), against_source=True)


def test_joined_file_is_recognised(pack, tmp_path):
    part = Path(pack()).read_bytes()
    joined = tmp_path / "joined.pbin"
    joined.write_bytes(joined_by_modalities([part, part]))
    [finding] = verify(str(joined)).findings
    assert "if Modalities joined this file" in finding


def test_first_document_that_differs_is_named_with_its_line(pack, monkeypatch):
    """Two of the lines before it give no document."""
    monkeypatch.setattr(verify_tokens, "SHARD_BYTES", 5000)
    path = pack()
    ends = document_ends(path)
    change_tokens(path, {10000: 7})
    edit_manifest(path, lambda m: m["content"]["digests"]["pbin"].update(xxh3_128=digest_file(path)))
    [finding] = verify(path, against_source=True).findings
    document = int(np.searchsorted(ends, 10000, side="right"))
    line = int(
        finding.partition(f"document {document} differs from its source, {OWN.docs}, line ")[2].partition(":")[0]
    )
    texts = [json.loads(text)["text"] for text in OWN.docs.read_text("utf-8").split("\n") if text]
    assert sum(bool(text) for text in texts[: line - 1]) == document
    assert "is 7 and " in finding


def test_lines_that_give_no_document_are_no_difference(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_tokens, "SHARD_BYTES", 4000)
    lines = OWN.docs.read_text("utf-8").split("\n")
    lines[3:3] = ["not json", "", '{"text": ""}', "  "]
    lines += ['{"text": ""}', "{", '{"text": ""}']
    source, empty = tmp_path / "in.jsonl", tmp_path / "empty.jsonl"
    source.write_text("\n".join(lines), "utf-8")
    empty.write_text('{"text": ""}\n' * 3)
    path = pack(input=(str(source), str(empty), str(OWN.docs)), on_bad_record="quarantine")
    assert verify(path, against_source=True).findings == verify(path, against_source=True, sample=0.2).findings == ()
