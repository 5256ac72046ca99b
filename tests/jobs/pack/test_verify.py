"""Packed files are verified without their source: those of `pack` by their manifests, and those of others."""

import json
import os
import random
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.errors import InputError
from dsindex.execution.progress.reporter import Reporter
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import VerifyConfig
from dsindex.tools import verify_pbin
from dsindex.tools import verify_report as tokens
from dsindex.tools.verify import run_verify
from tests.jobs.pack.verifying import all_findings, change_tokens, document_ends, edit_manifest, verify
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import MODALITIES, OWN
from tests.support.jobs import config_of, run_config
from tests.support.pbin_files import VERSION_NAMES, joined_by_modalities, write_pbin

EDITS = [
    ("documents", lambda m: m["content"].update(documents=7), "expected documents 7 as in the manifest, got 100"),
    ("dtype", lambda m: m["content"].update(token_dtype="uint8"), "expected token_dtype uint8 as in the manifest"),
    ("lines", lambda m: m["content"]["account"].update(lines=7), "record counts do not add up: expected lines ="),
    ("without-tokens", lambda m: m["content"]["account"].update(empty_documents=0),
     "kept = documents with tokens + empty, got 102 and 100"),
    ("kept", lambda m: m["content"]["inputs"][0].update(kept=99), "records kept of all inputs, got 102 and 99"),
    ("rows", lambda m: m["content"]["inputs"][0].update(kept=99), "expected 99 documents (or up to 2 fewer"),
    ("eod", lambda m: m["content"].update(eod_in_text=0), "expected 100 EOD tokens (one at the end of each"),
    ("eod-id", lambda m: m["content"]["tokenizer"].update(eod_id=1), "expected document 0 to end with EOD (1)"),
    ("size", lambda m: m["content"]["digests"]["pbin"].update(size_bytes=1), "docs.pbin: expected 1 bytes"),
    ("digest", lambda m: m["content"]["digests"]["pbin"].update(xxh3_128="0" * 32),
     f"docs.pbin: expected the digest {'0' * 32}"),
    ("vocabulary", lambda m: m["content"]["tokenizer"].update(vocabulary_size=500), "token ids from 0 to 499"),
    ("version", lambda m: m["content"]["options"].update(pbin_era="spec"), "of version spec as in the manifest, got"),
    ("version-type", lambda m: m["content"]["options"].update(pbin_era=3), "expected a valid content.options.pbin_era"),
    ("pattern", lambda m: m["content"]["options"].pop("jq_pattern"), "expected a valid content.options.jq_pattern"),
    ("type", lambda m: m["content"].update(documents="x"), "expected a valid content.documents"),
    ("bigger", lambda m: m["content"]["inputs"][0].update(size_bytes=50), "offsets inside the input"),
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
    findings = all_findings(verify(path))
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


def test_file_of_modalities_is_whole():
    report = verify(str(MODALITIES / "nonempty.pbin"))
    assert report.findings == ()
    assert report.counts is not None
    assert (report.counts.num_documents, report.counts.token_dtype) == (216, "uint16")


def test_joined_file_is_recognised_and_mended(pack, tmp_path):
    part = Path(pack()).read_bytes()
    joined = tmp_path / "joined.pbin"
    joined.write_bytes(joined_by_modalities([part, part]))
    [finding] = verify(str(joined)).findings
    assert "12 bytes too low after each of 1 joints" in finding
    command = finding.partition("repair it with: dsindex ")[2].replace("NEW", str(tmp_path / "mended")).split()
    assert main([*command, "--executor", "local"]) == 0
    assert verify(str(tmp_path / "mended.pbin")).is_whole


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


def test_command_says_what_was_found(pack, tmp_path, capsys):
    path = pack()
    assert main(["verify", path, "--executor", "local"]) == 0
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{path}: intact"
    assert second == "  100 documents (0 empty), 20,380 tokens of type uint16"
    assert third == "  version of the .pbin: current"
    assert main(["verify", path, "--cache", str(tmp_path), "--executor", "local"]) == 2
    assert f"--cache checks Megatron's index caches, which {path} cannot have" in capsys.readouterr().err
    change_tokens(path, {5: 1})
    assert main(["verify", path, "--executor", "local", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["is_whole"], report["prefix"], report["version"]) == (False, path, "current")
    assert report["counts"]["num_tokens"] == 20380
    assert "expected the digest" in report["findings"][0]
    assert main(["verify", str(tmp_path / "nothing.pbin"), "--executor", "local"]) == 1
    assert "nothing.pbin: there is no dataset: looked for " in capsys.readouterr().out
