"""An intact dataset equals its source, whatever options chose its records."""

import json
from itertools import product

import pytest

from dsindex.options.build import BuildConfig
from tests.commands.pack.verifying import verify
from tests.support.jobs import config_of, run_config

KEYS = {
    "one": {},
    "two": {"json_keys": ("text", "title")},
    "paths": {"json_keys": (".meta.tag", "short=.title")},
    "program": {"json_keys": ("text", "both=.text + .title")},
    "joined": {"json_keys": ("title", "text"), "join": " "},
    "ids": {"token_ids": "ids"},
}
BOTH = {"sample": 0.7, "hold_out": 0.3}
SAMPLES = {"all": {}, "sample": {"sample": 0.6}, "held-out": {"hold_out": 0.3}, "both": BOTH}
WHERE = {"any": {}, "where": {"where": ".n > 5"}}
BAD = {"none": {}, "quarantine": {"on_bad_record": "quarantine"}}
EMPTY = {"keep": {}, "eod": {"empty_documents": "eod"}}
CASES = list(product(KEYS, SAMPLES, WHERE, BAD, EMPTY))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Records for builds that stop at a bad one, and those with records that are bad for one key or another."""
    folder = tmp_path_factory.mktemp("sources")
    records = [{"text": f"text {n} " * (n % 4), "title": f"title {n}", "meta": {"tag": f"tag {n}"}} for n in range(60)]
    records = [{**record, "ids": [n, n + 1], "n": n} for n, record in enumerate(records)]
    (folder / "none.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for number, key in ((3, "text"), (20, "title"), (37, "meta"), (41, "ids")):
        del records[number][key]
    (folder / "quarantine.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.quick(24)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_chosen_records_equal_their_source(case, sources, tmp_path):
    keys, sample, where, bad, empty = case
    chosen = {**KEYS[keys], **SAMPLES[sample], **WHERE[where], **BAD[bad], **EMPTY[empty]}
    config = config_of(BuildConfig, sources / f"{bad}.jsonl", append_eod=True, output_prefix=f"{tmp_path}/d", **chosen)
    for dataset in run_config(config).datasets:
        report = verify(dataset.prefix, against_source=True)
        assert (report.findings, report.verdict) == ((), "intact"), dataset.prefix
