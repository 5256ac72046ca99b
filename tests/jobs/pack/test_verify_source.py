"""Packed files are compared with the records that they were made of."""

import importlib.metadata
import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from dsindex.engine.manifest import manifest_path
from dsindex.tools import verify_pbin, verify_source
from tests.jobs.pack.verifying import TOKENIZER, all_findings, change_tokens, document_ends, edit_manifest, verify
from tests.support.golden import OWN
from tests.support.pbin_files import VERSION_NAMES

VERSIONS = {name: importlib.metadata.version(name) for name in ("gigatoken", "tokenizers")}
TRUSTED = f"gigatoken {VERSIONS['gigatoken']}, and with tokenizers {VERSIONS['tokenizers']} where the two can differ"


@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no-provenance"])
def test_packed_file_is_whole_and_equals_its_source(version, provenance, pack):
    path = pack(pbin_era=version, no_provenance=not provenance)
    report = verify(path, against_source=True)
    assert report.findings == ()
    assert report.version == version
    assert {
        "every entry of the index against the tokens",
        "record counts: every line of the input is a document, without tokens, blank or quarantined",
        "every document with tokens ends with EOD",
        "digest of the .pbin",
        "every token id is in the vocabulary",
        "the number of EOD tokens",
        f"against the source: 100 of 100 documents tokenized again with {TRUSTED}",
    } <= set(report.checks)
    assert ("digest of the .provenance.parquet" in report.checks) == provenance


@pytest.mark.quick(3)
@pytest.mark.parametrize("options", [
    {"jq_pattern": ".text | ."},
    {"jq_pattern": '.["title"]'},
    {"tokenizer_model": str(OWN.bos_tokenizer)},
    {"tokenizer_model": str(OWN.bos_tokenizer), "tokenizer_hf_no_include_special_tokens": True},
], ids=["jq", "key", "bos", "no-bos"])  # fmt: skip
@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no-provenance"])
def test_source_is_read_with_the_options_of_the_packing(options, provenance, pack):
    path = pack(no_provenance=not provenance, **options)
    tokenizer = options.get("tokenizer_model", TOKENIZER)
    for engine in ("gigatoken", "tokenizers"):
        report = verify(path, against_source=True, engine=engine, tokenizer_model=tokenizer)
        assert report.findings == ()
        assert report.counts is not None
        assert report.checks[-1].startswith(f"against the source: {report.counts.num_documents} of ")
        assert f" tokenized again with {engine} " in report.checks[-1]


EXECUTORS = [pytest.param("processes", id="processes"), pytest.param("ray", id="ray", marks=pytest.mark.ray)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("executor", EXECUTORS, indirect=True)
def test_every_executor_says_the_same(executor, pack, monkeypatch):
    monkeypatch.setattr(verify_pbin, "DOCUMENTS_PER_ENDS", 7)
    path = pack()
    whole = verify(path, against_source=True)
    assert whole.findings == ()
    assert asdict(verify(path, against_source=True, executor=executor)) == asdict(whole)
    change_tokens(path, {end - 1: 3 for end in document_ends(path)[::9]} | {40: 60_000})
    damaged = verify(path, against_source=True)
    assert len(damaged.findings) >= 12
    assert asdict(verify(path, against_source=True, executor=executor)) == asdict(damaged)


@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no-provenance"])
def test_first_document_that_differs_is_named_with_its_line(provenance, pack, monkeypatch):
    """Two of the lines before it give no document."""
    monkeypatch.setattr(verify_source, "RANGE_BYTES", 5000)
    path = pack(no_provenance=not provenance)
    change_tokens(path, {15000: 7, 10000: 7})
    [finding] = [finding for finding in verify(path, against_source=True).findings if "source" in finding]
    document = int(np.searchsorted(document_ends(path), 10000, side="right"))
    assert f"{path}: document {document} differs from its source: {OWN.docs}, line " in finding
    line = int(finding.partition("line ")[2].split(",")[0])
    texts = [json.loads(text)["text"] for text in OWN.docs.read_text("utf-8").split("\n") if text]
    assert sum(bool(text) for text in texts[: line - 1]) == document
    assert "as 7 where" not in finding
    assert "where the dataset has 7; restore the dataset's files, or pack it again with --fresh" in finding


def test_lines_that_give_no_document_are_no_difference(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_source, "RANGE_BYTES", 4000)
    lines = OWN.docs.read_text("utf-8").split("\n")
    lines[3:3] = ["not json", "", '{"text": ""}', "  "]
    lines += ['{"text": ""}', "{", '{"text": ""}']
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines), "utf-8")
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": ""}\n' * 3)
    inputs = (str(source), str(empty), str(OWN.docs))
    path = pack(input=inputs, on_bad_record="quarantine")
    for provenance in (True, False):
        if not provenance:
            os.unlink(f"{path.removesuffix('.pbin')}.provenance.parquet")
            edit_manifest(path, lambda m: m["content"]["digests"].pop("provenance.parquet"))
        for options in ({}, {"sample": 0.2}):
            report = verify(path, against_source=True, **options)
            assert report.findings == ()
            assert "quarantine: the number of records in the manifest" in report.checks
    quarantine = Path(f"{path.removesuffix('.pbin')}.quarantine.jsonl.zst")
    quarantine.write_bytes(quarantine.read_bytes()[:-5])
    assert "cannot be read as a quarantine file" in all_findings(verify(path))


def test_records_that_the_file_lacks_are_found(pack, tmp_path):
    """Without provenance only the number of documents tells that the source has more."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(OWN.docs.read_bytes())
    less = pack(input=(str(source),), no_provenance=True, output=str(tmp_path / "less.pbin"))
    source.write_bytes(OWN.docs.read_bytes() + b'\n{"text": "one more"}')
    more = pack(input=(str(source),), no_provenance=True, output=str(tmp_path / "more.pbin"))
    content = json.loads(Path(manifest_path(more.removesuffix(".pbin"))).read_bytes())["content"]
    edit_manifest(less, lambda m: m["content"].update(inputs=content["inputs"]))
    report = verify(less, against_source=True)
    assert "line 103, has a record, but the dataset ends before it" in all_findings(report)
    assert "expected the 101 documents of the inputs, got 100" in all_findings(report)
