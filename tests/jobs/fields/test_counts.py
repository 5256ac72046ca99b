"""Records that conditions leave out are counted, and what was built is verified by its fields."""

import json
import shutil
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.engine.manifest import RecordCounts
from dsindex.errors import InputError
from dsindex.execution.progress.reporter import Reporter
from dsindex.options.datasets import VerifyConfig
from dsindex.tools.verify import run_verify
from tests.jobs.fields.field_builds import KINDS, config_of
from tests.support.golden import OWN
from tests.support.jobs import run_config


def test_filtered_records_are_counted(source, tmp_path, capsys):
    options = ("--input", source / "a.jsonl", "--tokenizer-model", OWN.plain_tokenizer, "--append-eod")
    words = ("build", *options, "--output-prefix", tmp_path / "x", "--where", ".n < 100", "--workers", 1)
    assert main([*map(str, words), "--on-bad-record", "quarantine", "--executor", "local"]) == 0
    assert "200 lines = 96 kept + 101 filtered + 2 quarantined + 1 blank" in capsys.readouterr().out
    content = json.loads((tmp_path / "x_text_document.manifest.json").read_bytes())["content"]
    assert content["account"]["filtered"] == content["inputs"][0]["filtered"] == 101
    assert content["options"]["where"] == ".n < 100"


def test_condition_that_leaves_out_nothing_is_counted_too(source, tmp_path):
    report = run_config(config_of(source, tmp_path, where="true"))
    assert report.counts.model_fields_set >= {"filtered"}
    assert report.counts.filtered == 0


def test_condition_that_leaves_out_everything_is_an_error(source, tmp_path):
    with pytest.raises(InputError, match=r"expected a record that --where keeps, got none of 396"):
        run_config(config_of(source, tmp_path, where=".nosuch"))


def test_records_that_are_all_bad_are_an_error(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n\n{}\n")
    with pytest.raises(InputError, match=r"got none but 2 bad ones; the first is .*bad\.jsonl, line 1: .*'text'"):
        run_config(config_of(tmp_path, tmp_path, input=(str(tmp_path / "bad.jsonl"),)))


def test_share_of_bad_records_counts_filtered_ones_as_records(source, tmp_path):
    options = {"where": ".n == 5", "max_bad_records": "1%"}
    report = run_config(config_of(source, tmp_path, **options))
    assert (report.counts.kept, report.counts.quarantined) == (2, 2)


def test_counts_of_older_manifests_have_no_filtered_records():
    old = {"lines": 2, "blank": 0, "records": 2, "kept": 2, "quarantined": 0}
    counts = RecordCounts.model_validate({**old, "documents_with_tokens": 2, "empty_documents": 0})
    assert counts.filtered == 0


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_verify_compares_with_the_source(kind, source, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    for options in ({}, {"no_provenance": True}):
        folder = tmp_path / f"out{len(options)}"
        report = run_config(config_of(copy, folder, **KINDS[kind], **options))
        for dataset in report.datasets:
            verified = verify(dataset.prefix)
            assert verified.findings == ()
            assert any("record counts" in name for name in verified.checks)
    path = Path(f"{report.datasets[-1].prefix}.bin")
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert any("differs from its source" in finding for finding in verify(report.datasets[-1].prefix).findings)


def verify(prefix):
    config = VerifyConfig(against_source=True, tokenizer_model=str(OWN.plain_tokenizer), executor="local", workers=2)
    return run_verify(prefix, config, reporter=Reporter())


def test_counts_that_do_not_add_up_are_found(source, tmp_path):
    report = run_config(config_of(source, tmp_path, where=".n < 9"))
    path = Path(f"{report.datasets[0].prefix}.manifest.json")
    manifest = json.loads(path.read_bytes())
    manifest["content"]["account"]["filtered"] -= 1
    path.write_text(json.dumps(manifest))
    findings = verify(report.datasets[0].prefix).findings
    assert any("expected records = kept + filtered + quarantined" in finding for finding in findings)
