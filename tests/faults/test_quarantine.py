"""Bad records: exactly those are set aside, every line is accounted for, whatever the cut and the executor."""

import base64
import json
import os
import random

import pytest

from dsindex.errors import BadRecordError, InputError
from dsindex.options.build import BuildConfig
from dsindex.store.read import digest_file
from tests.faults.corpus import BROKEN, write_corpus
from tests.support.compressed import zstd
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import published

NUM_LINES = 1400


@pytest.fixture(scope="module")
def broken():
    """One line in a hundred, every kind among them."""
    lines = sorted(random.Random(3).sample(range(NUM_LINES), NUM_LINES // 100))
    return dict(zip(lines, BROKEN.values(), strict=True))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, broken):
    path = tmp_path_factory.mktemp("corpus") / "in.jsonl"
    write_corpus(path, num_lines=NUM_LINES, broken=broken)
    return path


def build(corpus, out, **options):
    defaults = {"json_keys": ("text", "title"), "append_eod": True, "on_bad_record": "quarantine"}
    defaults |= {"shard_size": "32KiB", "output_prefix": str(out / "x")}
    return run_config(config_of(BuildConfig, corpus, **{**defaults, **options}))


def read_quarantine(path):
    return [json.loads(line) for line in zstd.decompress(path.read_bytes()).splitlines()]


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("built")
    return build(corpus, out), out


def test_quarantine_holds_exactly_the_broken_lines(built, corpus, broken):
    _, out = built
    entries = read_quarantine(out / "x_text_document.quarantine.jsonl.zst")
    raw = [
        entry["raw"].encode() if "raw" in entry else base64.b64decode(entry["raw_base64"], validate=True)
        for entry in entries
    ]
    assert raw == list(broken.values())
    assert [entry["line"] for entry in entries] == [number + 1 for number in broken]
    assert {entry["file"] for entry in entries} == {str(corpus)}
    assert all(entry["reason"] for entry in entries)
    data = corpus.read_bytes()
    for entry, line in zip(entries, raw, strict=True):
        assert data[entry["offset"] :].startswith(line + b"\n")
        assert entry["offset"] == 0 or data[entry["offset"] - 1 : entry["offset"]] == b"\n"


def test_account_and_manifest_know_every_line(built):
    report, out = built
    blank = sum(number % 37 == 5 for number in range(NUM_LINES))
    blank -= sum(read["line"] % 37 == 6 for read in read_quarantine(out / "x_title_document.quarantine.jsonl.zst"))
    counts = report.counts
    assert (counts.lines, counts.blank, counts.records) == (NUM_LINES, blank, NUM_LINES - blank)
    assert (counts.kept, counts.quarantined) == (NUM_LINES - blank - len(BROKEN), len(BROKEN))
    for key in ("text", "title"):
        content = json.loads((out / f"x_{key}_document.manifest.json").read_bytes())["content"]
        path = out / f"x_{key}_document.quarantine.jsonl.zst"
        recorded = content["digests"]["quarantine.jsonl.zst"]
        assert recorded == {"size_bytes": path.stat().st_size, "xxh3_128": digest_file(str(path))}
        assert content["inputs"][0]["quarantined"] == len(BROKEN)
        assert content["documents"] == report.counts.kept


def test_fail_names_the_first_and_quarantine_goes_on_from_there(corpus, broken, built, tmp_path):
    first = min(broken)
    for size in ("1KiB", "32KiB"):
        with pytest.raises(BadRecordError, match=rf"in\.jsonl, line {first + 1}: "):
            build(corpus, tmp_path / size, on_bad_record="fail", shard_size=size, workers=3)
    # What was made until then is kept when the user decides for quarantine.
    assert os.path.exists(tmp_path / "1KiB" / "x.build" / "journal.jsonl")
    build(corpus, tmp_path / "1KiB", shard_size="1KiB")
    assert published(tmp_path / "1KiB") == published(built[1])


@pytest.mark.parametrize("limit", ["13", "0.9%", "0"])
def test_more_bad_records_than_allowed_stop_the_build(limit, corpus, tmp_path):
    with pytest.raises(InputError, match=rf"(?s)more than the {limit} of --max-bad-records.*raise the limit"):
        build(corpus, tmp_path, max_bad_records=limit)
    assert sorted(os.listdir(tmp_path)) == ["x.build", "x.progress.json"]
    # The limit is no part of the plan: raising it continues.
    report = build(corpus, tmp_path, max_bad_records="14")
    assert report.counts.quarantined == 14


def test_nothing_set_aside_is_no_file_and_removes_an_old_one(corpus, tmp_path):
    build(corpus, tmp_path, json_keys=("text",))
    name = "x_text_document.quarantine.jsonl.zst"
    assert name in os.listdir(tmp_path)
    build(OWN.docs, tmp_path, json_keys=("text",), replace=True)
    assert name not in os.listdir(tmp_path)


def test_longer_lines_than_allowed_are_bad_records(tmp_path):
    lines = [json.dumps({"text": "a" * size}).encode() for size in (10, 400, 90_000, 20)]
    (tmp_path / "nested.jsonl").write_bytes(b"[" * 120_000 + b'\n{"text": ""}\n')
    assert build(tmp_path / "nested.jsonl", tmp_path / "nested", json_keys=("text",)).bad_records[0].line == 1
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    options = {"json_keys": ("text",), "max_record_size": "300B", "shard_size": "2KiB"}
    build(tmp_path / "in.jsonl", tmp_path, **options)
    entries = read_quarantine(tmp_path / "x_text_document.quarantine.jsonl.zst")
    assert [(entry["line"], len(entry["raw"])) for entry in entries] == [(2, 300), (3, 300)]
    with pytest.raises(BadRecordError, match="line 2: record of 412 bytes is larger than the limit of 300 bytes"):
        build(tmp_path / "in.jsonl", tmp_path / "fail", **options, on_bad_record="fail")
