"""Packed files are verified by their manifests, and compared with the records that they were made of."""

from pathlib import Path

import pytest

from dsindex.errors import InputError
from tests.commands.pack.verifying import TOKENIZER, all_findings, verify
from tests.support.golden import OWN
from tests.support.pbin_files import VERSION_NAMES, joined_by_modalities, write_pbin
from tests.support.published import edit_manifest


@pytest.mark.parametrize("options", [
    *({"pbin_era": version} for version in VERSION_NAMES),
    {"jq_pattern": ".text | ."},
    {"pbin_era": "2024-01-30", "shuffle_documents": 7},
    {"tokenizer_model": str(OWN.bos_tokenizer), "tokenizer_hf_no_include_special_tokens": True},
], ids=str)  # fmt: skip
def test_packed_file_is_intact_and_equals_its_source(options, pack, monkeypatch):
    monkeypatch.setattr("dsindex.commands.verify.SHARD_BYTES", 1 << 12)
    tokenizer = options.get("tokenizer_model", TOKENIZER)
    report, version = verify(pack(**options), against_source=True, tokenizer_model=tokenizer), options.get("pbin_era")
    assert (report.findings, report.verdict) == ((), "intact")
    assert report.counts.version == (version or "current")


def test_damaged_and_missing_files_are_found(pack):
    path = pack()
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:20] + bytes(2) + data[22:])
    assert "docs.pbin: its content changed" in all_findings(verify(path))
    Path(path).write_bytes(data[:-9])
    report = verify(path, against_source=True)
    assert (report.verdict, report.counts) == ("damaged", None)
    assert report.notes == ("index or provenance are damaged, so the dataset was not compared with its source",)
    Path(path).write_bytes(data)
    edit_manifest(path, lambda m: m["content"]["options"].update(pbin_era="spec"))
    assert "docs.pbin: this is a .pbin of version" in all_findings(verify(path))


def test_file_of_others_is_sound_and_not_called_intact(tmp_path):
    for version in VERSION_NAMES:
        report = verify(write_pbin(tmp_path / "a.pbin", [[1, 2], [], [3]], version=version))
        assert (report.findings, report.counts.version, report.verdict) == ((), version, "sound")
    with pytest.raises(InputError, match="no manifest of a build or pack"):
        verify(str(tmp_path / "a.pbin"), against_source=True)


def test_joined_file_is_recognised(tmp_path):
    part = Path(write_pbin(tmp_path / "a.pbin", [[1, 2], [3]])).read_bytes()
    (tmp_path / "joined.pbin").write_bytes(joined_by_modalities([part, part]))
    [finding] = verify(str(tmp_path / "joined.pbin")).findings
    assert "if Modalities joined this file" in finding
