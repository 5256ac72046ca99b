"""Packed files are verified by their manifests, and compared with the records that they were made of."""

import importlib.metadata
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from dsindex.engine.manifest import manifest_path
from dsindex.engine.progress import Reporter
from dsindex.errors import InputError
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import VerifyConfig
from dsindex.tools import verify_pbin, verify_source
from dsindex.tools import verify_report as tokens
from dsindex.tools.verify import run_verify
from tests.jobs.pack.verifying import TOKENIZER, all_findings, change_tokens, document_ends, edit_manifest, verify
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.pbin_files import VERSION_NAMES, joined_by_modalities, write_pbin

EDITS = [
    ("dtype", lambda m: m["content"].update(token_dtype="uint8"), "expected token_dtype uint8 as in the manifest"),
    ("without-tokens", lambda m: m["content"]["account"].update(empty_documents=0),
     "kept = documents with tokens + empty, got 102 and 100"),
    ("rows", lambda m: m["content"]["inputs"][0].update(kept=99), "expected 99 documents (or up to 2 fewer"),
    ("eod", lambda m: m["content"].update(eod_in_text=0), "expected 100 EOD tokens (one at the end of each"),
    ("eod-id", lambda m: m["content"]["tokenizer"].update(eod_id=1), "expected document 0 to end with EOD (1)"),
    ("digest", lambda m: m["content"]["digests"]["pbin"].update(xxh3_128="0" * 32),
     f"docs.pbin: expected the digest {'0' * 32}"),
    ("version", lambda m: m["content"]["options"].update(pbin_era="spec"), "of version spec as in the manifest, got"),
    ("pattern", lambda m: m["content"]["options"].pop("jq_pattern"), "expected a valid content.options.jq_pattern"),
]  # fmt: skip


@pytest.mark.quick(4)
@pytest.mark.parametrize(("edit", "message"), [case[1:] for case in EDITS], ids=[case[0] for case in EDITS])
def test_manifest_that_lies_is_found(edit, message, pack):
    path = pack()
    edit_manifest(path, edit)
    report = verify(path)
    assert not report.is_whole
    assert message in all_findings(report)


def test_damaged_tokens_are_found(pack):
    path = pack()
    second = document_ends(path)[1]
    change_tokens(path, {second - 1: 5, 3: 65_535})
    report = verify(path)
    findings = all_findings(report)
    assert "every document with tokens ends with EOD" not in report.checks
    assert "expected document 1 to end with EOD" in findings
    assert "got 65535 at byte 18; its content changed" in findings
    assert "docs.pbin: expected the digest" in findings


@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_pieces_may_end_anywhere(size, pack, monkeypatch):
    """Of the file, also within its header and index; and of its documents."""
    path = pack()
    monkeypatch.setattr(tokens, "DIGEST_BLOCK_BYTES", size)
    monkeypatch.setattr(tokens, "CHUNK_BYTES", 4)
    monkeypatch.setattr(verify_pbin, "DOCUMENTS_PER_ENDS", 3)
    report = verify(path)
    assert all("expected the digest" in finding for finding in report.findings)  # of blocks of another size
    assert "the number of EOD tokens" in report.checks


def test_damaged_and_missing_files_are_found(pack):
    path = pack()
    prefix = path.removesuffix(".pbin")
    provenance = Path(f"{prefix}.provenance.parquet")
    whole = provenance.read_bytes()
    provenance.write_bytes(whole[:-1])
    assert "cannot be read as a provenance file" in all_findings(verify(path))
    provenance.unlink()
    assert "is missing, but the manifest lists it" in all_findings(verify(path))
    provenance.write_bytes(whole)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-9])
    report = verify(path, against_source=True)
    assert "got one that is cut off" in report.findings[0]
    assert f"expected {len(data)} bytes as in the manifest, got {len(data) - 9}" in all_findings(report)
    assert "every token id is in the vocabulary" in report.checks  # what is left is still checked
    assert report.notes == ("the index is damaged, so the dataset could not be compared with its source",)
    Path(path).write_bytes(data[:1000])
    report = verify(path, against_source=True)
    assert "as its header says, and an index, got a file of 1000 bytes" in report.findings[0]
    assert report.notes == ("the header is damaged, so the file could not be compared with its source",)
    Path(path).unlink()
    assert f"{path}: cannot be read (No such file" in verify(path).findings[0]
    os.mkfifo(path)
    report = verify(path)
    assert f"{path}: cannot be read (a pipe in place of a file)" in report.findings[0]
    assert not any("the header" in check for check in report.checks)


def test_file_of_others_is_verified_as_far_as_it_goes(tmp_path):
    for version in VERSION_NAMES:
        report = verify(write_pbin(tmp_path / "a.pbin", [[1, 2], [], [3]], version=version))
        assert (report.findings, report.version) == ((), version)
        assert report.notes == ("there is no manifest: digests, vocabulary and EOD could not be checked",)
    with pytest.raises(InputError, match="expected the manifest of `dsindex pack`, which names inputs"):
        verify(str(tmp_path / "a.pbin"), against_source=True)


def test_joined_file_is_recognised(pack, tmp_path):
    part = Path(pack()).read_bytes()
    joined = tmp_path / "joined.pbin"
    joined.write_bytes(joined_by_modalities([part, part]))
    [finding] = verify(str(joined)).findings
    assert "12 bytes too low after each of 1 joints" in finding


def test_manifest_of_the_other_kind_is_not_gone_by(pack, tmp_path):
    """An MMIDIDX pair and a .pbin may share a prefix."""
    config = config_of(BuildConfig, OWN.docs, append_eod=True, output_prefix=str(tmp_path / "docs"))
    run_config(config)
    prefix = f"{config.output_prefix}_text_document"
    write_pbin(tmp_path / "docs_text_document.pbin", [[1], [2]])
    report = verify(f"{prefix}.pbin")
    assert report.findings == ()
    assert report.notes[0].startswith(f"{prefix}.manifest.json belongs to the .bin and .idx: digests")
    packed_path = pack()
    for suffix in ("bin", "idx"):
        os.link(f"{prefix}.{suffix}", f"{packed_path.removesuffix('.pbin')}.{suffix}")
    report = run_verify(packed_path.removesuffix(".pbin"), VerifyConfig(executor="local"), reporter=Reporter())
    assert report.findings == ()
    assert "docs.manifest.json belongs to the .pbin" in report.notes[0]


@pytest.mark.parametrize("suffix", ["pbin", "manifest.json", "provenance.parquet"])
def test_any_damage_is_a_finding_and_never_an_error(suffix, pack):
    path = pack()
    damaged = Path(f"{path.removesuffix('.pbin')}.{suffix}")
    whole = damaged.read_bytes()
    for seed in range(60):
        rng = random.Random(f"{suffix} {seed}")
        begin, end = rng.choice([(0, 12), (len(whole) - 900, len(whole)), (0, len(whole))])
        damaged.write_bytes(whole[:begin] + damage_bytes(whole[begin:end], rng) + whole[end:])
        if suffix == "manifest.json" and seed % 2:
            damaged.write_text(json.dumps(damage_json(json.loads(whole), rng)))
        report = verify(path)
        if suffix != "manifest.json" and damaged.read_bytes() != whole:
            assert report.findings, seed


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
