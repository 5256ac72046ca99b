"""Verification of what a packing published, of packed data of others, and of both against their source."""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from dsindex.checks import tokens
from dsindex.errors import InputError, TokenizerError
from dsindex.formats.pbin import read_document_lengths, read_pbin_header
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import MODALITIES, OWN
from tests.support.pbin_files import VERSION_NAMES, joined_by_modalities, write_pbin
from tests.support.published import move_tokenizer_away
from workflows.cli import main
from workflows.jobs import verify_pbin
from workflows.jobs.build import run_build
from workflows.jobs.pack import run_pack
from workflows.jobs.verify import VerifyConfig, run_verify
from workflows.jobs.verify_pbin import run_pbin_verify
from workflows.options.build import BuildConfig
from workflows.options.pack import PackConfig
from workflows.state.manifest import manifest_path
from workflows.verification import source as verify_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.progress.reporter import Reporter
    from workflows.verification.report import VerifyReport

    Pack = Callable[..., str]

pytestmark = pytest.mark.slow

TOKENIZER = str(OWN.plain_tokenizer)
VERSIONS = {name: importlib.metadata.version(name) for name in ("gigatoken", "tokenizers")}
TRUSTED = f"gigatoken {VERSIONS['gigatoken']}, and with tokenizers {VERSIONS['tokenizers']} where the two can differ"


@pytest.fixture
def pack(tmp_path: Path, quiet: Reporter) -> Pack:
    def run(**options: object) -> str:
        defaults: dict[str, object] = {
            "input": (str(OWN.docs),),
            "tokenizer_model": TOKENIZER,
            "output": str(tmp_path / "out" / "docs.pbin"),
            "executor": "local",
            "workers": 2,
            "shard_size": "16KiB",
        }
        return run_pack(PackConfig(**{**defaults, **options}), reporter=quiet).path

    return run


def verify(path: str, reporter: Reporter, **options: Any) -> VerifyReport:
    defaults = {"executor": "local", "workers": 2, "tokenizer_model": TOKENIZER}
    return run_pbin_verify(path, VerifyConfig(**{**defaults, **options}), reporter=reporter)


def all_findings(report: VerifyReport) -> str:
    return "\n".join(report.findings)


def change_tokens(path: str, changes: dict[int, int]) -> None:
    header = read_pbin_header(path)
    stored = np.memmap(path, header.dtype, mode="r+", offset=header.version.header_bytes, shape=(header.num_tokens,))
    for token, value in changes.items():
        stored[token] = value
    stored.flush()


def document_ends(path: str) -> list[int]:
    """The token after each document."""
    lengths = np.concatenate(list(read_document_lengths(path, read_pbin_header(path))))
    return [int(end) for end in np.cumsum(lengths)]


def edit_manifest(path: str, edit: Callable[[dict[str, Any]], None]) -> None:
    manifest = Path(manifest_path(path.removesuffix(".pbin")))
    content = json.loads(manifest.read_bytes())
    edit(content)
    manifest.write_bytes(orjson.dumps(content))


@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no-provenance"])
def test_packed_file_is_whole_and_equals_its_source(
    version: str, provenance: bool, pack: Pack, quiet: Reporter
) -> None:
    path = pack(pbin_era=version, no_provenance=not provenance)
    report = verify(path, quiet, against_source=True)
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


@pytest.mark.parametrize(
    "options",
    [
        {"jq_pattern": ".text | ."},
        {"jq_pattern": '.["title"]'},
        {"tokenizer_model": str(OWN.bos_tokenizer)},
        {"tokenizer_model": str(OWN.bos_tokenizer), "tokenizer_hf_no_include_special_tokens": True},
    ],
    ids=["jq", "key", "bos", "no-bos"],
)
@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no-provenance"])
def test_source_is_read_with_the_options_of_the_packing(
    options: dict[str, Any], provenance: bool, pack: Pack, quiet: Reporter
) -> None:
    path = pack(no_provenance=not provenance, **options)
    tokenizer = options.get("tokenizer_model", TOKENIZER)
    for engine in ("gigatoken", "tokenizers"):
        report = verify(path, quiet, against_source=True, engine=engine, tokenizer_model=tokenizer)
        assert report.findings == ()
        assert report.counts is not None
        assert report.checks[-1].startswith(f"against the source: {report.counts.num_documents} of ")
        assert f" tokenized again with {engine} " in report.checks[-1]


EXECUTORS = [pytest.param("processes", id="processes"), pytest.param("ray", id="ray", marks=pytest.mark.ray)]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.slow
def test_every_executor_says_the_same(
    executor: str, pack: Pack, quiet: Reporter, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_instance")
    monkeypatch.setattr(verify_pbin, "DOCUMENTS_PER_ENDS", 7)
    path = pack()
    whole = verify(path, quiet, against_source=True)
    assert whole.findings == ()
    assert asdict(verify(path, quiet, against_source=True, executor=executor)) == asdict(whole)
    change_tokens(path, {end - 1: 3 for end in document_ends(path)[::9]} | {40: 60_000})
    damaged = verify(path, quiet, against_source=True)
    assert len(damaged.findings) >= 12
    assert asdict(verify(path, quiet, against_source=True, executor=executor)) == asdict(damaged)


@pytest.mark.parametrize("provenance", [True, False], ids=["provenance", "no-provenance"])
def test_first_document_that_differs_is_named_with_its_line(
    provenance: bool, pack: Pack, quiet: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the lines before it give no document."""
    monkeypatch.setattr(verify_source, "RANGE_BYTES", 5000)
    path = pack(no_provenance=not provenance)
    change_tokens(path, {15000: 7, 10000: 7})
    [finding] = [finding for finding in verify(path, quiet, against_source=True).findings if "source" in finding]
    document = int(np.searchsorted(document_ends(path), 10000, side="right"))
    assert f"{path}: document {document} differs from its source: {OWN.docs}, line " in finding
    line = int(finding.partition("line ")[2].split(",")[0])
    texts = [json.loads(text)["text"] for text in OWN.docs.read_text("utf-8").split("\n") if text]
    assert sum(bool(text) for text in texts[: line - 1]) == document
    assert "as 7 where" not in finding
    assert "where the dataset has 7; restore the dataset's files, or pack it again with --fresh" in finding


def test_lines_that_give_no_document_are_no_difference(
    pack: Pack, quiet: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            report = verify(path, quiet, against_source=True, **options)
            assert report.findings == ()
            assert "quarantine: the number of records in the manifest" in report.checks
    quarantine = Path(f"{path.removesuffix('.pbin')}.quarantine.jsonl.zst")
    quarantine.write_bytes(quarantine.read_bytes()[:-5])
    assert "cannot be read as a quarantine file" in all_findings(verify(path, quiet))


def test_records_that_the_file_lacks_are_found(pack: Pack, quiet: Reporter, tmp_path: Path) -> None:
    """Without provenance only the number of documents tells that the source has more."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(OWN.docs.read_bytes())
    less = pack(input=(str(source),), no_provenance=True, output=str(tmp_path / "less.pbin"))
    source.write_bytes(OWN.docs.read_bytes() + b'\n{"text": "one more"}')
    more = pack(input=(str(source),), no_provenance=True, output=str(tmp_path / "more.pbin"))
    content = json.loads(Path(manifest_path(more.removesuffix(".pbin"))).read_bytes())["content"]
    edit_manifest(less, lambda m: m["content"].update(inputs=content["inputs"]))
    report = verify(less, quiet, against_source=True)
    assert "line 103, has a record, but the dataset ends before it" in all_findings(report)
    assert "expected the 101 documents of the inputs, got 100" in all_findings(report)


EDITS: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("documents", lambda m: m["content"].update(documents=7), "expected documents 7 as in the manifest, got 100"),
    ("dtype", lambda m: m["content"].update(token_dtype="uint8"), "expected token_dtype uint8 as in the manifest"),
    ("lines", lambda m: m["content"]["account"].update(lines=7), "record counts do not add up: expected lines ="),
    (
        "without-tokens",
        lambda m: m["content"]["account"].update(empty_documents=0),
        "kept = documents with tokens + empty, got 102 and 100",
    ),
    ("kept", lambda m: m["content"]["inputs"][0].update(kept=99), "records kept of all inputs, got 102 and 99"),
    ("rows", lambda m: m["content"]["inputs"][0].update(kept=99), "expected 99 documents (or up to 2 fewer"),
    ("eod", lambda m: m["content"].update(eod_in_text=0), "expected 100 EOD tokens (one at the end of each"),
    ("eod-id", lambda m: m["content"]["tokenizer"].update(eod_id=1), "expected document 0 to end with EOD (1)"),
    ("size", lambda m: m["content"]["digests"]["pbin"].update(size_bytes=1), "docs.pbin: expected 1 bytes"),
    (
        "digest",
        lambda m: m["content"]["digests"]["pbin"].update(xxh3_128="0" * 32),
        f"docs.pbin: expected the digest {'0' * 32}",
    ),
    ("vocabulary", lambda m: m["content"]["tokenizer"].update(vocabulary_size=500), "token ids from 0 to 499"),
    ("version", lambda m: m["content"]["options"].update(pbin_era="spec"), "of version spec as in the manifest, got"),
    ("version-type", lambda m: m["content"]["options"].update(pbin_era=3), "expected a valid content.options.pbin_era"),
    ("pattern", lambda m: m["content"]["options"].pop("jq_pattern"), "expected a valid content.options.jq_pattern"),
    ("type", lambda m: m["content"].update(documents="x"), "expected a valid content.documents"),
    ("bigger", lambda m: m["content"]["inputs"][0].update(size_bytes=50), "offsets inside the input"),
]


@pytest.mark.parametrize(("edit", "message"), [case[1:] for case in EDITS], ids=[case[0] for case in EDITS])
def test_manifest_that_lies_is_found(
    edit: Callable[[dict[str, Any]], None], message: str, pack: Pack, quiet: Reporter
) -> None:
    path = pack()
    edit_manifest(path, edit)
    report = verify(path, quiet)
    assert not report.is_whole
    assert message in all_findings(report)


def test_damaged_tokens_are_found(pack: Pack, quiet: Reporter) -> None:
    path = pack()
    second = document_ends(path)[1]
    change_tokens(path, {second - 1: 5, 3: 65_535})
    findings = all_findings(verify(path, quiet))
    assert "expected document 1 to end with EOD" in findings
    assert "got 65535 at byte 18; its content changed" in findings
    assert "docs.pbin: expected the digest" in findings


@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_pieces_may_end_anywhere(size: int, pack: Pack, quiet: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file, also within its header and index; and of its documents."""
    path = pack()
    monkeypatch.setattr(tokens, "DIGEST_BLOCK_BYTES", size)
    monkeypatch.setattr(tokens, "CHUNK_BYTES", 4)
    monkeypatch.setattr(verify_pbin, "DOCUMENTS_PER_ENDS", 3)
    report = verify(path, quiet)
    assert all("expected the digest" in finding for finding in report.findings)  # of blocks of another size
    assert "the number of EOD tokens" in report.checks


def test_damaged_and_missing_files_are_found(pack: Pack, quiet: Reporter) -> None:
    path = pack()
    prefix = path.removesuffix(".pbin")
    provenance = Path(f"{prefix}.provenance.parquet")
    whole = provenance.read_bytes()
    provenance.write_bytes(whole[:-1])
    assert "cannot be read as a provenance file" in all_findings(verify(path, quiet))
    provenance.unlink()
    assert "is missing, but the manifest lists it" in all_findings(verify(path, quiet))
    provenance.write_bytes(whole)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-9])
    report = verify(path, quiet, against_source=True)
    assert "got one that is cut off" in report.findings[0]
    assert f"expected {len(data)} bytes as in the manifest, got {len(data) - 9}" in all_findings(report)
    assert "every token id is in the vocabulary" in report.checks  # what is left is still checked
    assert report.notes == ("the index is damaged, so the dataset could not be compared with its source",)
    Path(path).write_bytes(data[:1000])
    report = verify(path, quiet, against_source=True)
    assert "as its header says, and an index, got a file of 1000 bytes" in report.findings[0]
    assert report.notes == ("the header is damaged, so the file could not be compared with its source",)
    Path(path).unlink()
    assert f"{path}: cannot be read (No such file" in verify(path, quiet).findings[0]
    os.mkfifo(path)
    report = verify(path, quiet)
    assert f"{path}: cannot be read (it is a pipe, and only a file will do)" in report.findings[0]
    assert not any("the header" in check for check in report.checks)


def test_file_of_others_is_verified_as_far_as_it_goes(quiet: Reporter, tmp_path: Path) -> None:
    for version in VERSION_NAMES:
        report = verify(write_pbin(tmp_path / "a.pbin", [[1, 2], [], [3]], version=version), quiet)
        assert (report.findings, report.version) == ((), version)
        assert report.notes == ("there is no manifest: digests, vocabulary and EOD could not be checked",)
    with pytest.raises(InputError, match="expected the manifest of `dsindex pack`, which names inputs"):
        verify(str(tmp_path / "a.pbin"), quiet, against_source=True)


def test_file_of_modalities_is_whole(quiet: Reporter) -> None:
    report = verify(str(MODALITIES / "nonempty.pbin"), quiet)
    assert report.findings == ()
    assert report.counts is not None
    assert (report.counts.num_documents, report.counts.token_dtype) == (216, "uint16")


def test_joined_file_is_recognised_and_mended(pack: Pack, quiet: Reporter, tmp_path: Path) -> None:
    part = Path(pack()).read_bytes()
    joined = tmp_path / "joined.pbin"
    joined.write_bytes(joined_by_modalities([part, part]))
    [finding] = verify(str(joined), quiet).findings
    assert "12 bytes too low after each of 1 joints" in finding
    command = finding.partition("repair it with: dsindex ")[2].replace("NEW", str(tmp_path / "mended")).split()
    assert main([*command, "--executor", "local"]) == 0
    assert verify(str(tmp_path / "mended.pbin"), quiet).is_whole


def test_manifest_of_the_other_kind_is_not_gone_by(pack: Pack, quiet: Reporter, tmp_path: Path) -> None:
    """An MMIDIDX pair and a .pbin may share a prefix."""
    config = BuildConfig(
        input=(str(OWN.docs),),
        tokenizer_model=TOKENIZER,
        append_eod=True,
        output_prefix=str(tmp_path / "docs"),
        executor="local",
    )
    run_build(config, reporter=quiet)
    prefix = f"{config.output_prefix}_text_document"
    write_pbin(tmp_path / "docs_text_document.pbin", [[1], [2]])
    report = verify(f"{prefix}.pbin", quiet)
    assert report.findings == ()
    assert report.notes[0].startswith(f"{prefix}.manifest.json belongs to the .bin and .idx: digests")
    packed_path = pack()
    for suffix in ("bin", "idx"):
        os.link(f"{prefix}.{suffix}", f"{packed_path.removesuffix('.pbin')}.{suffix}")
    report = run_verify(packed_path.removesuffix(".pbin"), VerifyConfig(executor="local"), reporter=quiet)
    assert report.findings == ()
    assert "docs.manifest.json belongs to the .pbin" in report.notes[0]


def test_source_needs_the_same_tokenizer_and_inputs(pack: Pack, quiet: Reporter, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(OWN.docs.read_bytes())
    path = pack(input=(str(source),))
    assert verify(path, quiet, against_source=True, tokenizer_model=None).is_whole
    move_tokenizer_away(path.removesuffix(".pbin"))
    with pytest.raises(TokenizerError, match="give its path with --tokenizer-model"):
        verify(path, quiet, against_source=True, tokenizer_model=None)
    with pytest.raises(TokenizerError, match="expected the tokenizer with sha256"):
        verify(path, quiet, against_source=True, tokenizer_model=str(OWN.bos_tokenizer))
    source.write_bytes(OWN.docs.read_bytes() + b"\n")
    assert f"{source}: expected the input of 64460 bytes" in verify(path, quiet, against_source=True).findings[0]


@pytest.mark.parametrize("suffix", ["pbin", "manifest.json", "provenance.parquet"])
def test_any_damage_is_a_finding_and_never_an_error(suffix: str, pack: Pack, quiet: Reporter) -> None:
    path = pack()
    damaged = Path(f"{path.removesuffix('.pbin')}.{suffix}")
    whole = damaged.read_bytes()
    for seed in range(60):
        rng = random.Random(f"{suffix} {seed}")
        begin, end = rng.choice([(0, 12), (len(whole) - 900, len(whole)), (0, len(whole))])
        damaged.write_bytes(whole[:begin] + damage_bytes(whole[begin:end], rng) + whole[end:])
        if suffix == "manifest.json" and seed % 2:
            damaged.write_text(json.dumps(damage_json(json.loads(whole), rng)))
        report = verify(path, quiet)
        if suffix != "manifest.json" and damaged.read_bytes() != whole:
            assert report.findings, seed


def test_command_says_what_was_found(pack: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
