"""Packed files are verified by their manifests, and compared with the records that they were made of."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from dsindex.errors import InputError
from dsindex.options.build import BuildConfig
from dsindex.tools import verify_files, verify_source
from tests.jobs.pack.verifying import (
    TOKENIZER,
    all_findings,
    change_tokens,
    document_ends,
    edit_manifest,
    passed,
    verify,
)
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.pbin_files import VERSION_NAMES, joined_by_modalities, write_pbin

EDITS = {
    "dtype": (lambda m: m["content"].update(token_dtype="uint8"), "expected token_dtype uint8 as in the manifest"),
    "without-tokens": (lambda m: m["content"]["account"].update(empty_documents=0),
        "kept = documents with tokens + empty, got 102 and 100"),
    "rows": (lambda m: m["content"]["inputs"][0].update(kept=99), "as in the manifest (or up to 2 fewer"),
    "eod": (lambda m: m["content"].update(eod_in_text=0), "expected 100 EOD tokens, got"),
    "eod-id": (lambda m: m["content"]["tokenizer"].update(eod_id=1), "expected document 0 to end with EOD (1)"),
    "digest": (lambda m: m["content"]["digests"]["pbin"].update(xxh3_128="0" * 32),
        f"docs.pbin: expected the digest {'0' * 32}"),
    "version": (lambda m: m["content"]["options"].update(pbin_era="spec"), "docs.pbin: expected"),
}  # fmt: skip


@pytest.mark.quick(4)
@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_manifest_that_lies_is_found(edit, message, pack):
    path = pack()
    edit_manifest(path, edit)
    assert message in all_findings(verify(path))


def test_damaged_tokens_are_found(pack):
    path = pack()
    second = document_ends(path)[1]
    change_tokens(path, {second - 1: 5, 3: 65_535})
    report = verify(path)
    findings = all_findings(report)
    assert "every document with tokens ends with EOD" not in passed(report)
    assert "expected document 1 to end with EOD" in findings
    assert "got 65535 at byte 18; restore it" in findings
    assert "docs.pbin: expected the digest" in findings


@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_pieces_may_end_anywhere(size, pack, monkeypatch):
    """Of the file, also within its header and index; and of its documents."""
    path = pack()
    monkeypatch.setattr(verify_files, "DIGEST_BLOCK_BYTES", size)
    monkeypatch.setattr(verify_files, "CHUNK_BYTES", 4)
    monkeypatch.setattr(verify_files, "DOCUMENTS_PER_PIECE", 3)
    findings = verify(path).findings
    assert len(findings) == (os.path.getsize(path) > size)
    assert all("expected the digest" in finding for finding in findings)  # of blocks of another size


def test_damaged_and_missing_files_are_found(pack):
    path = pack()
    provenance = Path(f"{path.removesuffix('.pbin')}.provenance.parquet")
    whole = provenance.read_bytes()
    provenance.write_bytes(whole[:-1])
    assert "cannot be read as a provenance file" in all_findings(verify(path))
    provenance.unlink()
    assert "is missing, but the manifest lists it" in all_findings(verify(path))
    provenance.write_bytes(whole)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-9])
    report = verify(path, against_source=True)
    assert report.verdict == "damaged"
    assert report.counts is None
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


def test_manifest_of_the_other_kind_is_not_gone_by(tmp_path):
    """An MMIDIDX pair and a .pbin may share a prefix."""
    config = config_of(BuildConfig, OWN.docs, append_eod=True, output_prefix=str(tmp_path / "docs"))
    run_config(config)
    prefix = f"{config.output_prefix}_text_document"
    write_pbin(tmp_path / "docs_text_document.pbin", [[1], [2]])
    report = verify(f"{prefix}.pbin")
    assert (report.findings, report.verdict) == ((), "sound")
    assert report.notes[0].startswith(f"{prefix}.manifest.json belongs to a dataset of another format")


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


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_packed_file_is_intact_and_equals_its_source(version, pack):
    path = pack(pbin_era=version)
    report = verify(path, against_source=True)
    assert (report.findings, report.version, report.verdict) == ((), version, "intact")
    assert "against the source: 1 of 1 shards tokenized again with gigatoken " in report.checks[-1].name


@pytest.mark.quick(3)
@pytest.mark.parametrize("options", [
    {"jq_pattern": ".text | ."},
    {"jq_pattern": '.["title"]'},
    {"tokenizer_model": str(OWN.bos_tokenizer)},
    {"tokenizer_model": str(OWN.bos_tokenizer), "tokenizer_hf_no_include_special_tokens": True},
], ids=["jq", "key", "bos", "no-bos"])  # fmt: skip
def test_source_is_read_with_the_options_of_the_packing(options, pack):
    path = pack(**options)
    tokenizer = options.get("tokenizer_model", TOKENIZER)
    for engine in ("gigatoken", "tokenizers"):
        report = verify(path, against_source=True, engine=engine, tokenizer_model=tokenizer)
        assert report.findings == ()
        assert f" tokenized again with {engine} " in report.checks[-1].name


def test_first_document_that_differs_is_named_with_its_line(pack, monkeypatch):
    """Two of the lines before it give no document."""
    monkeypatch.setattr(verify_source, "SHARD_BYTES", 5000)
    path = pack()
    ends = document_ends(path)
    change_tokens(path, {10000: 7})
    edit_manifest(path, lambda m: m["content"]["digests"]["pbin"].update(xxh3_128=digest_of(path)))
    [finding] = verify(path, against_source=True).findings
    document = int(np.searchsorted(ends, 10000, side="right"))
    line = int(
        finding.partition(f"document {document} differs from its source, {OWN.docs}, line ")[2].partition(":")[0]
    )
    texts = [json.loads(text)["text"] for text in OWN.docs.read_text("utf-8").split("\n") if text]
    assert sum(bool(text) for text in texts[: line - 1]) == document
    assert "is 7 and " in finding


def digest_of(path):
    from dsindex.store.reading import digest_file

    return digest_file(path)


def test_lines_that_give_no_document_are_no_difference(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_source, "SHARD_BYTES", 4000)
    lines = OWN.docs.read_text("utf-8").split("\n")
    lines[3:3] = ["not json", "", '{"text": ""}', "  "]
    lines += ['{"text": ""}', "{", '{"text": ""}']
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines), "utf-8")
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": ""}\n' * 3)
    inputs = (str(source), str(empty), str(OWN.docs))
    path = pack(input=inputs, on_bad_record="quarantine")
    for options in ({}, {"sample": 0.2}):
        report = verify(path, against_source=True, **options)
        assert report.findings == ()
        assert "number of quarantined records" in passed(report)
    quarantine = Path(f"{path.removesuffix('.pbin')}.quarantine.jsonl.zst")
    quarantine.write_bytes(quarantine.read_bytes()[:-5])
    assert "cannot be read as a quarantine file" in all_findings(verify(path))
